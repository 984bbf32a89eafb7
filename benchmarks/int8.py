"""Networks of eight-bit integers against float32, and against other runtimes' integers.

    python -m benchmarks.int8 zoo:resnet18_v1 zoo:mobilenet
    python -m benchmarks.int8 --device nvidia-cuda-0 zoo:resnet50_v1

Each network is quantized here (per channel, the range of random samples) and compiled with default
schedules, or with the best of the record store; it runs in turns with the same network in float32
by direct kernels. On CPUs onnxruntime runs the network that its own quantizer wrote (static, QDQ,
per channel), and OpenVINO the same file, where they are installed; with `--given` ours is imported
from that file too, and all three compute with the same integers. Every run's integers are first
compared with the numpy meaning of the quantized network. Each runs in the form that is found to be
the fastest (launches, or a persistent kernel). On GPUs runs are timed without copies from and to
the host. Prints medians and ratios, the instructions that the device has, and geometric means at
the end.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.command import parser_of
from benchmarks.networks import FASTER, PEERS, known_candidates
from benchmarks.table import geometric_mean
from retune.bundle.build import build_plan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.core.config import records_root
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.models import load_model, resolve_model
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, without_dead
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings
from retune.records.store import RecordStore
from retune.search.extract import extract

NETWORKS = (
    "zoo:resnet50_v1",
    "zoo:squeezenet_v1.1",
    "zoo:resnet18_v1",
    "zoo:vgg19_bn",
    "zoo:mobilenet",
)
SAMPLES = 4

Arrays = dict[str, np.ndarray]


def samples_of(graph: Graph) -> Arrays:
    """Random samples of each input, one after another."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal((SAMPLES * s.shape[0], *s.shape[1:]), np.float32)
        for name in graph.inputs
        for s in [graph.types[name]]
    }


def first_of(graph: Graph, samples: Arrays) -> Arrays:
    """What one run takes of them."""
    return {name: array[: graph.types[name].shape[0]] for name, array in samples.items()}


def compiled(graph: Graph, device: Device, records: Path) -> Module:
    """By direct kernels, the best of the store or else of the estimate, in the fastest form."""
    network = extract(optimise(graph, "NHWC"), max_error=0.0)
    known = known_candidates(network, RecordStore(records), device.spec)
    plan = build_plan(network, known, device.spec, model_key=graph.name, notes={})
    return Module(best_form(plan, device), device)


def is_exact(graph: Graph, device: Device, records: Path, inputs: Arrays) -> bool:
    """Whether the last integers that a quantized network makes are those of numpy."""
    whole = [n.outputs[0] for n in graph.nodes if graph.types[n.outputs[0]].dtype == "int32"]
    last = without_dead(replace(graph, outputs=(whole[-1],)))
    found = compiled(last, device, records).run(inputs)[whole[-1]]
    return bool(np.array_equal(found, run_graph(last, inputs)[whole[-1]]))


def write_quantized(model: str, samples: Arrays, made: Path, weight_bits: int) -> None:
    """The file holds the network as onnxruntime's quantizer writes it."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(CalibrationDataReader):
        """The samples, one after another."""

        def __init__(self) -> None:
            count = range(SAMPLES)
            parts = {n: np.split(a, SAMPLES) for n, a in samples.items()}
            self._left: Iterator[Arrays] = iter(
                [{n: p[i] for n, p in parts.items()} for i in count]
            )

        def get_next(self) -> Any:
            return next(self._left, None)

    plain = made.with_name("plain.onnx")
    quant_pre_process(str(resolve_model(model)), str(plain), skip_symbolic_shape=True)
    quantize_static(
        str(plain), str(made), Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        reduce_range=weight_bits == 7,
    )  # fmt: skip


def runs(module: Module, inputs: Arrays) -> Callable[[], object]:
    """A run of a network; on a GPU its launches, on inputs that are there."""
    module.run(inputs)
    if module.device.spec.outruns_host:
        return module.runner(0, len(module.plan.launches))
    return partial(module.run, inputs)


def measure(model: str, device: Device, options: Namespace) -> dict[str, float]:
    """Medians in milliseconds by contender."""
    graph = load_model(model)
    samples = samples_of(graph)
    inputs = first_of(graph, samples)
    peers = [name for name in PEERS if find_spec(name) is not None]
    if device.spec.device_class != "cpu" or find_spec("onnxruntime") is None:
        peers = []
    with TemporaryDirectory() as folder:
        file = Path(folder) / "quantized.onnx"
        if peers or options.given:
            write_quantized(model, samples, file, options.weight_bits)
        if options.given:
            made = load_file(file)
        else:
            made = quantize(graph, samples, QuantizeSettings(weight_bits=options.weight_bits))
        if not is_exact(made, device, options.records, inputs):
            raise SystemExit(f"{model}: the quantized network is not what numpy computes")
        modules = {
            "int8": compiled(made, device, options.records),
            "float32": compiled(graph, device, options.records),
        }
        contenders: dict[str, Callable[[], object]] = {
            name: runs(module, inputs) for name, module in modules.items()
        }
        contenders |= {name: partial(open_peer(name, file), inputs) for name in peers}
        outcome = compare_times(contenders, options=BenchOptions(budget_s=options.seconds))
    return {timing.name: 1e3 * timing.median_s for timing in outcome.timings}


def ratios(rows: Mapping[str, dict[str, float]], peer: str) -> list[float]:
    """Our integers' time over that contender's, for each network that it ran."""
    found: list[float] = []
    for times in rows.values():
        named = PEERS if peer == FASTER else (peer,)
        present = [times[name] for name in named if name in times]
        if present:
            found.append(times["int8"] / min(present))
    return found


def main() -> None:
    """Measures the networks named on the command line, or all of NETWORKS."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each network")
    parser.add_argument("--given", action="store_true", help="the integers of the peers' file")
    parser.add_argument("--weight-bits", type=int, choices=(7, 8), default=8)
    options = parser.parse_args()
    device = open_device(options.device)
    print(f"{device.spec.model}: {', '.join(device.spec.instructions) or 'no instructions'}")
    rows: dict[str, dict[str, float]] = {}
    for model in options.networks:
        rows[model] = times = measure(model, device, options)
        parts = [f"{n} {ms:.3f} ms ({times['int8'] / ms:.2f}x)" for n, ms in times.items()]
        print(f"{model:22} exact  " + "  ".join(parts), flush=True)
    for peer in ("float32", *PEERS, FASTER):
        if found := ratios(rows, peer):
            mean, worst = geometric_mean(found), max(found)
            print(f"int8 / {peer}: geometric mean {mean:.3f}, worst {worst:.3f}")


if __name__ == "__main__":
    main()
