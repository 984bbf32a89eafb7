"""Which constants are fetched ahead of their use, and where that is asked for."""

from retune.codegen.lower import lower
from retune.codegen.streams import AHEAD_BYTES
from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.cpu import cpu_space
from retune.schedule.estimate import default_candidate
from tests.dags import conv2d, depthwise


def text_of(dag: Dag) -> str:
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    return lower(space.instantiate(default_candidate(space, GENERIC_CPU))).text


def test_weights_larger_than_the_first_caches_are_fetched_once_for_each_line():
    """The copies of the loop for borders read under tests, and do not fetch."""
    lines = text_of(conv2d(1, 8, 8, 64, 64)).splitlines()
    reads = [line for line in lines if line.strip().startswith("const float16 k_")]
    fetches = [line.strip() for line in lines if line.strip().startswith("AHEAD(k ")]
    assert fetches and len(fetches) == len(reads)
    assert all(f"+ {AHEAD_BYTES // 4});" in fetch for fetch in fetches)
    assert lines.count("#ifndef AHEAD") == 1


def test_small_constants_and_data_are_not_fetched():
    assert "AHEAD" not in text_of(depthwise(1, 16, 16, 64))
    assert "AHEAD" not in text_of(conv2d(1, 32, 32, 16, 16))
