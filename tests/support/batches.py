"""A batch of images whose first layers need more memory than the last ones."""

from collections import Counter

import onnx

from retune.frontend.zoo.writer import NetWriter
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop
from retune.graph.graph import Graph


def narrowing(batch: int, size: int = 16) -> onnx.ModelProto:
    """Two equal convolutions, 64 bytes a pixel, pooled to a sixteenth, and three more."""
    net = NetWriter("narrowing", seed=0)
    x = net.conv_relu(net.input("data", (batch, 8, size, size)), 8, 3, pad=1)
    x = net.pool(net.conv_relu(x, 8, 3, pad=1), "MaxPool", 4, stride=4)
    x = net.add(net.conv_relu(x, 8, 3, pad=1), net.conv_relu(x, 8, 1))
    net.output(net.conv_relu(x, 8, 1), "out")
    return net.model()


def images(graph: Graph, op: str) -> Counter[int]:
    """How often nodes of that op make so many images."""
    found = Counter(graph.types[n.outputs[0]].shape[0] for n in graph.nodes if n.op == op)
    for node in graph.nodes:
        if node.op == BATCH_LOOP:
            batch = graph.types[node.inputs[0]].shape[0]
            for body, times in BatchLoop.of(node.attrs).runs(batch):
                found.update({made: n * times for made, n in images(body, op).items() if times})
    return found
