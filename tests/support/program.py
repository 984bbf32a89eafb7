"""What tests of program share with others."""

from retune.ir.te import Tensor, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule


def matmul(rows: int = 12, columns: int = 20, depth: int = 8, name: str = "C") -> Tensor:
    a, b = placeholder("A", (rows, depth)), placeholder("B", (depth, columns))
    k = reduce_axis("k", depth)
    return compute(name, (rows, columns), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])


def tiled(s: Schedule) -> None:
    i, j, k = s.loops("C")
    i0, i1 = s.split(i, s.sample_perfect_tile(i, 2))
    j0, j1 = s.split(j, s.sample_perfect_tile(j, 2))
    s.reorder(i0, j0, k, i1, j1)
    s.bind(i0, "group.0")
