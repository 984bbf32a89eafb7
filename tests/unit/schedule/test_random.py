"""Whatever legal primitives are applied, the program keeps its meaning and its invariants."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.ir.stmt import from_dag
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from tests.support.dags import random_dag
from tests.support.oracle import assert_items_agree, assert_same_meaning
from tests.support.properties import chooser, quick, seeded
from tests.support.random_schedules import scramble, somewhere


@quick(40)
@given(data=st.data())
def test_random_schedules_keep_the_meaning(data: st.DataObject):
    choose = chooser(data)
    dag = random_dag(choose)
    s = Schedule(from_dag(dag), somewhere(dag, choose))
    scramble(s, choose, 8, verify)
    assert_same_meaning(dag, s.program)
    assert_items_agree(dag, s.program)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200))
def test_many_random_schedules_keep_the_meaning(seed: int):
    choose = seeded(seed)
    dag = random_dag(choose)
    s = Schedule(from_dag(dag), somewhere(dag, choose))
    scramble(s, choose, 8, verify)
    assert_same_meaning(dag, s.program)
    assert_items_agree(dag, s.program)


def test_random_schedules_use_every_primitive():
    used: Counter[str] = Counter()
    for seed in range(400):
        choose = seeded(seed)
        dag = random_dag(choose)
        s = Schedule(from_dag(dag), somewhere(dag, choose))
        scramble(s, choose, 8, lambda _: None)
        used.update(step.primitive for step in s.trace.steps)
    expected = {
        "split", "fuse", "reorder", "unroll", "vectorize", "bind", "compute_inline",
        "cache_write", "compute_at", "decompose_reduction", "pack", "rfactor",
        "tile", "parallel", "annotate", "cache_read", "reverse_compute_at",
        "sample_compute_location", "tensorize",
    }  # fmt: skip
    assert expected <= set(used), expected - set(used)
    assert min(used.values()) >= 5, used
