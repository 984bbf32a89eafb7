"""Layers and whole networks on a GPU: share of its multiply-add ceiling, and ratio to PyTorch.

    python -m benchmarks.gpu --device nvidia-cuda-0 --trials 256 zoo:resnet18_v1

Tunes each network's tasks in one run (`--trials` for each; 0: what the store has), compiles it, and
compares its outputs with onnxruntime's. Prints for each task its time without launches, its share
of the ceiling, and the time of PyTorch for the same convolution (cuDNN, float32 without TF32, the
faster of both layouts, replayed from a graph of launches); then the time of the whole network:
kernels alone, launches with waiting, a run with its copies, and PyTorch's of the same
architecture, eager and as a graph of launches. PyTorch and torchvision are used where installed.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.networks import known_candidates
from retune.api import ImportedNetwork, import_network
from retune.bundle.build import build_plan
from retune.bundle.module import Module
from retune.bundle.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.device.ceilings import Ceilings
from retune.device.measure import LocalRunner
from retune.device.runtime import Device, open_device
from retune.device.workload import MeasureOptions
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session
from retune.search.task import Task

ARCHITECTURES = {
    "zoo:resnet18_v1": "resnet18",
    "zoo:resnet50_v1": "resnet50",
    "zoo:squeezenet_v1.1": "squeezenet1_1",
    "light:squeezenet": "squeezenet1_0",
    "zoo:vgg19_bn": "vgg19_bn",
}
"""Network -> torchvision's name of its architecture."""
_BATCH = 64
"""Candidates built at once: several for each core."""
_OPTIONS = MeasureOptions(repeat=3, min_repeat_ms=1.0, disturbed_retries=0, give_up_factor=3.0)
_ROUNDS = 20
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
    for launch in module.profile(_ROUNDS):
        found[launch.label] = found.get(launch.label, 0.0) + 1e6 * launch.median_s
    return found


def torch_layer_us(task: Task) -> float | None:
    """Microseconds of the same convolution, bias and rectifier in PyTorch; None for other tasks."""
    if find_spec("torch") is None or task.graph is None or task.op != "conv2d_nhwc":
        return None
    import torch

    node = next(n for n in task.graph.nodes if n.op == "conv2d")
    attrs = node.attrs
    n, h, w, c = task.graph.types[node.inputs[0]].shape
    ky, kx, depth, filters = task.graph.types[node.inputs[1]].shape
    top, left = attrs["pads"][:2]
    x, k = torch.randn(n, c, h, w).cuda(), torch.randn(filters, depth, ky, kx).cuda()
    bias = torch.randn(filters).cuda()
    times: list[float] = []
    for memory in (torch.contiguous_format, torch.channels_last):
        data, weight = x.to(memory_format=memory), k.to(memory_format=memory)

        def layer(data: Any = data, weight: Any = weight) -> Any:
            result = torch.nn.functional.conv2d(
                data, weight, bias, attrs["strides"], (top, left), attrs["dilations"],
                attrs["groups"],
            )  # fmt: skip
            return torch.relu_(result)

        times.append(graph_us(layer))
    return min(times)


def graph_us(call: Callable[[], object]) -> float:
    """Microseconds of a call's kernels, replayed from a graph that holds it several times."""
    import torch

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_ROUNDS):
            call()
    return 1e6 * median_s(graph.replay, torch.cuda.synchronize) / _ROUNDS


def median_s(run: Callable[[], object], wait: Callable[[], object]) -> float:
    """Median wall-clock seconds of a run, with waiting."""
    times: list[float] = []
    for _ in range(_ROUNDS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def torch_network(name: str) -> dict[str, float]:
    """Milliseconds of torchvision's network of that architecture on data of the device."""
    if name not in ARCHITECTURES or not (find_spec("torch") and find_spec("torchvision")):
        return {}
    import torch
    import torchvision

    found: dict[str, float] = {}
    for label, memory in (("nchw", torch.contiguous_format), ("nhwc", torch.channels_last)):
        model = getattr(torchvision.models, ARCHITECTURES[name])().eval().cuda()
        model = model.to(memory_format=memory)
        data = torch.randn(1, 3, 224, 224).cuda().to(memory_format=memory)
        with torch.inference_mode():
            for _ in range(3):
                model(data)
            eager = median_s(lambda m=model, d=data: m(d), torch.cuda.synchronize)
            found[f"torch {label} eager"] = 1e3 * eager
            found[f"torch {label} graph"] = 1e-3 * graph_us(lambda m=model, d=data: m(d))
    return found


def report(model: str, network: ImportedNetwork, device: Device, records: Path) -> None:
    """Prints the tables of one network."""
    chosen = known_candidates(network, RecordStore(records), device.spec)
    modules = {
        label: Module(
            build_plan(network.network, pick, device.spec, model_key=model, notes={}), device
        )
        for label, pick in (("default", {}), ("tuned", chosen))
    }
    module = modules["tuned"]
    feeds = module.random_inputs()
    reference = open_peer("onnxruntime", Path(network.onnx))(feeds)
    for label, one in modules.items():
        found = one.run(feeds)
        off = max(float(np.abs(found[k] - v).max() / np.abs(v).max()) for k, v in reference.items())
        print(f"{model} {label}: deviation {off:.1e} of the range of onnxruntime's outputs")
    ceiling = Ceilings(device).gflops
    print(f"multiply-add ceiling {ceiling / 1e3:.1f} TFLOPS")
    times = layer_times(module)
    seen: set[str] = set()
    for placed in network.network.groups:
        if placed.task_key is None or placed.task_key in seen:
            continue
        seen.add(placed.task_key)
        task = network.network.tasks[placed.task_key]
        us = times.get(placed.group.name)
        if not task.tunable or us is None:
            continue
        peer = torch_layer_us(task)
        shapes = f"{task.input_shapes[0]} {task.input_shapes[1:2]} x{task.weight}"
        ratio = f"torch {peer:7.1f} us ({us / peer:.2f}x)" if peer else ""
        print(
            f"{task.name:28} {shapes:56} {us:8.1f} us {task.flops / us / 1e6:6.2f} TFLOPS "
            f"{task.flops / us / 1e3 / ceiling:4.0%}  {ratio}",
            flush=True,
        )
    totals = {f"{n} kernels": 1e-3 * sum(layer_times(m).values()) for n, m in modules.items()}
    for name, one in modules.items():
        run = one.runner(0, len(one.plan.launches))
        totals[f"{name} launches"] = 1e3 * median_s(run, lambda: None)
        totals[f"{name} run"] = 1e3 * median_s(lambda m=one: m.run(feeds), lambda: None)
    totals |= torch_network(model)
    print(f"{model} ({len(module.plan.launches)} launches), milliseconds:")
    for label, ms in totals.items():
        print(f"  {label:24} {ms:8.3f}")


def main() -> None:
    """Measures the networks named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["zoo:resnet18_v1"])
    parser.add_argument("--device", required=True)
    parser.add_argument("--trials", type=int, default=256, help="for each task; 0: none")
    parser.add_argument("--seconds", type=float, default=_MOST_S, help="of tuning a network")
    parser.add_argument("--records", type=Path, default=records_root())
    options = parser.parse_args()
    if find_spec("torch"):
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
    networks = {n: import_network(n, {}, "NHWC", cache_root()) for n in options.networks}
    for model, network in networks.items():
        if options.trials:
            tune(network, options.device, options.trials, options.records, options.seconds)
        report(model, network, open_device(options.device), options.records)


if __name__ == "__main__":
    main()
