"""Layers and whole networks on a GPU: share of its multiply-add ceiling, and ratio to PyTorch.

    python -m benchmarks.gpu --device nvidia-cuda-0 --trials 256 zoo:resnet18_v1

Tunes each network's tasks in one run (`--trials` for each; 0: what the store has), compiles it, and
compares its outputs with onnxruntime's. Prints for each task its time without launches, its share
of the ceiling, and the time of PyTorch for the same convolution (cuDNN, float32 without TF32, the
faster of both layouts, replayed from a graph of launches); then the time of the whole network:
kernels alone, launches with waiting, a run with its copies, and PyTorch's of the same
architecture, eager and as a graph of launches. PyTorch and torchvision are used where installed.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.networks import compiled_twice, known_candidates
from benchmarks.torch_peer import ROUNDS, convolution_us, median_s, network_ms, use_float32
from retune.api import ImportedNetwork, import_network
from retune.bundle.module import Module
from retune.bundle.peers import open_peer
from retune.bundle.verify import verify
from retune.core.config import cache_root, records_root
from retune.device.ceilings import Ceilings
from retune.device.measure import LocalRunner
from retune.device.runtime import Device, open_device
from retune.device.workload import MeasureOptions
from retune.records.store import RecordStore
from retune.search.extract import Network
from retune.search.session import RunSettings, Session
from retune.search.task import Task

_BATCH = 64
"""Candidates built at once: several for each core."""
_OPTIONS = MeasureOptions(repeat=3, min_repeat_ms=1.0, disturbed_retries=0, give_up_factor=3.0)
_MOST_S = 1e9


def tune(network: ImportedNetwork, device: str, trials: int, records: Path, seconds: float) -> None:
    """Up to `trials` trials for each task, shared out by what they can gain the network."""
    tasks = [t for t in network.network.tasks.values() if t.tunable]
    settings = RunSettings(
        run_id=f"benchmark-gpu-{trials}",
        model=str(network.onnx),
        layout="NHWC",
        trials=trials * len(tasks),
        batch=_BATCH,
        options=_OPTIONS,
    )
    with LocalRunner(device) as runner:
        session = Session(tasks, runner, RecordStore(records), settings)
        left = trials * len(tasks) - session.trials
        session.round(left, seconds, lambda text, done: print(f"[{done}] {text}", flush=True))


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


def report(model: str, network: ImportedNetwork, device: Device, records: Path) -> None:
    """Prints a network's deviations, its table of layers, and its times beside PyTorch's."""
    chosen = known_candidates(network, RecordStore(records), device.spec)
    modules = compiled_twice(network, chosen, device)
    reference = open_peer("onnxruntime", Path(network.onnx))
    for label, module in modules.items():
        found = verify(module, reference, module.inputs, samples=1)
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
    parser.add_argument("--trials", type=int, default=256, help="for each task; 0: none")
    parser.add_argument("--seconds", type=float, default=_MOST_S, help="of tuning a network")
    parser.add_argument("--records", type=Path, default=records_root())
    options = parser.parse_args()
    use_float32()
    networks = {n: import_network(n, {}, "NHWC", cache_root()) for n in options.networks}
    for model, network in networks.items():
        if options.trials:
            tune(network, options.device, options.trials, options.records, options.seconds)
        report(model, network, open_device(options.device), options.records)


if __name__ == "__main__":
    main()
