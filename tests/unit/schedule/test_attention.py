"""Attention as one nest over the rows of a group, and as the call that it becomes."""

from dataclasses import replace

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.dtypes import FLOAT32
from retune.core.errors import CodegenError, ScheduleError
from retune.intrinsics.attention import MMA
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate
from retune.targets.gpu.space import gpu_space
from tests.support.attention import ATTENDING, attention_dag
from tests.support.dags import half_product
from tests.support.oracle import assert_same_meaning

_SIZES = (1, 1, 1, 16, 1)


def whole(dag: Dag) -> Schedule:
    s = Schedule(from_dag(dag))
    s.restate(dag.outputs[0].name, "attention", _SIZES)
    return s


@pytest.mark.parametrize(
    "dag",
    [
        attention_dag(19, 21),
        attention_dag(17, 20, causal=3),
        attention_dag(18, 18, causal=0, bias=(2, 1, 1, 18)),
        attention_dag(9, 33, bias=(1, 2, 9, 33)),
        attention_dag(18, 21, causal=1, dtype=FLOAT32),
    ],
    ids=["plain", "causal", "causal with a bias", "bias", "TF32"],
)
def test_the_form_keeps_the_meaning(dag: Dag):
    s = whole(dag)
    verify(s.program)
    assert_same_meaning(dag, s.program)


def test_what_is_no_attention_is_refused():
    s = Schedule(from_dag(half_product(16, 32, 32)))
    with pytest.raises(ScheduleError, match="expected a stage that"):
        s.restate(s.blocks()[-1], "attention", _SIZES)
    with pytest.raises(ScheduleError, match="expected 5 positive sizes"):
        whole(attention_dag(16, 16)).restate("T_attention", "attention", [1])


def test_rows_that_are_no_neighbours_are_refused():
    dag = attention_dag(16, 16, width=12)
    with pytest.raises(CodegenError, match="8 elements or a multiple apart"):
        lower(whole(dag).program, GPU)


def test_a_group_attends(golden: object):
    s = whole(attention_dag(40, 40, causal=0))
    source = lower(s.program, replace(GPU, offers=(MMA,)))
    assert source.kernels[0].intrinsics == (MMA,)
    assert source.text == golden


def test_work_is_counted_as_it_is_stated():
    (launch,) = lower(whole(attention_dag(16, 16)).program, GPU).launches
    assert launch.flops > 2 * 2 * 16 * 16 * (2 * 16 + 2 * 32)


@pytest.mark.parametrize(("rows", "chosen"), [(197, "2x1x2x32"), (4096, "2x2x2x32")])
def test_tiles_grow_with_the_rows(rows: int, chosen: str):
    space = gpu_space(from_dag(attention_dag(rows, rows, 64, 64)), ATTENDING)
    assert default_candidate(space, ATTENDING).sketch == f"gpu.attention.{chosen}"


def test_what_follows_is_spread_over_items():
    (made,) = attention_dag(64, 64).outputs
    y = compute("y", made.shape, lambda *i: made[i] * 2.0, [made])
    space = gpu_space(from_dag(Dag((y,))), ATTENDING)
    program = space.instantiate(default_candidate(space, ATTENDING))
    assert all(launch.local_size[0] >= 128 for launch in lower(program, GPU).launches)


def test_a_device_without_it_has_other_rules():
    space = gpu_space(from_dag(attention_dag(16, 16)), replace(ATTENDING, instructions=()))
    assert not [s.name for s in space.sketches if "attention" in s.name]
