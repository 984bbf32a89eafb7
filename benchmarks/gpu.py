"""Layers and whole networks on a GPU: share of its multiply-add ceiling, and ratio to PyTorch.

    python -m benchmarks.gpu --device nvidia-cuda-0 --minutes 4 zoo:resnet18_v1

Tunes each network (0 minutes: with what the store has), compiles it, and compares its outputs with
onnxruntime's. Prints for each task its time without launches, its share
of the ceiling, and the time of PyTorch for the same convolution (cuDNN, float32 without TF32, the
faster of both layouts, replayed from a graph of launches); then the time of the whole network:
kernels alone, launches with waiting, a run with its copies, and PyTorch's of the same
architecture, eager and as a graph of launches. PyTorch and torchvision are used where installed.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.bundles import publish
from benchmarks.command import parser_of
from benchmarks.torch_peer import ROUNDS, convolution_us, median_s, network_ms, use_float32
from retune.api import ImportedNetwork, build_plan, import_network
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.device.measure.ceilings import Ceilings
from retune.pipeline.request import TuneRequest
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.extract import Network
from retune.search.task import Task


def tuned(model: str, options: Namespace) -> Module:
    """The network as `retune tune` publishes it; with 0 minutes, of what the store has."""
    request = TuneRequest(
        model=model,
        out="",
        records=str(options.records),
        work=str(cache_root()),
        device=options.device,
        minutes=options.minutes or None,
        trials=None if options.minutes else 0,
        max_error=options.max_error,
    )
    made = publish(request).made
    return Module.load(made.file(made.module), options.device)


def layer_times(module: Module) -> dict[str, float]:
    """Microseconds of each group of the network by its name."""
    found: dict[str, float] = {}
    for launch in module.profile(ROUNDS):
        found[launch.label] = found.get(launch.label, 0.0) + 1e6 * launch.median_s
    return found


def layer_lines(network: Network, us: Mapping[str, float], ceiling: float) -> Iterator[str]:
    """A line for each tuned task: its time, its speed as a share of the ceiling, and PyTorch's."""
    seen: set[str] = set()
    for placed in network.groups:
        if placed.task_key is None or placed.task_key in seen:
            continue
        seen.add(placed.task_key)
        task = network.tasks[placed.task_key]
        if task.tunable and placed.group.name in us:
            yield _layer_line(task, us[placed.group.name], ceiling)


def _layer_line(task: Task, us: float, ceiling: float) -> str:
    """`ceiling` is in GFLOPS."""
    peer = convolution_us(task.graph) if task.graph is not None else None
    ratio = f"torch {peer:7.1f} us ({us / peer:.2f}x)" if peer else ""
    gflops = 1e-3 * task.flops / us
    shapes = f"{task.input_shapes[0]} {task.input_shapes[1:2]} x{task.weight}"
    return (
        f"{task.name:28} {shapes:56} {us:8.1f} us {1e-3 * gflops:6.2f} TFLOPS "
        f"{gflops / ceiling:4.0%}  {ratio}"
    )


def network_times(modules: Mapping[str, Module]) -> dict[str, float]:
    """Milliseconds of each bundle: its kernels alone, its launches with waiting, a whole run."""
    found = {f"{n} kernels": 1e-3 * sum(layer_times(m).values()) for n, m in modules.items()}
    for name, module in modules.items():
        launches = module.runner(0, len(module.plan.launches))
        feeds = module.random_inputs()
        found[f"{name} launches"] = 1e3 * median_s(launches, lambda: None)
        found[f"{name} run"] = 1e3 * median_s(partial(module.run, feeds), lambda: None)
    return found


def report(model: str, network: ImportedNetwork, module: Module) -> None:
    """Prints a network's deviations, its table of layers, and its times beside PyTorch's."""
    device = module.device
    plan = build_plan(network.network, {}, device.spec, model_key=model, notes={})
    modules = {"default": Module(plan, device), "tuned": module}
    reference = open_peer("onnxruntime", Path(network.onnx))
    for label, made in modules.items():
        found = verify(made, reference, made.random_inputs, samples=1)
        print(f"{model} {label}: deviation {found.max_rel_range:.1e} of onnxruntime's range")
    ceiling = Ceilings(device).gflops
    print(f"multiply-add ceiling {1e-3 * ceiling:.1f} TFLOPS")
    for line in layer_lines(network.network, layer_times(modules["tuned"]), ceiling):
        print(line, flush=True)
    print(f"{model} ({len(modules['tuned'].plan.launches)} launches), milliseconds:")
    for label, ms in (network_times(modules) | network_ms(model)).items():
        print(f"  {label:24} {ms:8.3f}")


def main() -> None:
    """Measures the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=["zoo:resnet18_v1"])
    parser.add_argument("--device", required=True)
    parser.add_argument("--minutes", type=float, default=2.0, help="of tuning; 0: none")
    parser.add_argument("--max-error", type=float, default=DEFAULT_MAX_ERROR, help="of a layer")
    parser.add_argument("--records", type=Path, default=records_root())
    options = parser.parse_args()
    use_float32()
    for model in options.networks:
        module = tuned(model, options)
        report(model, import_network(model, {}, "NHWC", max_error=options.max_error), module)


if __name__ == "__main__":
    main()
