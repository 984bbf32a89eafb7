"""Layers of eight-bit networks, by each instruction that the device has, beside its ceiling.

    python -m benchmarks.int8_layers zoo:resnet50_v1
    python -m benchmarks.int8_layers --trials 16 --at-least 128 zoo:resnet18_v1
    python -m benchmarks.int8_layers --device nvidia-cuda-0 --trials 4 zoo:resnet50_v1

Takes the distinct convolutions of the quantized networks with at least that many channels on both
sides. For each sort of sketch, such as `words` and `matrix`, the candidates that the estimate ranks
first are verified and measured. Prints 10^9 operations a second, two for a multiply-add, the share
of what the sort's instruction reaches on registers alone (measured between the layers; their
median counts), how much longer than the best the very first candidate takes, which the estimate
would choose, and the geometric means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from tempfile import TemporaryDirectory

import numpy as np

import retune
from benchmarks.command import parser_of
from benchmarks.int8 import samples_of
from benchmarks.layers import graph_of
from benchmarks.table import geometric_mean
from retune.codegen.kernel import Function
from retune.codegen.opencl.intrinsics import function_lines, function_name, macro_name
from retune.core.dtypes import INT8, INT32, UINT8
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.models import load_model
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import QuantizeSettings
from retune.intrinsics import Signature, intrinsic
from retune.schedule.space import Candidate
from retune.search.extract import extract
from retune.search.task import Task
from retune.targets.cost.estimate import estimate

SORTS = {"words": "dot4", "matrix": "tile8", "warp": "warp8"}
"""Part of a sketch's name -> the intrinsic by which it works."""
_CHAINS = 12
_ITERATIONS = 1 << 17
_RUNS = 7
_GPU_LANES = 4
_GPU_ITEMS = 256, 8
"""Items of a group, and groups for each compute unit."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Operations of an instruction on registers alone."""

    device: Device
    name: str

    def gops(self) -> float | None:
        """1e9 operations a second of all cores right now; None where the device has it not."""
        entry, spec = intrinsic(self.name), self.device.spec
        on_gpu = spec.device_class == "gpu"
        in_lanes = entry.residence == "vector lane"
        lanes = 1 if not in_lanes else _GPU_LANES if on_gpu else spec.vector_lanes()
        signature = Signature((UINT8, INT8), lanes)
        chosen = entry.implementation(signature, spec.instructions)
        if chosen is entry.implementations[-1]:
            return None
        function = Function(self.name, signature, chosen.name)
        steps = _ITERATIONS >> 5 if on_gpu else _ITERATIONS
        match entry.residence:
            case "vector lane":
                body, each = _words(function, steps)
            case "warp":
                body, each = _warps(function, steps)
            case "register tile":
                body, each = _tiles(function)
        items, groups = _GPU_ITEMS if on_gpu else (1, 2)
        groups *= spec.compute_units
        program = self.device.build("\n".join([*function_lines([function]), *body]))
        made = groups * items * (lanes if on_gpu else 256)
        buffers = [self.device.random(INT32, 1024), self.device.random(INT32, made)]
        sides = (groups * items, 1, 1), (items, 1, 1)
        launch = self.device.prepare(program, "ceiling", buffers, *sides)
        self.device.time([launch])
        times = [self.device.time([launch]) for _ in range(_RUNS)]
        return 1e-9 * each * groups * items / float(np.median(times))


def _words(f: Function, steps: int) -> tuple[list[str], int]:
    """A kernel of independent sums, and the operations of an item."""
    n = f.signature.lanes
    sums = [f"y{i}" for i in range(_CHAINS)]
    call = f"{function_name(f.op, f.signature)}(a, b, {{0}})"
    lines = [
        "__kernel void ceiling(__global const int* x, __global int* y) {",
        f"  uint{n} a = as_uint{n}(vload{n}(0, x)); int{n} b = vload{n}(1, x);",
        *(f"  int{n} {s} = vload{n}({i + 2}, x);" for i, s in enumerate(sums)),
        f"  for (int i = 0; i < {steps}; ++i) {{",
        *(f"    {s} = {call.format(s)};" for s in sums),
        "  }",
        f"  vstore{n}({' ^ '.join(sums)}, get_global_id(0), y);",
        "}",
    ]
    return lines, 8 * n * _CHAINS * steps


