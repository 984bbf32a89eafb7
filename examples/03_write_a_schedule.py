"""A matrix product of your own: random schedules, then tuned ones, then the built-in rules.

    .venv/bin/python examples/03_write_a_schedule.py [TRIALS]

The product is stated once, as a tensor expression. How it is computed is a schedule function: an
ordinary Python function that transforms loops and leaves numbers open with `sample_*`. Any such
function is a search space; every candidate's result is checked before its time counts.
"""

import sys

import numpy as np

import retune
from retune.ir.te import Tensor, compute, placeholder, reduce_axis

SIZE = 128
ATTEMPTS = 5


def matmul(size: int) -> Tensor:
    """C = A B."""
    a, b = placeholder("A", (size, size)), placeholder("B", (size, size))
    k = reduce_axis("k", size)
    return compute("C", (size, size), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])


def tiled(s: retune.Schedule) -> None:
    """Tiles of tiles; the innermost row of outputs is a vector, the rows above it written out."""
    i, j, k = s.loops("C")
    i0, i1, i2, i3 = s.split(i, s.sample_perfect_tile(i, parts=4))
    j0, j1, j2, j3 = s.split(j, s.sample_perfect_tile(j, parts=4, max_innermost=16))
    k0, k1 = s.split(k, s.sample_perfect_tile(k, parts=2))
    s.reorder(i0, j0, i1, j1, k0, i2, j2, k1, i3, j3)
    s.bind(s.fuse(i0, j0), "group.0")
    s.unroll(i3)
    s.vectorize(j3)
    s.decompose_reduction("C", k0)


def main() -> None:
    """Prints program and trace, five random attempts, and what tuning makes of them."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    program = matmul(SIZE)
    space = retune.space_for(program, tiled)

    drawn = space.sample(ATTEMPTS, np.random.default_rng(0))
    attempts = [space.candidate(drawn, index) for index in range(ATTEMPTS)]
    print("One random attempt, as loops:\n")
    print(space.instantiate(attempts[0]))
    print("\nand as the Python that makes them:\n")
    print(space.trace(attempts[0]))

    measured = retune.measure(program, attempts, space=space)
    times = [m.median_us for m in measured if m.median_us is not None]
    print("\nfive random attempts:", ", ".join(f"{t:.0f}" for t in times), "us")

    tuned = retune.tune(program, space=tiled, trials=trials)
    print("tuned, my schedule:  ", tuned)

    built_in = retune.tune(program, trials=trials)
    print("tuned, built in:     ", built_in)

    a, b = np.random.default_rng(1).random((2, SIZE, SIZE), np.float32)
    error = np.abs(built_in.run({"A": a, "B": b})["C"] - a @ b).max()
    print(f"\nlargest difference from numpy's product: {error:.1e}")
    print("\nThe fastest kernel:\n")
    print(built_in.opencl)


if __name__ == "__main__":
    main()
