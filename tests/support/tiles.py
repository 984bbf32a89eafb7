"""What tests of tiles share with others."""

from retune.intrinsics import intrinsic
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.schedule import Schedule


def tiled(
    dag: Dag, rows: int, columns: int, *, words: int = 16, high: int = 16, pack: bool = True,
    name: str = "tile8",
) -> Schedule:  # fmt: skip
    """Blocks of `rows` by `columns` tiles, `high` rows each, over steps of so many packs."""
    s = Schedule(from_dag(dag, "net"))
    out = s.cache_write("y")
    i, j = s.loops(out)
    far, row = s.split(i, [rows * high])
    strip, column = s.split(j, [columns * 16])
    s.reorder(far, strip, row, column)
    s.compute_at("y", strip)
    s.bind(far, "group.0")
    s.vectorize(s.split(column, [16])[1])
    deep, *inside = s.split("y.k", [words, intrinsic(name).pack])
    blocks, one = s.split("y.i", [high])
    strips, lane = s.split("y.j", [16])
    s.reorder(deep, blocks, strips, one, inside[0], lane, inside[1])
    for loop in (blocks, strips):
        s.unroll(loop)
    if pack:
        s.pack("w")
    s.tensorize(one, name)
    return s
