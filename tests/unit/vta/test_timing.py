"""Cycles follow from the stream alone; queues run at once, as far as their tokens let them."""

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.targets.vta import timing
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.isa import QUEUES, encode
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.timing import costs, simulate
from tests.support.layers import SMALL, WHOLE
from tests.support.refusals import DECIDED
from tests.support.vta_assembly import assemble

ROW = "size=1x8 stride=8 pad=0,0,0,0"


def _module(text: str) -> VtaModule:
    config = VtaConfig()
    words = encode(assemble(text), config)
    return VtaModule(
        name="by hand", config=config, words=words, uops=np.zeros(1, np.uint32), buffers=()
    )


@pytest.mark.parametrize(
    ("line", "cycles"),
    [
        ("gemm uops=0:4 loops=3x5 dst=0,0 src=0,0 wgt=0,0", 4 * 3 * 5 + 6),
        ("alu.shr uops=0:2 loops=1x7 dst=0,0 src=0,0 imm=8", 2 * 7 + 6),
        ("alu.add uops=0:2 loops=1x7 dst=0,0 src=0,0", 2 * 2 * 7 + 6),
        # Rows of 8 elements of 16 bytes: 16 beats each, behind 16 cycles, and one burst.
        ("load.inp sram=0 dram=0 size=3x8 stride=8 pad=0,0,0,0", 3 * (16 + 16 + 2) + 1),
        ("load.inp sram=0 dram=0 size=3x8 stride=8 pad=1,0,0,0", 3 * (16 + 16 + 2) + 8 + 1),
        # A burst ends at a multiple of 2048 bytes, which are 128 elements.
        ("load.inp sram=0 dram=124 size=1x8 stride=8 pad=0,0,0,0", 16 + 16 + 2 * 2 + 1),
        ("load.wgt sram=0 dram=0 size=1x8 stride=8 pad=0,0,0,0", 16 + 256 + 2 + 1),
        ("store.out sram=0 dram=0 size=2x8 stride=8 pad=0,0,0,0", 2 * (17 + 8 * 3) + 1),
    ],
)
def test_each_instruction_takes_what_the_hardware_takes(line: str, cycles: int):
    assert costs(assemble(line), VtaConfig()).busy.tolist() == [cycles]


def test_many_rows_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch):
    """A stream of long copies takes no more memory than one of them; the cycles are the same."""
    rng = np.random.default_rng(0)
    lines = [
        f"load.inp sram=0 dram={rng.integers(1000)} size={rng.integers(0, 40)}x{rng.integers(0, 9)}"
        f" stride={rng.integers(200)} pad=0,0,0,0"
        for _ in range(50)
    ]
    stream = assemble("\n".join(lines))
    whole = costs(stream, VtaConfig()).busy
    monkeypatch.setattr(timing, "_ROWS", 64)
    assert costs(stream, VtaConfig()).busy.tolist() == whole.tolist()


def test_micro_ops_that_end_before_they_begin_are_refused():
    """They would take back cycles."""
    with pytest.raises(InputError, match=r"instruction 0 \(gemm\): expected .* got 5 to 2"):
        simulate(_module("gemm uops=5:2 loops=9x9 dst=0,0 src=0,0 wgt=0,0"))


def test_queues_run_at_once_without_tokens_and_in_turn_with_them():
    load = f"load.inp sram=0 dram=0 {ROW}"
    gemm = "gemm uops=0:1 loops=1x100 dst=0,0 src=0,0 wgt=0,0"
    apart = simulate(_module(f"{load}\n{gemm}\n"))
    bound = simulate(_module(f"{load} push_next\n{gemm} pop_prev\n"))
    assert apart.course.start[1] < apart.course.end[0]
    assert bound.course.start[1] == bound.course.end[0]
    assert bound.cycles == apart.course.end[0] + 106


def test_reads_of_two_queues_take_turns():
    a, b = f"load.wgt sram=0 dram=0 {ROW}", f"load.acc sram=0 dram=0 {ROW}"
    found = simulate(_module(f"{a}\n{b}\n"))
    assert found.course.start[1] >= found.course.start[0] + 256


def test_the_course_is_deterministic_and_orderly():
    module = lower(WHOLE, DECIDED, SMALL)
    first, second = simulate(module), simulate(VtaModule.from_bytes(module.to_bytes()))
    assert np.array_equal(first.course.end, second.course.end)
    assert first.cycles == second.cycles == first.course.end[-1]
    for queue in ("load", "compute", "store"):
        mine = first.course.queue == QUEUES.index(queue)
        spans = np.stack([first.course.start[mine], first.course.end[mine]], axis=1)
        assert (spans[1:, 0] >= spans[:-1, 1]).all()
        assert first.busy[queue] == (spans[:, 1] - spans[:, 0]).sum() <= first.cycles
    assert first.costs.useful.sum() * SMALL.macs == module.macs


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gemm uops=0:1 loops=1x1 dst=0,0 src=0,0 wgt=0,0 pop_prev\n",
         r"instruction 0 \(gemm\): waits for a token of load that never comes"),
        (f"load.inp sram=0 dram=0 {ROW} push_next\n",
         r"instruction 0 \(load.inp\): gives a token from load to compute that nobody takes"),
        (f"load.inp sram=0 dram=0 {ROW} push_prev\n", r"the queue load has no neighbour"),
        (f"load.inp sram=0 dram=0 {ROW} pop_next push_next\n"
         "gemm uops=0:1 loops=1x1 dst=0,0 src=0,0 wgt=0,0 pop_prev push_prev\n",
         "instruction 0 .*deadlocked"),
        (f"load.inp sram=0 dram=0 {ROW} push_next\n" * 300, "at most 255 tokens for compute"),
        # 600 loads that wait for what is fetched behind them: the queue takes 512.
        (f"load.inp sram=0 dram=0 {ROW} pop_next\n" * 600
         + "gemm uops=0:1 loops=1x1 dst=0,0 src=0,0 wgt=0,0 push_prev\n" * 600, "deadlocked"),
    ],
)  # fmt: skip
def test_streams_that_cannot_end_are_refused(text: str, message: str):
    with pytest.raises(InputError, match=message):
        simulate(_module(text))
