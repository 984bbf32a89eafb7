"""Batches of images in micro-batches against whole ones, and against onnxruntime.

    python -m benchmarks.micro_batches mobilenet_v2.onnx --shape x=8,3,224,224

A network of a fixed batch is compiled twice with default schedules: as it is, and with the layers
that exceed the processor's last cache in micro-batches, as `tune` does by itself. Both and
onnxruntime run in turns. Prints medians with their ratio, the least times, the memory that both
take, and how many convolutions compute how many images. Where other programs use the processor,
start it with POCL_CPU_MAX_CU_COUNT=1 under `taskset`: launches of one thread wait for no other.
"""

from collections import Counter
from collections.abc import Sequence

from benchmarks.command import parser_of
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.cli.options import parse_shapes
from retune.core.config import cache_root
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import Device, open_device
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop
from retune.graph.graph import Graph
from retune.graph.passes.micro_batches import SharedCache, in_micro_batches
from retune.search.extract import extract


def module_of(graph: Graph, device: Device) -> Module:
    """The network by default schedules."""
    return Module(build_plan(extract(graph), {}, device.spec, model_key="", notes={}), device)


def images_of(graph: Graph) -> str:
    """How many convolutions compute how many images."""
    counts = sorted(_counted(graph).items())
    return ", ".join(f"{count} of {images} images" for images, count in counts)


def _counted(graph: Graph) -> Counter[int]:
    found = Counter(graph.types[n.outputs[0]].shape[0] for n in graph.nodes if "conv2d" in n.op)
    for node in graph.nodes:
        if node.op == BATCH_LOOP:
            batch = graph.types[node.inputs[0]].shape[0]
            for body, times in BatchLoop.of(node.attrs).runs(batch):
                found.update({n: times * count for n, count in _counted(body).items()})
    return +found


def report(model: str, stated: Sequence[str], seconds: float) -> None:
    """One line for each contender."""
    shapes = {name: tuple(map(int, shape)) for name, shape in parse_shapes(stated).items()}
    imported, device = import_network(model, shapes, "NHWC", cache_root()), open_device("pocl")
    whole, spec = imported.network.graph, device.spec
    divided = in_micro_batches(whole, SharedCache(spec.l3_bytes, spec.compute_units))
    print(f"{model}: convolutions in micro-batches: {images_of(divided)}")
    with module_of(whole, device) as one, module_of(divided, device) as other:
        feeds = one.random_inputs()
        given = {name: array.shape for name, array in feeds.items()}
        peer = open_peer("onnxruntime", imported.onnx, shapes=given)
        contenders = {
            "whole": lambda: one.run(feeds),
            "micro-batches": lambda: other.run(feeds),
            "onnxruntime": lambda: peer(feeds),
        }
        with lease(spec):
            found = compare_times(contenders, options=BenchOptions(budget_s=seconds))
        base = found.timing("whole").median_s
        for timing in found.timings:
            times = f"{1e3 * timing.median_s:8.2f} ms, {timing.median_s / base:.3f}x"
            least = f"least {1e3 * min(timing.times_s):.2f} ms"
            print(f"  {timing.name:14} {times}, {least}")
        print(f"  memory: {one.peak_bytes >> 20} and {other.peak_bytes >> 20} MiB", flush=True)


def main() -> None:
    """Compares the models named on the command line, all of these shapes."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="an ONNX file or zoo:NAME")
    parser.add_argument("--shape", action="append", default=[], help="such as x=8,3,224,224")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each model")
    options = parser.parse_args()
    for model in options.models:
        report(model, options.shape, options.seconds)


if __name__ == "__main__":
    main()
