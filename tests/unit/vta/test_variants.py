"""Any variant, any layer: what fits is exact, what does not is refused before it is lowered.

The layers have strides, dilation, windows wider than their step and maps larger than the memories;
the variants batches, blocks of two channels to thirty-two, and memories that are all but full.
"""

from dataclasses import replace

import numpy as np
import pytest

from retune.core.errors import InputError, ScheduleError
from retune.schedule.space import Space
from retune.targets.vta.assembly import disassemble
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.functional import execute
from retune.targets.vta.isa import TOKENS, encode
from retune.targets.vta.lower import lower
from retune.targets.vta.module import VtaModule
from retune.targets.vta.space import space_of
from retune.targets.vta.timing import simulate
from retune.targets.vta.workload import OUTPUT, Convolution, requantized
from tests.support.layers import WHOLE, arrays_of
from tests.support.vta_assembly import assemble
from tests.support.vta_reference import reference


def variant(rng: np.random.Generator) -> VtaConfig:
    """One of small memories: limits are met by small layers."""
    while True:
        sizes = {
            f"log_{memory}_buff_size": int(rng.integers(low, low + 6))
            for memory, low in (("uop", 7), ("inp", 8), ("wgt", 9), ("acc", 10))
        }
        try:
            return VtaConfig(
                target=str(rng.choice(["sim", "tsim", "zcu104"])),
                log_batch=int(rng.integers(0, 3)),
                log_block=int(rng.integers(1, 6)),
                **sizes,
            )
        except InputError:
            continue


def layer(rng: np.random.Generator) -> Convolution:
    """One that the accelerator computes, whatever memories it takes."""
    while True:
        kernel = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
        transposed = bool(rng.random() < 0.25)
        dilation = (1, 1) if transposed else (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
        reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)] * 2
        top, left, bottom, right = (int(rng.integers(0, most + 1)) for most in reach)
        operands = tuple(o for o in WHOLE.operands if rng.random() < 0.5)
        named = {None, *(operand.name for operand in operands)}
        steps = tuple(s for s in WHOLE.steps if {s.operand, s.to} <= named)
        try:
            return Convolution(
                n=int(rng.integers(1, 4)), c=int(rng.integers(1, 6)), o=int(rng.integers(1, 7)),
                h=int(rng.integers(1, 19)), w=int(rng.integers(1, 19)),
                kernel=kernel, strides=(int(rng.integers(1, 4)), int(rng.integers(1, 4))),
                padding=(top, left, bottom, right), dilation=dilation, transposed=transposed,
                operands=operands, steps=steps or requantized(6),
            )  # fmt: skip
        except InputError:
            continue


def check(seed: int) -> int:
    """A few candidates of a random layer on a random variant; their number."""
    rng = np.random.default_rng(seed)
    config, work = variant(rng), layer(rng)
    try:
        space = space_of(work, config)
    except ScheduleError:
        return 0
    arrays = arrays_of(work, config, rng)
    expected = reference(work, arrays)
    candidates = [*_untuned(space), *_sampled(space, 2, rng)]
    for decided in candidates:
        module = lower(work, decided, config)
        where = (seed, config.name, work, decided)
        assert len(module.uops) <= config.uop_depth, where
        assert np.array_equal(execute(module, arrays)[OUTPUT], expected), where
        _travels(module)
        _misses_no_token(module, rng)
    return len(candidates)


def _untuned(space: Space) -> list[dict[str, tuple[int, ...]]]:
    rows = [(sketch, sketch.untuned) for sketch in space.sketches]
    return [dict(sketch.decided(row)) for sketch, row in rows if row is not None]


def _sampled(
    space: Space, count: int, rng: np.random.Generator
) -> list[dict[str, tuple[int, ...]]]:
    chosen = space.sample(count, rng)
    return [dict(space.candidate(chosen, i).decisions) for i in range(len(chosen))]


def _travels(module: VtaModule) -> None:
    """Bits, bytes and text lead back to the same instructions."""
    again = VtaModule.from_bytes(module.to_bytes())
    assert np.array_equal(again.instructions, module.instructions)
    assert np.array_equal(assemble(disassemble(again.instructions)), module.instructions)
    assert simulate(again).cycles == simulate(module).cycles


def _misses_no_token(module: VtaModule, rng: np.random.Generator) -> None:
    """Without any one of its tokens the stream cannot end, or leaves one behind."""
    name = str(rng.choice(TOKENS))
    having = np.flatnonzero(module.instructions[name])
    if not len(having):
        return
    broken = module.instructions.copy()
    broken[name][rng.choice(having)] = 0
    with pytest.raises(InputError, match=r"^instruction \d+ \("):
        simulate(replace(module, words=encode(broken, module.config)))


def test_candidates_of_any_variant_are_exact():
    assert sum(check(seed) for seed in range(6)) > 6


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 50))
def test_candidates_of_very_many_variants_are_exact(first: int):
    assert sum(check(1000 + seed) for seed in range(first, first + 50)) > 50