def _tiles(f: Function) -> tuple[list[str], int]:
    """The same on matrix registers: four of results, two of each operand."""

    def step(name: str, *arguments: object) -> str:
        return f"{macro_name(f, name)}({', '.join(map(str, arguments))});"

    config = [1, *[0] * 15, *[64, 0] * 8, *[0] * 16, *[16] * 8]
    dots = [step("DOT", i, 4 + i // 2, 6 + i % 2, 16, 16) for i in range(4)]
    lines = [
        "__kernel void ceiling(__global const uchar* x, __global int* y) {",
        f"  const uchar config[64] = {{{', '.join(map(str, config))}}};",
        step("CONFIGURE", "config"),
        *(step("REGISTER", i) for i in range(8)),
        *(step("ZERO", i) for i in range(4)),
        *(step("LOAD", i, "x", 64, 16, 64) for i in range(4, 8)),
        f"  for (int i = 0; i < {_ITERATIONS >> 4}; ++i) {{",
        *dots,
        "  }",
        *(step("STORE", i, "y + 256 * get_global_id(0)", 16, 16) for i in range(4)),
        step("RELEASE"),
        "}",
    ]
    return lines, 4 * 2 * 16 * 16 * 64 * (_ITERATIONS >> 4)


def _warps(f: Function, steps: int) -> tuple[list[str], int]:
    """The same by the items of a warp, each of which holds so many pairs of results."""
    entry = intrinsic(f.op)
    pairs = [(f"y{i}", f"z{i}") for i in range(_CHAINS)]
    lines = [
        "__kernel void ceiling(__global const int* x, __global int* y) {",
        "  uint2 a = as_uint2(vload2(get_local_id(0), x));",
        *(f"  uint4 b{n} = as_uint4(vload4(get_local_id(0) % 32 + {n}, x));" for n in (0, 1)),
        *(f"  int4 {y} = (int4)(0), {z} = (int4)(0);" for y, z in pairs),
        f"  for (int i = 0; i < {steps}; ++i) {{",
        *(
            f"    {function_name(f.op, f.signature).upper()}({y}, {z}, a, b0, b1);"
            for y, z in pairs
        ),
        "  }",
        f"  y[get_global_id(0)] = ({' ^ '.join(n for pair in pairs for n in pair)}).x;",
        "}",
    ]
    return lines, 2 * entry.m * entry.n * entry.k * _CHAINS * steps


def layers(models: Sequence[str], least: int) -> dict[str, Task]:
    """Distinct convolutions of the quantized networks, by key."""
    found: dict[str, Task] = {}
    for model in models:
        graph = load_model(model)
        made = quantize(graph, samples_of(graph), QuantizeSettings())
        for task in extract(optimise(made, "NHWC"), max_error=0.0).tasks.values():
            channels = [shape[-1] for shape in (*task.input_shapes[:1], task.output_shape)]
            if task.op.startswith("conv2d") and min(channels) >= least:
                found.setdefault(task.key, task)
    return found


def operations(task: Task) -> int:
    """Two for each multiply-add."""
    graph = graph_of(task)
    weights = graph.types[graph.nodes[0].inputs[1]]
    return 2 * prod(task.output_shape[:-1]) * weights.elements


def first_ranked(task: Task, device: Device, sort: str, trials: int) -> list[Candidate]:
    """The sort's candidates that the estimate ranks first."""
    space, rng = task.space(device.spec), np.random.default_rng(0)
    ranked: list[tuple[float, Candidate]] = []
    for number, sketch in enumerate(space.sketches):
        if sort not in sketch.name.split("."):
            continue
        rows = np.unique(sketch.sample(1024, rng), axis=0)
        times = estimate(sketch, rows, device.spec)
        for i in np.argsort(times)[:trials]:
            candidate = space.candidate(space.population(number, rows[i : i + 1]), 0)
            ranked.append((float(times[i]), candidate))
    return [candidate for _, candidate in sorted(ranked, key=lambda pair: pair[0])[:trials]]


def best_of(
    task: Task, device: Device, sort: str, trials: int, records: str
) -> tuple[float, float, str]:
    """Microseconds of the sort's best candidate, the first one's time over its, and failures."""
    chosen = first_ranked(task, device, sort, trials)
    made = retune.measure(task, chosen, device=device.spec.name, records=records)
    times = [m.median_us for m in made if m.median_us is not None]
    wrong = [m.error for m in made if m.median_us is None]
    if not times:
        return float("nan"), float("nan"), str(wrong[0] if wrong else "none")
    first = made[0].median_us
    loss = float("nan") if first is None else first / min(times)
    return min(times), loss, f", {len(wrong)} wrong" if wrong else ""


def main() -> None:
    """Measures each layer by each sort of sketch."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="*", default=["zoo:resnet50_v1"])
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--trials", type=int, default=8, help="candidates of each sort")
    parser.add_argument("--at-least", type=int, default=64, help="channels on both sides")
    options = parser.parse_args()
    device = open_device(options.device)
    print(f"{device.spec.name}: {device.spec.model}; {', '.join(device.spec.instructions)}")
    ceilings = {sort: Ceiling(device, name) for sort, name in SORTS.items()}
    ceilings = {sort: c for sort, c in ceilings.items() if c.gops() is not None}
    tops: dict[str, list[float]] = {sort: [] for sort in ceilings}
    rates: dict[str, list[float]] = {sort: [] for sort in ceilings}
    lost: dict[str, list[float]] = {sort: [] for sort in ceilings}
    with TemporaryDirectory() as records:
        for task in layers(options.models, options.at_least).values():
            found: list[str] = []
            for sort, ceiling in ceilings.items():
                us, loss, notes = best_of(task, device, sort, options.trials, records)
                lost[sort].append(loss)
                tops[sort].append(ceiling.gops() or float("nan"))
                rates[sort].append(1e-3 * operations(task) / us)
                found.append(
                    f"{sort} {us:7.1f} us {rates[sort][-1]:6.0f} GOPS (first {loss:.2f}x{notes})"
                )
            print(f"{task.name:40} {' | '.join(found)}", flush=True)
    for sort, made in rates.items():
        top = float(np.median(tops[sort]))
        shares = [rate / top for rate in made if rate == rate]
        losses = [loss for loss in lost[sort] if loss == loss]
        if not shares:
            print(f"{sort}: ceiling {top:.0f} GOPS; no layer has such a sketch")
            continue
        print(
            f"{sort}: ceiling {top:.0f} GOPS ({min(tops[sort]):.0f} to {max(tops[sort]):.0f}); "
            f"share geometric mean {geometric_mean(shares):.0%}, best {max(shares):.0%}, "
            f"least {min(shares):.0%}; first {geometric_mean(losses):.3f}x"
        )


if __name__ == "__main__":
    main()
