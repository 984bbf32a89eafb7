"""Window reductions over channels: which they are, and that the estimate likes shared taps."""

import numpy as np
import pytest

from retune.core.target import GENERIC_CPU
from retune.ir.stmt import blocks, from_dag
from retune.ir.te import Dag
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cpu.space import cpu_space
from retune.targets.fusion import heaviest_reduction
from tests.support.dags import conv2d, dense, depthwise, in_bfloat16, pool, reduction

WINDOWS = {
    "depthwise": depthwise(1, 8, 8, 64),
    "largest": pool(1, 9, 9, 64, 3, 2, average=False),
    "mean of a map": pool(1, 7, 7, 64, 7, 1, average=True),
    "sum of rows": reduction(64, 40, "sum", first=True),
}
OTHERS = {
    "a convolution shares data among channels": conv2d(1, 8, 8, 32, 32),
    "a product": dense(8, 96, 64),
    "lanes would go over the summed axis": reduction(40, 64, "sum", first=False),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_get_the_rule_for_windows(name: str):
    program = from_dag(WINDOWS[name])
    anchor = heaviest_reduction(program)
    assert anchor is not None and Accesses.of(anchor, program.body).by_channel
    (sketch,) = cpu_space(program, GENERIC_CPU).sketches
    assert sketch.name.endswith("sliding")


@pytest.mark.parametrize("name", OTHERS)
def test_other_reductions_do_not(name: str):
    program = from_dag(OTHERS[name])
    anchor = heaviest_reduction(program)
    assert anchor is not None and not Accesses.of(anchor, program.body).by_channel


def _decided(dag: Dag) -> dict[str, tuple[int, ...]]:
    return dict(default_candidate(cpu_space(from_dag(dag), GENERIC_CPU), GENERIC_CPU).decisions)


def test_the_untuned_tile_is_several_columns_wide():
    assert _decided(depthwise(1, 28, 28, 256))["tile.out.xx"] >= (4,)


def test_tiles_of_16_bit_data_load_less():
    """Each vector that is loaded has to be widened, so tiles are long rows of one vector."""
    dag = depthwise(1, 28, 28, 192, window=7)
    whole, halves = _decided(dag), _decided(in_bfloat16(dag))
    assert halves["tile.out.xx"] > whole["tile.out.xx"]
    assert halves["tile.out.ff"][-1] < whole["tile.out.ff"][-1]


def test_the_estimate_prefers_tiles_that_share_taps():
    space = cpu_space(from_dag(depthwise(1, 28, 28, 64)), GENERIC_CPU)
    (sketch,) = space.sketches
    wide, narrow = (
        sketch.row({"tile.out.ff": (4, 1), "tile.out.yy": (14,), "tile.out.xx": (width,)})
        for width in (7, 1)
    )
    times = estimate(sketch, np.stack([wide, narrow]), GENERIC_CPU)
    assert times[0] < 0.8 * times[1]


def test_the_estimate_prefers_tiles_that_read_neighbouring_vectors():
    (sketch,) = cpu_space(from_dag(depthwise(1, 28, 28, 256)), GENERIC_CPU).sketches
    at_once, later = (
        sketch.row({"tile.out.ff": vectors, "tile.out.yy": (7,), "tile.out.xx": (4,)})
        for vectors in ((1, 4), (4, 1))
    )
    times = estimate(sketch, np.stack([at_once, later]), GENERIC_CPU)
    assert times[0] < 0.9 * times[1]


@pytest.mark.parametrize(
    ("dag", "expected"),
    [(conv2d(1, 8, 8, 32, 64, groups=2), False), (depthwise(1, 8, 8, 64), True)],
)
def test_groups_of_a_convolution_share_data_between_lanes(dag: Dag, *, expected: bool):
    for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches:
        (block,) = (b for b in blocks(sketch.program.body) if b.reducer is not None)
        assert Accesses.of(block, sketch.program.body).lane_wise == expected


def test_weights_are_stored_as_a_tile_reads_them():
    (sketch,) = cpu_space(from_dag(depthwise(1, 8, 8, 64)), GENERIC_CPU).sketches
    assert len(sketch.program.packed) == 1


def test_a_schedule_by_the_rule_has_no_padding_stage():
    (sketch,) = cpu_space(from_dag(depthwise(1, 28, 28, 64)), GENERIC_CPU).sketches
    assert [b.name for b in blocks(sketch.program.body)] == ["conv", "out"]
    assert Schedule(sketch.program).blocks() == ["conv", "out"]
