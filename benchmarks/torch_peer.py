"""PyTorch on a GPU, where it and torchvision are installed: the same layers and architectures.

Float32 without TF32, algorithms chosen by trying them (cuDNN's benchmark mode), the faster of both
layouts. Call `use_float32` before anything is timed.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from retune.graph.graph import Graph, Node

ARCHITECTURES = {
    "zoo:resnet18_v1": "resnet18",
    "zoo:resnet50_v1": "resnet50",
    "zoo:squeezenet_v1.1": "squeezenet1_1",
    "light:squeezenet": "squeezenet1_0",
    "zoo:vgg19_bn": "vgg19_bn",
}
"""Network -> torchvision's name of its architecture."""
ROUNDS = 20
"""Runs that a median is taken of, and calls that a graph of launches holds."""
_WARMUPS = 3


def use_float32(*, tf32: bool = False) -> None:
    """Makes PyTorch, where there is one, compute in float32 proper, by its fastest algorithms; with
    `tf32`, products are of that."""
    if find_spec("torch") is None:
        return
    torch = _torch()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def convolution_us(graph: Graph) -> float | None:
    """Microseconds of the graph's convolution, with a bias and a rectifier, kernels alone.

    None where PyTorch is not installed, or the graph has no convolution over NHWC data.
    """
    node = next((n for n in graph.nodes if n.op == "conv2d"), None)
    if find_spec("torch") is None or node is None or node.attrs["layout"] != "NHWC":
        return None
    torch = _torch()
    return min(
        graph_us(_convolution(graph, node, layout))
        for layout in (torch.contiguous_format, torch.channels_last)
    )


def _convolution(graph: Graph, node: Node, layout: Any) -> Callable[[], object]:
    """A call of the convolution on random data in that layout of the device's memory."""
    torch = _torch()
    attrs: Mapping[str, Any] = node.attrs
    n, h, w, c = graph.types[node.inputs[0]].shape
    ky, kx, depth, filters = graph.types[node.inputs[1]].shape
    top, left = attrs["pads"][:2]
    data = torch.randn(n, c, h, w).cuda().to(memory_format=layout)
    weight = torch.randn(filters, depth, ky, kx).cuda().to(memory_format=layout)
    bias = torch.randn(filters).cuda()

    def layer() -> object:
        result = torch.nn.functional.conv2d(
            data, weight, bias, attrs["strides"], (top, left), attrs["dilations"], attrs["groups"]
        )
        return torch.relu_(result)

    return layer


def product_us(n: int) -> float | None:
    """Microseconds of a product of two n x n matrices of float16; None without PyTorch."""
    if find_spec("torch") is None:
        return None
    torch = _torch()
    x, w = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    return graph_us(lambda: torch.nn.functional.linear(x, w))


def network_ms(name: str) -> dict[str, float]:
    """Milliseconds of torchvision's network of that architecture, eager and as a graph of launches.

    Its data are on the device already. Empty where PyTorch or such a network is missing.
    """
    if name not in ARCHITECTURES or not (find_spec("torch") and find_spec("torchvision")):
        return {}
    torch, models = _torch(), import_module("torchvision").models
    found: dict[str, float] = {}
    for label, layout in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
        model = getattr(models, ARCHITECTURES[name])().eval().cuda().to(memory_format=layout)
        data = torch.randn(1, 3, 224, 224).cuda().to(memory_format=layout)

        def call(model: Any = model, data: Any = data) -> object:
            return model(data)

        with torch.inference_mode():
            for _ in range(_WARMUPS):
                call()
            eager = median_s(call, torch.cuda.synchronize)
            found[f"torch {label} eager"] = 1e3 * eager
            found[f"torch {label} graph"] = 1e-3 * graph_us(call)
    return found


def graph_us(call: Callable[[], object]) -> float:
    """Microseconds of a call's kernels, replayed from a graph that holds it several times."""
    torch = _torch()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(_WARMUPS):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(ROUNDS):
            call()
    return 1e6 * median_s(graph.replay, torch.cuda.synchronize) / ROUNDS


def median_s(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Median wall-clock seconds of a run from an idle device until `wait` returns."""
    times: list[float] = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _torch() -> Any:
    return import_module("torch")
