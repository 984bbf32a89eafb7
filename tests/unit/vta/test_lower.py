"""Candidates compute what their layer says, bit for bit, whatever was decided."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from retune.core.errors import InputError, ScheduleError
from retune.ir.interp import run_dag
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.expression import expression
from retune.targets.vta.functional import execute
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.space import TEMPLATE, space_of
from retune.targets.vta.template import KNOBS
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import OUTPUT, Convolution, Operand, Step, requantized
from tests.support.layers import BATCHED, PLAIN, SMALL, WHOLE, arrays_of, naive, random_layer
from tests.support.vta_reference import dense, reference


def _candidates(work: Convolution, config: VtaConfig, count: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    space = space_of(work, config)
    chosen = space.sample(count, rng)
    return [dict(space.candidate(chosen, i).decisions) for i in range(len(chosen))]


def _fits(work: Convolution, config: VtaConfig) -> bool:
    """Whether there are tiles at all: taps of small transposed layers write one or two sums."""
    try:
        return bool(space_of(work, config))
    except ScheduleError:
        return False


@pytest.mark.parametrize("seed", range(40))
def test_any_candidate_of_any_layer_is_exact(seed: int):
    rng = np.random.default_rng(seed)
    config = (SMALL, BATCHED)[seed % 2]
    work = random_layer(rng)
    work = replace(work, steps=WHOLE.steps if work.operands else requantized(5))
    arrays = arrays_of(work, config, rng)
    expected = naive(work, arrays)
    assert np.array_equal(reference(work, arrays), expected), work
    if work.n * work.o * prod(work.out_size) < 3 or (work.transposed and not _fits(work, config)):
        with pytest.raises(ScheduleError, match="no tiles of it fit"):  # a sum meets itself
            space_of(work, config)
        return
    for decisions in _candidates(work, config, 4, seed):
        found = execute(lower(work, decisions, config), arrays)[OUTPUT]
        assert np.array_equal(found, expected), (work, decisions)


@pytest.mark.parametrize(
    "work", [PLAIN, WHOLE, replace(PLAIN, transposed=True, strides=(2, 2))], ids=range(3)
)
def test_the_expression_means_the_same(work: Convolution):
    arrays = arrays_of(work, SMALL, np.random.default_rng(0))
    found = run_dag(expression(work, SMALL), arrays)[OUTPUT]
    assert np.array_equal(found, reference(work, arrays))


def test_a_layer_of_the_default_variant_is_exact():
    work = replace(WHOLE, c=4, h=14, w=14, o=8, strides=(2, 2))
    arrays = arrays_of(work, VtaConfig(), np.random.default_rng(0))
    for decisions in _candidates(work, VtaConfig(), 3):
        found = execute(lower(work, decisions, VtaConfig()), arrays)[OUTPUT]
        assert np.array_equal(found, naive(work, arrays))


def test_sums_beyond_16_million_are_exact():
    work = replace(PLAIN, c=32, o=4, h=3, w=3, steps=())
    config = VtaConfig()
    arrays = {
        n: np.full_like(a, -128)
        for n, a in arrays_of(work, config, np.random.default_rng(0)).items()
    }
    arrays["data"].reshape(-1)[::7] = 127
    (decisions,) = _candidates(work, config, 1)
    assert np.array_equal(
        execute(lower(work, decisions, config), arrays)[OUTPUT], naive(work, arrays)
    )


def test_dense_layers_are_windows_of_one():
    work = dense(
        c=3, o=4, operands=(Operand(name="bias", reach="channel"),),
        steps=(Step(op="add", operand="bias"), *requantized(4)),
    )  # fmt: skip
    arrays = arrays_of(work, SMALL, np.random.default_rng(0))
    for decisions in _candidates(work, SMALL, 4):
        found = execute(lower(work, decisions, SMALL), arrays)[OUTPUT]
        assert np.array_equal(found, naive(work, arrays))


def test_limits_are_those_of_the_memories():
    """Whatever the space holds fits; what it leaves out for its memories does not."""
    space = space_of(WHOLE, SMALL)
    sketch = space.sketch(TEMPLATE)
    rows = sketch.rows_of(np.arange(sketch.size))
    valid = sketch.valid(rows)
    assert 20 < valid.sum() < len(rows)
    arrays = arrays_of(WHOLE, SMALL, np.random.default_rng(0))
    refused: list[str] = []
    for row in rows[~valid][:: max(1, int((~valid).sum()) // 40)]:
        with pytest.raises((InputError, ScheduleError)) as caught:
            execute(lower(WHOLE, sketch.decided(row), SMALL), arrays)
        refused.append(str(caught.value))
    assert any("below 256" in text or "micro-op" in text or "expected" in text for text in refused)
    for row in rows[valid][::7]:
        module = lower(WHOLE, sketch.decided(row), SMALL)
        assert len(module.uops) <= SMALL.uop_depth


def test_virtual_threads_hide_loads():
    work = replace(PLAIN, c=8, o=8, h=14, w=14)
    config = VtaConfig()
    alone = {"tile_b": 1, "tile_h": 7, "tile_w": 14, "tile_ci": 2, "tile_co": 4,
             "oc_nthread": 1, "h_nthread": 1}  # fmt: skip
    times = {}
    for threads in (1, 2):
        decided = {name: (value,) for name, value in {**alone, "oc_nthread": threads}.items()}
        times[threads] = simulate(lower(work, decided, config))
    assert times[2].cycles < 0.9 * times[1].cycles


def test_decisions_that_do_not_divide_are_refused():
    decided = dict.fromkeys(KNOBS, (1,))
    with pytest.raises(ScheduleError, match="no value for tile_h"):
        lower(PLAIN, {n: v for n, v in decided.items() if n != "tile_h"}, SMALL)
    with pytest.raises(ScheduleError, match="no order 24 of tiles; there are 24"):
        lower(PLAIN, {**decided, "order": (24,)}, SMALL)
    with pytest.raises(ScheduleError, match="tiles of 4 for 1 threads do not divide 6"):
        lower(PLAIN, {**decided, "tile_h": (4,)}, SMALL)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"padding": (3, 0, 0, 0)}, r"padding \(3, 0, 0, 0\) smaller than the window"),
        ({"kernel": (9, 9)}, "a window that fits into the image"),
        ({"dilation": (16, 1), "padding": (16, 1, 16, 1), "h": 40}, "at most 15 rows and columns"),
        ({"kernel": (1, 40), "padding": (0, 16, 0, 0), "w": 40}, "at most 15 rows and columns"),
        ({"kernel": (17, 3), "transposed": True, "padding": (0, 0, 0, 0)}, "at most 15 rows"),
        ({"steps": (Step(op="shr"),)}, "either an immediate or an operand"),
        ({"steps": (Step(op="add", imm=1 << 15),)}, "an immediate of 16 bits, got 32768"),
        ({"steps": (Step(op="add", operand="bias"),)}, "among .*, got 'bias'"),
        ({"transposed": True, "dilation": (2, 2)}, r"dilation \(1, 1\) of a transposed one"),
    ],
)
def test_layers_that_it_does_not_compute_are_refused(change: dict[str, object], message: str):
    with pytest.raises(InputError, match=message):
        replace(PLAIN, **change)  # type: ignore[arg-type]


def test_a_candidate_that_no_instruction_can_say_is_refused():
    """A search goes on with others."""
    decided = {**dict.fromkeys(KNOBS, (1,)), "tile_w": (1 << 14,)}
    work = replace(PLAIN, kernel=(1, 1), padding=(0, 0, 0, 0), w=1 << 14)
    with pytest.raises(ScheduleError, match="conv2d: micro-op 256: expected dst from 0 to 255"):
        lower(work, decided, SMALL)


def test_a_candidate_gives_the_same_module_always():
    (decisions,) = _candidates(WHOLE, SMALL, 1)
    a, b = (lower(WHOLE, decisions, SMALL) for _ in range(2))
    assert a.to_bytes() == b.to_bytes()
    assert VtaModule.from_bytes(a.to_bytes()).key == b.key
