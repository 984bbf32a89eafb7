"""Short last axes: the colours of an image, the groups of a channel shuffle.

`y[..., i, c] = x[..., c, i]` with few `c` has no vectors along `c`, and along `i` its results lie
apart. Along both together they are adjacent, and what they read are runs of each row: codegen
reads those by vectors and shuffles them (`codegen.passes.gathers`).

What reads a short last axis as it lies, as the border around an image of few channels does, has
vectors along both axes as well: pixels with their channels are one run.
"""

from math import lcm

from retune.core.dims import is_fixed, least
from retune.ir.expr import Load, const, loads, variables
from retune.ir.selections import position_masks
from retune.schedule.access import AffineAccess
from retune.schedule.schedule import Schedule

_LEAST_RUN = 4
"""Steps of `i` in one piece of work at least: shorter vectors are not worth a shuffle."""
_LEAST_TILES = 8
"""Such pieces along `before` at least, where those at both ends are done by elements."""
_MOST_RESULTS = 128
"""Results of one piece of work at most: they are written out."""


def interweaves(s: Schedule, name: str, before: str, last: str, lanes: int) -> bool:
    """Whether the stage moves data in this way, `last` is short, and `before` fills vectors."""
    value, short = s.block(name).value, s.extent(last)
    if not isinstance(value, Load) or not is_fixed(short) or not 1 < short < lanes:
        return False
    steps = _steps(short, lanes)
    if short * steps > _MOST_RESULTS or least(s.extent(before)) < steps:
        return False
    return AffineAccess(value).stride(s.loop(before).var) == const(1)


def runs_on(s: Schedule, name: str, before: str, last: str, lanes: int) -> bool:
    """Whether the stage reads and writes elements of `before` one after the other in memory, `last`
    is short, and there are vectors enough beside those at the ends, where masks are not settled.

    Results that others see may lie otherwise: they are none.
    """
    block, short = s.block(name), s.extent(last)
    axes = s.loop(before).var, s.loop(last).var
    if block.buffer in s.program.outputs or not is_fixed(short) or not 1 < short < lanes:
        return False
    steps = _steps(short, lanes)
    if short * steps > _MOST_RESULTS or least(s.extent(before)) < _LEAST_TILES * steps:
        return False
    if any(axes[1] in variables(mask) for mask in position_masks(block.value)):
        return False
    accesses = [AffineAccess(x) for x in (*loads(block.value), Load(block.buffer, block.indices))]
    return all(
        [access.stride(axis) for axis in axes] in ([const(short), const(1)], [const(0)] * 2)
        for access in accesses
    )


def schedule_interwoven(s: Schedule, before: str, last: str, lanes: int) -> str:
    """Vectors over the two loops together; gives the name of the loop around them."""
    far, near = s.split(before, [_steps(s.extent(last), lanes)], "shift")
    vectors, lane = s.split(s.fuse(near, last), [lanes])
    s.unroll(vectors)
    s.vectorize(lane)
    return far


def _steps(short: int, lanes: int) -> int:
    """Steps of `before` whose results are whole vectors."""
    return lcm(short, lanes, _LEAST_RUN * short) // short
