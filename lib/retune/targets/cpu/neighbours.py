"""Sums over neighbours along the last axis on CPU devices: local response normalisation.

Each result adds up a few elements to its left and right, so vectors along that axis overlap. What
they read is data with zeros at both ends, after some arithmetic (squares). Written out as a whole
it would go to memory and back; here a work-group makes it for a few rows at a time, in an array of
its own. Rules: `padded_neighbours` says where it is done, `schedule_neighbours` does it.
"""

from dataclasses import dataclass

from retune.core.dims import is_fixed
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import const
from retune.ir.stmt import PEEL, Block, Program
from retune.schedule.access import Accesses, AffineAccess
from retune.schedule.schedule import Schedule
from retune.targets.fusion import padding_of, results_of
from retune.targets.tiling import fuse_all, unroll_all

_LEAST_ROWS = 4
"""Rows that are made at a time, where there are so many: a vector that overlaps what two stores
have just written waits for both (measured on four layers: one row takes 1.1 to 1.7 times as long as
four, and eight take as long)."""
_MOST_ROWS = 16
_MOST_NEIGHBOURS = 16
"""Neighbours in a sum at most: they are written out."""
_MOST_BYTES = 1 << 13
"""Bytes of a row at most: a few of them fit the nearest cache, and a thread's stack."""
_LEAST_LANES = 4


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The structural choices of one sketch."""

    lanes: int

    @property
    def name(self) -> str:
        """Name of the sketch."""
        return f"cpu.v{self.lanes}.neighbours"


def padded_neighbours(program: Program, block: Block, lanes: int) -> Block | None:
    """The stage of padded data along whose last axis the reduction adds up; None if it does not.

    It is the only operand, nothing else reads it, and the results of a row are whole vectors.
    """
    stage = Accesses.of(block, program.body)
    paddings = padding_of(program, block)
    if block.reducer is None or len(block.indices) < 2 or len(stage.operands) != 1:
        return None
    (operand,) = stage.operands
    paddings = [padding for padding in paddings if padding.buffer == operand.load.buffer]
    if not paddings or block.value != operand.load or not _is_sliding_window(stage, operand):
        return None
    read, results = (evaluate_int(b.shape[-1]) for b in (operand.load.buffer, block.buffer))
    if not is_fixed(read):
        return None
    size = operand.load.buffer.dtype.itemsize * read
    few = 0 < read - results < _MOST_NEIGHBOURS and size <= _MOST_BYTES
    return paddings[0] if few and lanes >= _LEAST_LANES and results % lanes == 0 else None


def _is_sliding_window(stage: Accesses, operand: AffineAccess) -> bool:
    """Whether it reads the result's own row, at the result's index plus one more variable."""
    own = operand.load.indices[:-1] == stage.block.indices[:-1]
    return own and stage.channel in operand.last and len(operand.last) == 2 and operand.adjacent


def schedule_neighbours(s: Schedule, name: str, plan: Neighbours) -> None:
    """The sums `name` inside the loops of the stage that reads them element by element.

    Work-groups take rows; the padded data of some of them is made at a time.
    """
    out, lanes = results_of(s, name), plan.lanes
    padded = padded_neighbours(s.program, s.block(name), lanes)
    assert padded is not None, "the rule was asked whether it fits"
    loops = s.loops(out)
    rows = [n for n in loops[:-1] if s.several(n)] or loops[-2:-1]
    sizes = s.sample_tile(rows[-1], 3, _MOST_ROWS)
    least = min(_LEAST_ROWS, s.likely(rows[-1]))
    s.require(const(least) <= sizes[-1], "sums wait for what has just been stored")
    outer, tile, row = s.split(rows[-1], sizes, "shift")
    vectors, lane = s.split(loops[-1], [lanes])
    s.reorder(*rows[:-1], outer, tile, row, vectors, lane)
    s.compute_at(name, vectors)
    s.compute_at(padded.name, tile, "private")
    s.bind(fuse_all(s, [*rows[:-1], outer]), "group.0")
    s.vectorize(lane)
    _sum_up(s, name)
    peeled, _, vector = s.split(s.loops(padded.name)[-1], [1, lanes], "shift")
    s.vectorize(vector)
    s.annotate(peeled, PEEL, "ends")


def _sum_up(s: Schedule, name: str) -> None:
    """A vector of sums in a register, its neighbours written out."""
    along = str(s.block(name).indices[-1])
    taps = [loop for loop in s.loops(name) if s.loop(loop).reduce]
    s.reorder(*taps, along)
    unroll_all(s, taps)
    s.vectorize(along)
