"""Steps of an accelerator: exact, timed once, and one sentence where their module is not sound."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import ModelError
from retune.targets.vta import step, timing
from retune.targets.vta.isa import STORE, encode
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.step import OffloadedStep, open_offloaded
from retune.targets.vta.workload import OUTPUT
from tests.support.layers import SMALL, WHOLE, arrays_of
from tests.support.refusals import DECIDED
from tests.support.vta_reference import reference


def test_a_step_is_timed_once_however_many_there_are(monkeypatch: pytest.MonkeyPatch):
    """A network has more steps than the simulator remembers; a run does not time them again."""
    timed: list[VtaModule] = []

    def counted(module: VtaModule) -> timing.ModuleTiming:
        timed.append(module)
        return timing.simulate(module)

    monkeypatch.setattr(step, "simulate", counted)
    module = lower(WHOLE, DECIDED, SMALL)
    contents = [replace(module, name=f"step {n}").to_bytes() for n in range(10)]
    steps = [open_offloaded(content) for content in contents]
    arrays = arrays_of(WHOLE, SMALL, np.random.default_rng(0))
    for _ in range(2):
        for each in steps:
            (made,) = each.run([arrays[name] for name in each.inputs])
            assert np.array_equal(made, reference(WHOLE, arrays))
            assert each.seconds > 0
    assert len(timed) == len(steps)
    assert steps[0].outputs == (OUTPUT,)


def test_a_module_that_is_not_sound_is_one_sentence():
    module = lower(WHOLE, DECIDED, SMALL)
    broken = module.instructions.copy()
    store = int(np.flatnonzero(broken["opcode"] == STORE)[0])
    broken["pop_prev"][store] = 0
    step = OffloadedStep(module=replace(module, words=encode(broken, SMALL)))
    arrays = arrays_of(WHOLE, SMALL, np.random.default_rng(0))
    with pytest.raises(ModelError, match=r"accelerator step conv2d: instruction \d+ \("):
        step.run([arrays[name] for name in step.inputs])
    with pytest.raises(ModelError, match=r"accelerator step conv2d: instruction \d+ \("):
        _ = step.seconds
