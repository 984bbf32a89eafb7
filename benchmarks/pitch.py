"""Rows of 2 or 4 KB begin a line further apart: does that spare misses of the first cache.

    python -m benchmarks.pitch --turns 60

Pixels of 512, 1024 or 2048 channels lie so far apart that all of them share a few sets of the
first-level cache. Each layer's default schedule and those that the estimate ranks next run in
turns, with all values packed, with the input's rows a line further apart (`input`), and with the
output's too (`both`). Printed are the median of the time over that of `packed` in the same turn,
for the default and for all candidates, and the best candidate of each way over that of `packed`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from benchmarks.command import parser_of
from benchmarks.in_place import promising
from benchmarks.table import geometric_mean
from retune.api import import_network
from retune.codegen.lower import lower
from retune.core.dtypes import FLOAT32, TensorType, itemsize
from retune.device.measure.workload import Workload, packed_weights
from retune.device.opencl.jobs import BoundJob, build_jobs
from retune.device.opencl.pool import ConstantPool
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.zoo.writer import NetWriter
from retune.ir.storage import Storage, row_major
from retune.ir.te import Tensor
from retune.ir.views import view
from retune.schedule.space import Candidate
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of

LINE_BYTES = 64
WAYS = ("packed", "input", "both")
_LEAST_S = 2e-3
"""A sample is as many runs as take this long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A convolution of stride 1 with ReLU on maps of `size` x `size`."""

    window: int
    channels: int
    filters: int
    size: int
    depthwise: bool = False

    def __str__(self) -> str:
        kind = "depthwise" if self.depthwise else f"-> {self.filters}"
        return f"{self.window}x{self.window} {self.channels} {kind} at {self.size}x{self.size}"


LAYERS = (
    *(
        Layer(window=3, channels=c, filters=c, size=size, depthwise=True)
        for c in (512, 1024)
        for size in (14, 7)
    ),
    Layer(window=1, channels=512, filters=512, size=14),
    Layer(window=1, channels=1024, filters=256, size=14),
    Layer(window=1, channels=1024, filters=512, size=14),
    Layer(window=1, channels=1024, filters=1024, size=7),
    Layer(window=1, channels=2048, filters=512, size=7),
    Layer(window=3, channels=512, filters=512, size=7),
)


def task_of(layer: Layer) -> Task:
    """The task of the layer in an NHWC network."""
    net = NetWriter("pitch", seed=0)
    x = net.input("data", (1, layer.channels, layer.size, layer.size))
    groups = layer.channels if layer.depthwise else 1
    net.output(
        net.conv_relu(x, layer.filters, layer.window, pad=layer.window // 2, groups=groups), "out"
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "layer.onnx"
        onnx.save(net.model(), path)
        tasks = import_network(str(path)).network.tasks.values()
    return max(tasks, key=lambda task: task.flops)


def pitched(tensor: Tensor) -> Storage:
    """Rows one line further apart than they are long."""
    more = LINE_BYTES // itemsize(tensor.dtype)
    return row_major(tensor.shape).pitched(tensor.shape[-1] + more)


def storages_of(task: Task) -> Mapping[str, Mapping[str, Storage]]:
    """By way, how the values lie that do not lie packed."""
    inputs = {t.name: pitched(t) for t in task.dag.placeholders if t.buffer.scope == "global"}
    outputs = {t.name: pitched(t) for t in task.dag.outputs}
    return dict(zip(WAYS, ({}, inputs, inputs | outputs), strict=True))


def stored(workload: Workload, storages: Mapping[str, Storage]) -> Workload:
    """The same arrays as the storages lay them out."""
    inputs, outputs = (
        {n: storages[n].pack(a) if n in storages else a for n, a in side.items()}
        for side in (workload.inputs, workload.outputs)
    )
    return Workload(key=workload.key, inputs=inputs, outputs=outputs)


def bound_jobs(
    task: Task, workload: Workload, candidate: Candidate, device: Device, pool: ConstantPool
) -> list[BoundJob]:
    """The candidate in each of WAYS; its results are right when the call returns.

    Raises: AssertionError if one is not.
    """
    program = task.space(device.spec).instantiate(candidate)
    ways = list(storages_of(task).values())
    given = [stored(workload, storages) for storages in ways]
    ready = [lower(view(program, storages), target_of(device.spec)) for storages in ways]
    found: list[BoundJob] = []
    built = build_jobs(device, ready, pool)
    for job, own, made, storages in zip(built, given, ready, ways, strict=True):
        specs = made.buffers
        buffers = {b.name: device.allocate(b.bytes) for b in specs}
        for name in own.inputs.keys() & buffers.keys():
            device.write(buffers[name], np.ascontiguousarray(own.inputs[name]))
        weights = [b.name for b in specs if b.role == "weight" and b.name not in made.packings]
        plain = {name: own.inputs[name] for name in weights}
        found.append(job.bind(buffers, plain | packed_weights(own, made)))
        found[-1].time()
        for name, expected in workload.outputs.items():
            kind = TensorType(own.outputs[name].shape, FLOAT32)
            result = device.read(buffers[name], kind)
            if name in storages:
                result = storages[name].unpack(result).reshape(expected.shape)
            limit = 1e-3 * float(np.abs(expected).max())
            np.testing.assert_allclose(result, expected, rtol=1e-3, atol=limit)
    return found


def time_in_turns(jobs: Sequence[Sequence[BoundJob]], turns: int) -> np.ndarray:
    """Microseconds of a run. float64 [turns, candidates, ways]"""
    counts = [max(1, round(_LEAST_S / (ways[0].time(64) / 64))) for ways in jobs]
    times = np.zeros((turns, len(jobs), len(WAYS)))
    for turn in range(turns):
        for number, (ways, count) in enumerate(zip(jobs, counts, strict=True)):
            for step in range(len(WAYS)):
                way = (turn + step) % len(WAYS)
                times[turn, number, way] = 1e6 * ways[way].time(count) / count
    return times


def report(layer: Layer, times: np.ndarray) -> list[float]:
    """Prints a line; the default's ratios and those of the best, each of `input` and of `both`."""
    medians = np.median(times, axis=0)
    paired = np.median(times / times[:, :, :1], axis=0)
    best = medians.min(axis=0)
    ratios = [*paired[0, 1:], *(best[1:] / best[0])]
    every = [" ".join(f"{ratio:.2f}" for ratio in paired[:, way]) for way in (1, 2)]
    print(
        f"{layer!s:30} default {medians[0, 0]:7.1f} us, "
        f"input {ratios[0]:.2f}, both {ratios[1]:.2f}; "
        f"best {best[0]:7.1f} us, input {ratios[2]:.2f}, both {ratios[3]:.2f}; "
        f"all: input {every[0]}, both {every[1]}",
        flush=True,
    )
    return ratios


def main() -> None:
    """Prints a line for each layer, and the geometric means."""
    parser = parser_of(__doc__)
    parser.add_argument("--candidates", type=int, default=6, help="besides the default schedule")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--device", default="pocl")
    options = parser.parse_args()
    device = open_device(options.device)
    print(f"{device.spec.host}, {device.spec.name}: time over that of packed rows")
    ratios: list[list[float]] = []
    for layer in LAYERS:
        task = task_of(layer)
        workload, pool = task.workload(), ConstantPool(device)
        first = default_candidate(task.space(device.spec), device.spec)
        candidates = [first, *promising(task, device, options.candidates)]
        jobs = [bound_jobs(task, workload, c, device, pool) for c in candidates]
        times = time_in_turns(jobs, options.turns)
        ratios.append(report(layer, times))
    means = [geometric_mean(column) for column in zip(*ratios, strict=True)]
    print("means: default input {:.3f} both {:.3f}; best input {:.3f} both {:.3f}".format(*means))


if __name__ == "__main__":
    main()
