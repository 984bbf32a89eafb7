"""Nests as estimates see them: their sizes by level, and bytes of the elements' own types."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, product
from math import inf, prod

import numpy as np
import pytest

from retune.core.dtypes import FLOAT16, FLOAT32, FLOAT64, INT8
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import For, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis, stored
from retune.schedule.access import AffineAccess
from retune.schedule.space import Sketch
from retune.schedule.stages import loops_of
from retune.targets.cost.core import Core
from retune.targets.cost.cpu import cpu_cycles
from retune.targets.cost.estimate import estimate
from retune.targets.cost.nests import BlockNest, kernels, off, on, parallel_extent
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import rules_for
from retune.targets.tiling import GROUP, ITEM
from tests.support.dags import byte_conv2d, conv2d, dense

SPECS = pytest.mark.parametrize("spec", [GENERIC_CPU, GENERIC_GPU], ids=["cpu", "gpu"])
SIZES = pytest.mark.parametrize(("dtype", "share"), [(INT8, 0.25), (FLOAT16, 0.5), (FLOAT64, 2.0)])


def sketches(dag: Dag, spec: DeviceSpec) -> list[Sketch]:
    return list(rules_for(spec).rules[0](from_dag(dag), spec, inf))


def multiplied(dtype: str) -> Dag:
    x, w = placeholder("x", (96, 448), dtype), placeholder("w", (448, 512), dtype, constant=True)
    k = reduce_axis("k", 448)
    y = compute("y", (96, 512), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,))
    return Dag((stored(y, x.dtype),))


def twins(dtype: str, spec: DeviceSpec) -> list[tuple[Sketch, Sketch]]:
    """The sketches of a product of floats, and of the same product of another type."""
    floats, others = (sketches(multiplied(d), spec) for d in (FLOAT32, dtype))
    return list(zip(floats, others, strict=True))


def operands(nest: BlockNest) -> tuple[AffineAccess, ...]:
    return (nest.accesses.result, *nest.accesses.operands)


@SPECS
@SIZES
def test_bytes_are_those_of_the_elements(dtype: str, share: float, spec: DeviceSpec):
    for floats, others in twins(dtype, spec):
        rows = floats.sample(16, np.random.default_rng(0))
        pairs = zip(chain(*kernels(floats, rows)), chain(*kernels(others, rows)), strict=True)
        for a, b in pairs:
            group = off(a.loops, GROUP)
            for x, y in zip(operands(a), operands(b), strict=True):
                part = 1.0 if y.load.buffer.dtype is FLOAT32 else share  # sums and parts of them
                assert part == share or y.load.buffer.name.startswith("y.")
                assert np.all(b.footprint(y, group) == part * a.footprint(x, group))
                assert np.all(b.buffer_bytes(y) == part * a.buffer_bytes(x))
                assert np.all(b.repeats(y, group) == a.repeats(x, group))


def whole_lines(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """The estimate where no line is come back to: as many smaller elements fill it in part."""
    if spec.device_class != "cpu":
        return estimate(sketch, rows, spec)
    core = Core(returned=0.0)
    return np.sum([cpu_cycles(kernel, spec, core) for kernel in kernels(sketch, rows)], axis=0)


def test_coming_back_to_lines_of_bytes_takes_time():
    """A tile writes sixteen bytes of a pixel's line, or all sixty-four."""
    sketch = sketches(byte_conv2d(8, 32, 16, 64, window=1), GENERIC_CPU)[0]
    rows = sketch.sample(256, np.random.default_rng(0))
    longer = estimate(sketch, rows, GENERIC_CPU) > whole_lines(sketch, rows, GENERIC_CPU)
    block, tile = np.array([sketch.decided(row)["tile.out.ff"] for row in rows]).T
    assert np.all(longer[block * tile < 4])
    assert not np.any(longer[tile >= 4])


@pytest.mark.parametrize("slow", ["pixels", "channels"])
def test_coming_back_to_lines_that_groups_divide_takes_time(slow: str):
    """The rest of a line is written by the next group, or after all rows of the map."""
    spec = replace(GENERIC_CPU, vector_bits=256, vector_registers=16)
    space = cpu_space(from_dag(dense(784, 34, 240), "net"), spec)
    sketch = space.sketch(f"cpu.v8.loops.{slow}_slow")
    rows = sketch.sample(256, np.random.default_rng(0))
    block, tile = np.array([sketch.decided(row)["tile.z.j"] for row in rows]).T
    rows, vectors = rows[tile > 1], (block * tile)[tile > 1]  # one vector is less than a line
    longer = estimate(sketch, rows, spec) > whole_lines(sketch, rows, spec)
    divided = (vectors < 30) & (vectors % 2 == 1)
    assert divided.any() and not divided.all()
    assert np.array_equal(longer, divided & (slow == "channels"))


@SPECS
@SIZES
def test_smaller_elements_take_less(dtype: str, share: float, spec: DeviceSpec):
    times: list[np.ndarray] = []
    for floats, others in twins(dtype, spec):
        rows = floats.sample(64, np.random.default_rng(0))
        times.append(whole_lines(others, rows, spec) / whole_lines(floats, rows, spec))
    assert np.any(np.concatenate(times) != 1.0)
    assert np.all((np.concatenate(times) - 1.0) * (share - 1.0) >= 0.0)


@SPECS
def test_sizes_are_those_of_each_candidate(spec: DeviceSpec):
    for sketch in sketches(conv2d(1, 8, 9, 16, 24), spec):
        rows = sketch.sample(4, np.random.default_rng(0))
        for kernel, (place, row) in product(kernels(sketch, rows), enumerate(rows)):
            program = sketch.instantiate(row)
            loops = {
                nest.accesses.block.name: loops_of(program, nest.accesses.block.name)
                for nest in kernel
            }
            for nest in kernel:
                assert nest.work[place] == size(loops[nest.accesses.block.name])
            for level in (GROUP, ITEM):
                runs = [
                    {loop.kind: loop for loop in on(path, level)}.values()
                    for path in loops.values()
                ]
                assert parallel_extent(kernel, level)[place] == max(size(axes) for axes in runs)


def size(loops: Iterable[For]) -> int:
    return prod(evaluate_int(loop.extent) for loop in loops)


def test_a_result_without_dimensions_has_no_line_that_groups_divide():
    x = placeholder("x", ())
    dag = Dag((compute("y", (), lambda: x[()] * x[()], [x]),))
    for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches:
        (cycles,) = estimate(sketch, sketch.sample(1, np.random.default_rng(0)), GENERIC_CPU)
        assert 0.0 < cycles < inf
