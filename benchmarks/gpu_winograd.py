"""Convolutions on a GPU: direct against Winograd, kernels alone.

    python -m benchmarks.gpu_winograd --device nvidia-cuda-0 zoo:vgg19_bn zoo:resnet18_v1

For every distinct convolution to which Winograd applies: the best of the first few direct
candidates by the static estimate, and of the first few of each Winograd sketch. A line for each:
time on a queue that never runs dry, ratio to direct, the estimate in cycles, the time of each of
its kernels by itself, and its decisions. `*` marks the sketch that an untuned build would take.
The data are random. Successive runs read their constants from different places, more than the
last cache holds, since in a network weights come from memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.command import parser_of
from retune.api import import_network
from retune.codegen.lower import lower
from retune.codegen.source import ProgramBuffer
from retune.core.config import cache_root
from retune.core.target import DeviceSpec
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel, open_device
from retune.schedule.space import Sketch
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.devices import target_of
from retune.targets.gpu.winograd import PREFIX

NETWORKS = ("zoo:vgg19_bn", "zoo:resnet18_v1")
_POPULATION = 4096
_ROUNDS = 20
_REPEATS = 3
_SPREAD_BYTES = 128 << 20
"""Constants of successive runs: several times the last cache of a large GPU."""
_MOST_COPIES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measured candidate."""

    sketch: Sketch
    decided: str
    """Its decisions."""
    estimated: float
    """Cycles by the static estimate."""
    us: float
    kernels_us: tuple[float, ...]
    """Each kernel by itself."""


def layers(models: Sequence[str]) -> Iterator[Task]:
    """Distinct convolutions of stride 1 with a window."""
    seen: set[str] = set()
    for model in models:
        for task in import_network(model, {}, "NHWC", cache_root()).network.tasks.values():
            windowed = task.stride == 1 and task.input_shapes[1][:2] != (1, 1)
            if windowed and task.key not in seen:
                seen.add(task.key)
                yield task


def first_rows(
    sketches: Sequence[Sketch], spec: DeviceSpec, count: int
) -> list[tuple[Sketch, np.ndarray]]:
    """The first `count` candidates of these sketches by the estimate."""
    found: list[tuple[float, Sketch, np.ndarray]] = []
    for sketch in sketches:
        rows = np.unique(sketch.sample(_POPULATION, np.random.default_rng(0)), axis=0)
        times = estimate(sketch, rows, spec)
        best = np.argsort(times, kind="stable")[:count]
        found += [(float(times[i]), sketch, rows[i]) for i in best]
    found.sort(key=lambda entry: entry[0])
    return [(sketch, row) for _, sketch, row in found[:count]]


def measure(sketch: Sketch, row: np.ndarray, device: Device) -> Timed:
    """Times one candidate."""
    source = lower(sketch.instantiate(row), target_of(device.spec))
    program = device.build(source.text, options=source.options)
    sets = [
        device.prepare_all(program, source.launches, memory)
        for memory in _memories(source.buffers, device)
    ]
    whole = [launch for launches in sets for launch in launches]
    return Timed(
        sketch=sketch,
        estimated=float(estimate(sketch, row[None], device.spec)[0]),
        decided=str({n.split("product.")[-1]: v for n, v in sketch.decided(row).items()}),
        us=_us(device, whole) / len(sets),
        kernels_us=tuple(_us(device, list(same)) / len(sets) for same in zip(*sets, strict=True)),
    )


def _memories(buffers: Sequence[ProgramBuffer], device: Device) -> list[dict[str, DeviceMemory]]:
    """Memory for successive runs, which share all but the constants."""
    rng = np.random.default_rng(0)
    constants = [b for b in buffers if b.role == "weight"]
    size = sum(4 * b.elements for b in constants)
    copies = int(np.clip(_SPREAD_BYTES // max(1, size), 1, _MOST_COPIES))
    shared = {
        b.name: device.upload(rng.random(b.elements, np.float32))
        for b in buffers
        if b.role != "weight"
    }
    values = {b.name: rng.random(b.elements, np.float32) for b in constants}
    return [
        shared | {name: device.upload(array) for name, array in values.items()}
        for _ in range(copies)
    ]


def _us(device: Device, launches: list[PreparedKernel]) -> float:
    """Microseconds of the launches on a queue that never runs dry, the best of a few."""
    device.time_queued(launches)
    rounds = max(1, _ROUNDS // len(launches))
    return min(1e6 * device.time_queued(launches, rounds) / rounds for _ in range(_REPEATS))


def timed_layer(task: Task, device: Device, candidates: int) -> list[Timed]:
    """The best of the direct candidates first, then that of each Winograd sketch."""
    sketches = task.space(device.spec).sketches
    families = [[s] for s in sketches if s.name.startswith(PREFIX)]
    families.insert(0, [s for s in sketches if not s.name.startswith(PREFIX)])
    best: list[Timed] = []
    for family in families if len(families) > 1 else []:
        rows = first_rows(family, device.spec, candidates)
        best.append(min((measure(*row, device) for row in rows), key=lambda timed: timed.us))
    return best


def lines(task: Task, timed: Sequence[Timed], default: str) -> Iterator[str]:
    """A line for the layer, and one for each of its best candidates."""
    data, made = task.input_shapes[0], task.output_shape[-1]
    epilogue = "+".join(task.epilogue)
    yield f"{data[1]}x{data[2]} {data[3]}->{made} {epilogue} x{task.weight}"
    for entry in timed:
        mark = "*" if entry.sketch.name == default else " "
        kernels = " + ".join(f"{us:.1f}" for us in entry.kernels_us)
        yield (
            f"  {entry.sketch.name:28}{mark}{entry.us:8.1f} us {entry.us / timed[0].us:5.2f}x "
            f"({entry.estimated:7.0f}) {kernels:22} {entry.decided}"
        )


def main() -> None:
    """Measures the layers of the networks named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--device", required=True)
    parser.add_argument("--candidates", type=int, default=4, help="direct ones, and of each sketch")
    options = parser.parse_args()
    device = open_device(options.device)
    for task in layers(options.networks):
        timed = timed_layer(task, device, options.candidates)
        space = task.space(device.spec)
        default = default_candidate(space, device.spec).sketch
        if timed:
            print(*lines(task, timed, default), sep="\n", flush=True)


if __name__ == "__main__":
    main()
