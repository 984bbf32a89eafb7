"""The space of a layer is one as any other: a trace with decisions, limits over all at once."""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import ScheduleError
from retune.ir.expr import const
from retune.ir.stmt import For
from retune.schedule.replay import replay
from retune.schedule.trace import Trace
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.lower import lower
from retune.targets.vta.space import TEMPLATE, program_of, space_of
from retune.targets.vta.template import KNOBS, ORDER, uops
from retune.targets.vta.workload import Convolution, requantized
from tests.support.layers import PLAIN, SMALL, WHOLE
from tests.support.statements import walk


def test_its_decisions_are_the_knobs():
    space = space_of(PLAIN, SMALL)
    candidates = space.sample(32, np.random.default_rng(0))
    assert space.valid(candidates).all()
    found = [space.candidate(candidates, i) for i in range(len(candidates))]
    for candidate in found:
        own = {ORDER} if candidate.sketch != TEMPLATE else set()
        assert {name for name, _ in candidate.decisions} == {*KNOBS, *own}
        assert len(space.locate([candidate])) == 1
    assert len({candidate.sketch for candidate in found}) == 3


def test_traces_replay_from_text():
    space = space_of(PLAIN, SMALL)
    candidate = space.candidate(space.sample(1, np.random.default_rng(0)), 0)
    trace = Trace.from_json(space.trace(candidate).to_json())
    assert str(replay(program_of(PLAIN, SMALL), trace).program) == str(space.instantiate(candidate))


@pytest.mark.parametrize("config", [SMALL, VtaConfig()], ids=lambda config: config.name)
def test_the_core_is_matched_by_its_pattern(config: VtaConfig):
    for sketch in space_of(WHOLE, config).sketches:
        taken = [
            loop
            for loop in walk(sketch.program.body)
            if isinstance(loop, For) and loop.kind == "intrinsic"
        ]
        assert [loop.intrinsic for loop in taken] == [f"vta.gemm{config.block}"]


def test_limits_follow_from_the_memories():
    """As said in words: elements of each thread's tiles, over all rows of options."""
    sketch = space_of(PLAIN, SMALL).sketch(TEMPLATE)
    rows = sketch.rows_of(np.arange(sketch.size))
    knobs = {d.name: d.table[rows[:, i], 0] for i, d in enumerate(sketch.decisions)}
    threads = knobs["oc_nthread"] * knobs["h_nthread"]
    window = (knobs["tile_h"] + 2) * (knobs["tile_w"] + 2)
    inputs = threads * knobs["tile_ci"] * window
    weights = threads * knobs["tile_ci"] * knobs["tile_co"] * 9
    sums = threads * knobs["tile_co"] * knobs["tile_h"] * knobs["tile_w"]
    valid = sketch.valid(rows)
    assert (np.maximum(np.maximum(inputs, weights), sums)[valid] <= 256).all()
    assert (inputs[~valid] > 256).any() and (weights[~valid] > 256).any()


def test_taps_that_write_fewer_rows_have_micro_ops_of_their_own():
    """A tile that ends within a stride: folded otherwise, they take more of the memory."""
    work = Convolution(
        n=2, c=3, h=12, w=2, o=6, kernel=(3, 5), strides=(2, 2), padding=(1, 4, 1, 0),
        transposed=True, steps=requantized(6),
    )  # fmt: skip
    config = VtaConfig(
        log_batch=1, log_block=1, log_uop_buff_size=10, log_inp_buff_size=10,
        log_wgt_buff_size=11, log_acc_buff_size=14,
    )  # fmt: skip
    knobs = {"tile_b": 1, "tile_h": 23, "tile_w": 3, "tile_ci": 3, "tile_co": 2,
             "oc_nthread": 1, "h_nthread": 1}  # fmt: skip
    counted = uops(work, {name: const(value) for name, value in knobs.items()})
    module = lower(work, {name: (value,) for name, value in knobs.items()}, config)
    assert counted == const(len(module.uops))


def test_what_fits_nowhere_is_said():
    with pytest.raises(ScheduleError, match=r"no tiles of it fit the memories of 1x4"):
        space_of(replace(PLAIN, kernel=(17, 17), padding=(8, 8, 8, 8), h=20, w=20), SMALL)
