"""Tilings: a description of which axis is on which level of a device.

A device class has levels, from the outermost to the innermost, and each of them says what runs its
loops. A `Tiling` writes the loop nest down as it will stand: for each level, the axes that have a
loop there, in order. All else follows from it: into how many parts an axis is split, which sizes
are sampled, and the order of the loops. For example the register tile of a CPU:

    GROUP     row  column  channel      work-groups
    BLOCK     channel  row  column      a block of tiles that share what is near
    REGISTER  row  column  channel      accumulators, written out
    LANE      channel                   vector lanes
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul

from retune.core.dims import is_fixed, least
from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, const
from retune.ir.stmt import LoopKind
from retune.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a device class."""

    name: str
    runs: tuple[LoopKind, ...]
    """What its loops become: all of them one kind, or one after the other, innermost first."""
    fixed: bool = False
    """Whether its loops have the size of their axis's unit, and no sampled one."""


GROUP = Level("group", ("group.0", "group.1", "group.2"))
VIRTUAL = Level("virtual thread", ("vthread",))
ITEM = Level("item", ("local.0", "local.1", "local.2"))
BLOCK = Level("block", ("serial",))
REGISTER = Level("register", ("unroll",))
ROW = Level("row", ("serial",), fixed=True)
"""Rows of a tile that an instruction makes."""
LANE = Level("lane", ("vectorize",), fixed=True)
PACK = Level("pack", ("intrinsic",))
"""What an instruction replaces in each lane."""

CPU = (GROUP, BLOCK, REGISTER, ROW, LANE)
"""A core takes work-groups of one item, which stay in its caches by blocks."""
GPU = (GROUP, VIRTUAL, ITEM, REGISTER, LANE)
"""An item runs its virtual threads side by side, with registers for all of them."""


