"""Units are executed, and refused, as their instructions would be one by one."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.targets.vta import units
from retune.targets.vta.copies import Copies
from retune.targets.vta.functional import execute
from retune.targets.vta.isa import ALU, LOAD, STORE
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import OUTPUT
from tests.support.layers import SMALL, WHOLE, arrays_of
from tests.support.refusals import DECIDED


@pytest.fixture(scope="module")
def module() -> VtaModule:
    return lower(WHOLE, {**DECIDED, "tile_ci": (2,), "tile_h": (2,)}, SMALL)


def _units(module: VtaModule) -> units.Units:
    return units.units_of(module.instructions, Copies.of(module), simulate(module).course)


def test_every_instruction_is_in_one_unit_in_the_order_of_its_queue(module: VtaModule):
    found = _units(module)
    course = simulate(module).course
    seen = np.concatenate([found.of(unit) for unit in found.units])
    assert sorted(seen.tolist()) == list(range(len(module.instructions)))
    for queue in range(3):
        mine = seen[course.queue[seen] == queue]
        assert (np.diff(mine) > 0).all()


def test_what_is_side_by_side_is_one_unit_and_tokens_part_units(module: VtaModule):
    found = _units(module)
    stream = module.instructions
    for opcode in (LOAD, STORE, ALU):
        assert any(unit.opcode == opcode and unit.length > 1 for unit in found.units), opcode
    for unit in found.units:
        numbers = found.of(unit)
        for name in ("pop_prev", "pop_next"):
            assert not stream[name][numbers[1:]].any()
        for name in ("push_prev", "push_next"):
            assert not stream[name][numbers[:-1]].any()


def test_damaged_streams_end_as_if_instructions_were_executed_one_by_one(
    module: VtaModule, monkeypatch: pytest.MonkeyPatch
):
    rng = np.random.default_rng(1)
    arrays = arrays_of(WHOLE, SMALL, rng)
    damaged = [module]
    for _ in range(80):
        words = module.words.copy()
        row, word, bit = (int(rng.integers(n)) for n in (len(words), 2, 64))
        words[row, word] ^= np.uint64(1 << bit)
        damaged.append(replace(module, words=words))
    together = [_end(each, arrays) for each in damaged]
    monkeypatch.setattr(units, "_begins", lambda *given: np.arange(len(given[-1])))
    assert together == [_end(each, arrays) for each in damaged]
    assert len({type(end) for end in together}) == 2  # some were refused, some were not


def _end(module: VtaModule, arrays: dict[str, np.ndarray]) -> bytes | str:
    """The output, or who was refused and why."""
    try:
        return execute(module, arrays)[OUTPUT].tobytes()
    except InputError as error:
        return str(error)


def test_an_empty_stream_lacks_its_end(module: VtaModule):
    empty = replace(module, words=module.words[:0])
    with pytest.raises(InputError, match="expected finish as its last instruction"):
        execute(empty, arrays_of(WHOLE, SMALL, np.random.default_rng(0)))
