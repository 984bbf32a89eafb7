"""A matrix product in seven steps: what each scheduling primitive gains.

    .venv/bin/python examples/07_schedule_ladder.py [SIZE]

Each step is a schedule function that adds one idea to the step before it. All of them compute the
same tensor expression; each result is compared with numpy's before it is timed. The times in the
comments are of one core of an AMD EPYC (AVX-512) through PoCL, 512 x 512, float32, in a run beside
other work; the program prints those of your machine.
"""

import sys

import numpy as np

import retune
from retune.ir.te import Tensor, compute, placeholder, reduce_axis

LANES = 16
"""float32 values of a 512-bit vector."""
ROWS = 8
"""Of a tile: 8 x 2 vectors of results fit into 32 registers."""


def matmul(size: int) -> Tensor:
    """C = A B."""
    a, b = placeholder("A", (size, size)), placeholder("B", (size, size))
    k = reduce_axis("k", size)
    return compute("C", (size, size), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])


def v0_loops(s: retune.Schedule) -> None:
    """Three loops as they are written: i, j, k. Each step of k reads another row of B."""
    s.loops("C")


def v1_order(s: retune.Schedule) -> None:
    """k outside of j: rows of B and C are read and written in order."""
    i, j, k = s.loops("C")
    s.reorder(i, k, j)
    s.decompose_reduction("C", k)


def v2_vectors(s: retune.Schedule) -> None:
    """16 columns at once: one instruction multiplies and adds all lanes of a vector."""
    i, j, k = s.loops("C")
    j0, j1 = s.split(j, [LANES])
    s.reorder(i, j0, k, j1)
    s.vectorize(j1)
    s.decompose_reduction("C", k)


def v3_registers(s: retune.Schedule) -> None:
    """Tiles of 8 x 32 results in registers: a vector of B is used eight times once it is read."""
    i0, j0 = _tiles(s)
    _finish(s, i0, j0)


def v4_order_of_tiles(s: retune.Schedule) -> None:
    """Columns of tiles one after the other: the 32 columns of B that they read stay in a cache."""
    i0, j0 = _tiles(s)
    _finish(s, j0, i0)


def v5_panels(s: retune.Schedule) -> None:
    """These columns are copied once, so that they lie one row after the other."""
    i0, j0 = _tiles(s)
    _finish(s, j0, i0)
    s.cache_read("B", j0, "private")


def v6_cores(s: retune.Schedule) -> None:
    """Columns of tiles on all cores."""
    i0, j0 = _tiles(s)
    _finish(s, j0, i0)
    s.parallel(j0)


def _tiles(s: retune.Schedule) -> tuple[str, str]:
    """Tiles of rows and columns, the loops over them outermost."""
    i, j, _ = s.loops("C")
    i0, _ = s.split(i, [ROWS])
    j0, _, _ = s.split(j, [2, LANES])
    return i0, j0


def _finish(s: retune.Schedule, *outer: str) -> None:
    """The loops over tiles in that order; inside, a step of k for all results of a tile."""
    s.reorder(*outer, "C.k", "C.i.1", "C.j.1", "C.j.2")
    s.unroll("C.i.1")
    s.unroll("C.j.1")
    s.vectorize("C.j.2")
    s.decompose_reduction("C", "C.k")


LADDER = (v0_loops, v1_order, v2_vectors, v3_registers, v4_order_of_tiles, v5_panels, v6_cores)


def main() -> None:
    """Prints the time of each step, and what it gains over the one before."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    program = matmul(size)
    before = None
    for step in LADDER:
        space = retune.space_for(program, step)
        candidate = space.candidate(space.sample(1, np.random.default_rng(0)), 0)
        (measured,) = retune.measure(program, [candidate], space=space)
        if measured.median_us is None:
            print(f"{step.__name__:14} {measured.status}: {measured.error.splitlines()[0]}")
            continue
        ms, gflops = measured.median_us / 1e3, 2 * size**3 / measured.median_us / 1e3
        gain = f"{before / ms:6.2f}x" if before else ""
        print(f"{step.__name__:14} {ms:9.3f} ms {gflops:8.1f} GFLOP/s {gain}")
        before = ms


if __name__ == "__main__":
    main()
