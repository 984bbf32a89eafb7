"""Streams that are not sound are refused with the number of the instruction."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.targets.vta import isa
from retune.targets.vta.functional import execute
from retune.targets.vta.isa import TOKENS, encode
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import OUTPUT
from tests.support.layers import SMALL, WHOLE, arrays_of
from tests.support.refusals import DECIDED
from tests.support.vta_reference import reference

_CHANNELS = (
    *((1, "pop_prev", 0, "push_next"), (0, "pop_next", 1, "push_prev")),
    *((2, "pop_prev", 1, "push_next"), (1, "pop_next", 2, "push_prev")),
)
"""Who waits, by which field, for whom, who signals by which."""


@pytest.fixture(scope="module")
def module() -> VtaModule:
    return lower(WHOLE, DECIDED, SMALL)


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return arrays_of(WHOLE, SMALL, np.random.default_rng(0))


def _changed(module: VtaModule, number: int, **fields: int) -> VtaModule:
    instructions = module.instructions.copy()
    for name, value in fields.items():
        instructions[name][number] = value
    return replace(module, words=encode(instructions, module.config))


def _first(module: VtaModule, **fields: int) -> int:
    found = np.ones(len(module.instructions), bool)
    for name, value in fields.items():
        found &= module.instructions[name] == value
    return int(np.flatnonzero(found)[0])


def test_a_missing_token_is_found_wherever_it_was(module: VtaModule):
    tried = 0
    for name in TOKENS:
        for number in np.flatnonzero(module.instructions[name]):
            with pytest.raises(InputError, match=r"instruction \d+ \("):
                simulate(_changed(module, int(number), **{name: 0}))
            tried += 1
    assert tried > 50


def test_order_that_no_token_makes_certain_is_refused(
    module: VtaModule, arrays: dict[str, np.ndarray]
):
    """The last wait of each kind and its signal are left out: nothing is left that is unpaired."""
    texts: list[str] = []
    for queue, pop, giver, push in _CHANNELS:
        queues = isa.queue_of(module.instructions)
        waits = np.flatnonzero((module.instructions[pop] == 1) & (queues == queue))
        gives = np.flatnonzero((module.instructions[push] == 1) & (queues == giver))
        assert len(waits) == len(gives)
        broken = _changed(module, int(waits[-1]), **{pop: 0})
        broken = _changed(broken, int(gives[-1]), **{push: 0})
        with pytest.raises(InputError, match=r"instruction \d+ .*a token is missing") as caught:
            execute(broken, arrays)
        texts.append(str(caught.value))
    assert len(set(texts)) == 4


def test_memories_are_not_left(module: VtaModule, arrays: dict[str, np.ndarray]):
    load = _first(module, opcode=isa.LOAD, memory_type=isa.INP)
    with pytest.raises(InputError, match=rf"instruction {load} \(load.inp\): .*inp below 256"):
        execute(_changed(module, load, sram_base=250), arrays)
    with pytest.raises(
        InputError, match=rf"instruction {load} .*elements of one inp buffer in DRAM"
    ):
        execute(_changed(module, load, x_stride=60_000), arrays)
    store = _first(module, opcode=isa.STORE)
    with pytest.raises(InputError, match=rf"instruction {store} .*elements of one out buffer"):
        execute(_changed(module, store, dram_base=module.buffer("data").offset), arrays)
    gemm = _first(module, opcode=isa.GEMM, reset=0)
    with pytest.raises(
        InputError, match=rf"instruction {gemm} \(gemm\): .*below 256; its micro-ops"
    ):
        execute(_changed(module, gemm, src_in=200), arrays)


def test_micro_ops_have_to_be_there(module: VtaModule, arrays: dict[str, np.ndarray]):
    gemm = _first(module, opcode=isa.GEMM, reset=0)
    with pytest.raises(
        InputError, match=rf"instruction {gemm} \(gemm\): expected micro-ops from 0"
    ):
        execute(_changed(module, gemm, uop_begin=5, uop_end=5), arrays)
    with pytest.raises(
        InputError, match=rf"instruction {gemm} .*reads uop {len(module.uops)}, which"
    ):
        execute(_changed(module, gemm, uop_end=len(module.uops) + 1), arrays)


def test_what_nothing_wrote_is_not_read(module: VtaModule, arrays: dict[str, np.ndarray]):
    weights = _first(module, opcode=isa.LOAD, memory_type=isa.WGT)
    size = int(module.instructions["x_size"][weights])
    with pytest.raises(
        InputError, match=r"instruction \d+ \(gemm\): reads wgt \d+, which nothing wrote"
    ):
        execute(_changed(module, weights, x_size=size - 1), arrays)


def test_a_sum_in_the_pipe_is_not_written(module: VtaModule, arrays: dict[str, np.ndarray]):
    gemm = _first(module, opcode=isa.GEMM, reset=0)
    uops = module.uops.copy()
    begin = int(module.instructions["uop_begin"][gemm])
    uops[begin + 1] = uops[begin]
    with pytest.raises(
        InputError, match=rf"instruction {gemm} .*micro-op 1 writes sum .*in the pipe"
    ):
        execute(replace(module, uops=uops), arrays)


def test_what_is_not_stored_is_missed(module: VtaModule, arrays: dict[str, np.ndarray]):
    store = _first(module, opcode=isa.STORE)
    with pytest.raises(InputError, match=r"conv2d: \d+ of \d+ elements of output are not stored"):
        execute(_changed(module, store, x_size=0), arrays)


def test_arrays_have_to_fit(module: VtaModule, arrays: dict[str, np.ndarray]):
    with pytest.raises(InputError, match="expected input bias, got none"):
        execute(module, {n: a for n, a in arrays.items() if n != "bias"})
    with pytest.raises(InputError, match=r"expected data as int8 .*, got int32"):
        execute(module, {**arrays, "data": arrays["data"].astype(np.int32)})
    with pytest.raises(InputError, match="no input more; there are data"):
        execute(module, {**arrays, "more": arrays["data"]})


def test_no_damage_is_anything_but_refused(module: VtaModule, arrays: dict[str, np.ndarray]):
    """Bits turned over anywhere: one sentence, or a result; never another error."""
    rng = np.random.default_rng(0)
    expected = reference(WHOLE, arrays)
    ends = {"refused": 0, "same": 0, "other": 0}
    for _ in range(150):
        words = module.words.copy()
        row, word, bit = (int(rng.integers(n)) for n in (len(words), 2, 64))
        words[row, word] ^= np.uint64(1 << bit)
        try:
            found = execute(replace(module, words=words), arrays)[OUTPUT]
        except InputError:
            ends["refused"] += 1
        else:
            ends["same" if np.array_equal(found, expected) else "other"] += 1
    assert ends["refused"] > 75, ends