@dataclass(frozen=True, slots=True)
class TiledAxis:
    """An axis that is tiled: its loop, and the largest size of its innermost sampled level."""

    loop: str
    most: int
    unit: int = 1
    """Size of its part on a fixed level, if there is one."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """A loop nest by levels.

    An axis is split into as many parts as it has positions in the nest. Tail tiles are moved back,
    so that any size will do.
    """

    levels: tuple[Level, ...]
    """Those of the device class."""
    nest: Mapping[Level, Sequence[TiledAxis]]
    """For each level the axes with a loop there, outermost first."""
    axes: Sequence[TiledAxis]
    """All of them, in the order in which sizes are sampled."""

    def __post_init__(self) -> None:
        positions = [self.levels.index(level) for level in self.nest if level in self.levels]
        if len(positions) != len(self.nest) or positions != sorted(positions):
            raise ScheduleError(
                f"a tiling over {_names(self.nest)}; levels are {_names(self.levels)}"
            )
        if len(self.nest.get(LANE, ())) > 1:
            raise ScheduleError(f"expected lanes of one axis, got {len(self.nest[LANE])}")
        for axis in self.axes:
            fixed = [level for level in self.levels_of(axis) if level.fixed]
            if len(fixed) != (axis.unit > 1):
                raise ScheduleError(f"{axis.loop}: a unit of {axis.unit} on {_names(fixed)}")
        if missing := [a.loop for a in self.axes if not self.levels_of(a)]:
            raise ScheduleError(f"a tiling without a level for {', '.join(missing)}")

    def levels_of(self, axis: TiledAxis) -> list[Level]:
        """The levels on which the axis has a loop, outermost first."""
        return [level for level, axes in self.nest.items() if axis in axes]

    def apply(
        self,
        s: Schedule,
        leading: Sequence[str] = (),
        *,
        sampled: bool = True,
        tail: str = "shift",
        units: int = 1,
    ) -> "TiledLoops":
        """The loops split and in the order of the nest, inside the loops `leading`.

        Sizes are sampled, or else all of one element, or unit. `tail` is that of axes whose extent
        depends on sizes, see `schedule.loops.TAILS`; others have `shift`. The outermost loop is for
        so many `units`, see `Schedule.split`.
        """
        first = next(iter(self.nest.values()))[0]
        parts = {
            axis.loop: self._split(s, axis, tail, units if axis is first else 1, sampled=sampled)
            for axis in self.axes
        }
        loops = {
            level: [parts[axis.loop][level] for axis in axes] for level, axes in self.nest.items()
        }
        s.reorder(*leading, *(loop for level in loops.values() for loop in level))
        return TiledLoops(s, loops)

    def _split(
        self, s: Schedule, axis: TiledAxis, tail: str, units: int, *, sampled: bool
    ) -> dict[Level, str]:
        levels = self.levels_of(axis)
        fixed = [const(axis.unit)] if axis.unit > 1 else []
        count = len(levels) - len(fixed)
        sizes: list[Expr] = [const(1)] * (count - 1)
        if sampled:
            sizes = s.sample_tile(axis.loop, count, axis.most, unit=axis.unit)
        if axis.unit > 1 and not is_fixed(extent := s.extent(axis.loop)):
            # Vectors of a tile that is longer than the axis run by elements.
            tile = reduce(mul, sizes, const(axis.unit))
            s.prefer(tile <= max(axis.unit, least(extent)))
        tail = sized_tail(s, axis.loop, tail)
        return dict(zip(levels, s.split(axis.loop, [*sizes, *fixed], tail, units), strict=True))


@dataclass(frozen=True, slots=True)
class TiledLoops:
    """The loops of a tiling, by level."""

    s: Schedule
    loops: Mapping[Level, Sequence[str]]

    def __getitem__(self, level: Level) -> list[str]:
        """The loops on a level, outermost first."""
        return list(self.loops.get(level, ()))

    def run(self, *levels: Level) -> None:
        """The loops on these levels run as the levels say."""
        for level in levels:
            loops = self[level]
            for loop in loops if len(level.runs) == 1 else []:
                run_as(self.s, loop, level.runs[0])
            for loop, kind in zip(reversed(loops), level.runs, strict=False):
                if len(level.runs) > 1:
                    run_as(self.s, loop, kind)

    def size(self, *levels: Level) -> Expr:
        """Iterations of the loops on these levels."""
        return extent_of(self.s, [loop for level in levels for loop in self[level]])


def run_as(s: Schedule, loop: str, kind: LoopKind) -> None:
    """The loop run as that kind, by the primitive for it."""
    match kind:
        case "unroll":
            s.unroll(loop)
        case "vectorize":
            s.vectorize(loop)
        case "serial":
            pass
        case _:
            s.bind(loop, kind)


def sized_tail(s: Schedule, loop: str, tail: str) -> str:
    """The tail of a split into tiles: that one, if the loop's extent depends on sizes."""
    return "shift" if is_fixed(s.extent(loop)) else tail


def fuse_all(s: Schedule, loops: Sequence[str]) -> str:
    """The loops, each of them all that the one before holds, as one."""
    whole, *others = loops
    for loop in others:
        whole = s.fuse(whole, loop)
    return whole


def unroll_all(s: Schedule, loops: Iterable[str]) -> None:
    """Every one of the loops written out."""
    for loop in loops:
        s.unroll(loop)


def made_loops(s: Schedule, stage: str) -> list[str]:
    """The stage's own loops over what it makes."""
    made = [n for n in s.loops(stage) if not s.loop(n).reduce]
    return made[-len(s.block(stage).indices) :]


def write_out(s: Schedule, stage: str) -> None:
    """The stage's own loops over what it makes written out, the last one as lanes."""
    *own, last = made_loops(s, stage)
    unroll_all(s, own)
    s.vectorize(last)


def extent_of(s: Schedule, loops: Sequence[str]) -> Expr:
    """The product of the loops' extents."""
    total: Expr = const(1)
    for loop in loops:
        total = total * s.loop(loop).extent
    return total


def _names(levels: Sequence[Level] | Mapping[Level, object]) -> str:
    return ", ".join(level.name for level in levels) or "no level"
