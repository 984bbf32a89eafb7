"""A matrix product in seven steps: what each scheduling primitive gains.

    .venv/bin/python examples/07_schedule_ladder.py [SIZE]

Each step is a schedule function that adds one idea to the step before it. All of them compute the
same tensor expression; each result is compared with numpy's before it is timed. The comments have
the least times of a run of 256 x 256, float32, on one core of an AMD EPYC (AVX-512) through PoCL,
beside other work; the program prints those of your machine.
"""

import sys

import numpy as np

import retune
from retune.ir.te import Tensor, compute, placeholder, reduce_axis

LANES = 16
"""float32 values of a 512-bit vector."""
REPEATS = 3
"""Measurements of a step; the least time counts, since other work only adds."""
ROWS = 8
"""Of a tile: 8 x 2 vectors of results fit into 32 registers."""


def matmul(size: int) -> Tensor:
    """C = A B."""
    a, b = placeholder("A", (size, size)), placeholder("B", (size, size))
    k = reduce_axis("k", size)
    return compute("C", (size, size), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])


def v0_loops(s: retune.Schedule) -> None:  # 109 ms, 0.3 GFLOP/s
    """Three loops as they are written: i, j, k. Each step of k reads another row of B."""
    s.loops("C")


def v1_order(s: retune.Schedule) -> None:  # 4.4 ms, 25x
    """k outside of j: rows of B and C are read and written in order."""
    i, j, k = s.loops("C")
    s.reorder(i, k, j)
    s.decompose_reduction("C", k)


def v2_vectors(s: retune.Schedule) -> None:  # 1.7 ms, 2.6x
    """16 columns at once: one instruction multiplies and adds all lanes of a vector."""
    i, j, k = s.loops("C")
    j0, j1 = s.split(j, [LANES])
    s.reorder(i, k, j0, j1)
    s.vectorize(j1)
    s.decompose_reduction("C", k)


def v3_rows(s: retune.Schedule) -> None:  # 0.56 ms, 3.0x
    """Results of 8 rows in registers: a vector of B is used eight times once it is read."""
    _tiles(s, vectors=1)


def v4_registers(s: retune.Schedule) -> None:  # 0.14 ms, 4.0x: 238 GFLOP/s
    """Two vectors of each row, 16 in all: a value of A is used twice, and additions overlap."""
    _tiles(s, vectors=2)


def v5_cores(s: retune.Schedule) -> None:
    """Rows of tiles on all cores."""
    _tiles(s, vectors=2)
    s.parallel("C.i.0")


def _tiles(s: retune.Schedule, vectors: int) -> None:
    """Tiles of results, whose loops inside a step of k are written out."""
    i, j, k = s.loops("C")
    i0, i1 = s.split(i, [ROWS])
    j0, j1, j2 = s.split(j, [vectors, LANES])
    s.reorder(i0, j0, k, i1, j1, j2)
    s.unroll(i1)
    s.unroll(j1)
    s.vectorize(j2)
    s.decompose_reduction("C", k)


def v6_search(s: retune.Schedule) -> None:
    """The sizes of the tiles are left open: this is a space, and the search finds them."""
    i, j, k = s.loops("C")
    i0, i1 = s.split(i, s.sample_perfect_tile(i, parts=2, max_innermost=16))
    j0, j1, j2 = s.split(j, s.sample_perfect_tile(j, parts=3, max_innermost=LANES))
    s.reorder(i0, j0, k, i1, j1, j2)
    s.unroll(i1)
    s.unroll(j1)
    s.vectorize(j2)
    s.decompose_reduction("C", k)
    s.parallel(i0)


LADDER = (v0_loops, v1_order, v2_vectors, v3_rows, v4_registers, v5_cores)


def main() -> None:
    """Prints the time of each step, and what it gains over the one before."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 512
    trials = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    program, before = matmul(size), 0.0
    for step in LADDER:
        space = retune.space_for(program, step)
        candidate = space.candidate(space.sample(1, np.random.default_rng(0)), 0)
        measured = [retune.measure(program, [candidate], space=space)[0] for _ in range(REPEATS)]
        if failed := [each for each in measured if not each.ok]:
            raise SystemExit(f"{step.__name__}: {failed[0].status}: {failed[0].error}")
        us = min(time for each in measured for time in each.run_times_us)
        show(step.__name__, us, size, before)
        before = us
    tuned = retune.tune(program, space=v6_search, trials=trials)
    show(v6_search.__name__, min(tuned.record.measurement.run_times_us), size, before)


def show(name: str, us: float, size: int, before: float) -> None:
    """A line of the ladder."""
    gain = f"{before / us:6.2f}x" if before else ""
    print(f"{name:14} {us / 1e3:9.3f} ms {2 * size**3 / us / 1e3:8.1f} GFLOP/s {gain}")


if __name__ == "__main__":
    main()
