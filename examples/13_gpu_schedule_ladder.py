"""A matrix product for a GPU in six steps: work-groups, local memory, registers, vector loads.

    .venv/bin/python examples/13_gpu_schedule_ladder.py [SIZE] [DEVICE]

DEVICE is a name of `retune devices`, such as nvidia-cuda-0; SIZE is a multiple of 64. Each step
adds one idea to the step before it, and its result is compared with numpy's before it is timed. The
comments state times of an NVIDIA H100 for SIZE 1024; the program prints those of your device. On
PoCL it shows that each step is right, and not how fast a GPU is: a processor runs the items of a
group one after the other, and its local memory is memory like any other.
"""

import sys

import numpy as np

import retune
from retune.ir.te import Tensor, compute, placeholder, reduce_axis

SIDE = 16
"""Work-items of a group in each direction: 256 in all, eight warps of a GPU by NVIDIA."""
DEEP = 16
"""Steps of k for which a group copies its parts of A and B at once."""
EACH = 4
"""Rows, and columns, of results of one work-item: 16 of them for 8 values that are read."""


def matmul(size: int) -> Tensor:
    """C = A B."""
    a, b = placeholder("A", (size, size)), placeholder("B", (size, size))
    k = reduce_axis("k", size)
    return compute("C", (size, size), lambda i, j: a[i, k] * b[k, j], [a, b], reduce=[k])


def v0_items(s: retune.Schedule) -> None:  # 1.26 ms, 1.7 TFLOP/s
    """A work-item for each result, in groups of 16 x 16; all values come from global memory.

    Neighbouring items have neighbouring columns, so that a warp reads a row of B at once.
    """
    i, j, k = s.loops("C")
    i0, i1 = s.split(i, [SIDE])
    j0, j1 = s.split(j, [SIDE])
    s.reorder(i0, j0, i1, j1, k)
    _bind(s, i0, j0, i1, j1)
    s.decompose_reduction("C", k)


def v1_local(s: retune.Schedule) -> None:  # 0.317 ms, 4.0x
    """A group copies 16 x 16 values of A and B to local memory, and reads each of them 16 times."""
    i, j, k = s.loops("C")
    i0, i1 = s.split(i, [SIDE])
    j0, j1 = s.split(j, [SIDE])
    k0, k1 = s.split(k, [DEEP])
    s.reorder(i0, j0, i1, j1, k0, k1)
    _bind(s, i0, j0, i1, j1)
    s.decompose_reduction("C", k0)
    _copy(s, k0, lanes=1)


def v2_registers(s: retune.Schedule) -> None:  # 0.171 ms, 1.9x
    """Four rows and four columns for each item: a value that is read is used four times."""
    _tiles(s, lanes=1)


def v3_vectors(s: retune.Schedule) -> None:  # 0.102 ms, 1.7x
    """Four neighbours at once: float4 from global memory, to and from local memory, to C."""
    _tiles(s, lanes=4)


def v4_banks(s: retune.Schedule) -> None:  # 0.103 ms, 1.0x
    """Rows of A's copy lie four floats further apart, so that items of a warp hit other banks."""
    _tiles(s, lanes=4)
    s.align_rows("A.local", 4)


def v5_ahead(s: retune.Schedule) -> None:  # 0.091 ms, 1.1x: 24 TFLOP/s
    """Copies for the next steps of k are on their way while the group computes."""
    _tiles(s, lanes=4)
    s.align_rows("A.local", 4)
    s.run_ahead("C.k.0", 2)


def _tiles(s: retune.Schedule, lanes: int) -> None:
    """A group has 64 x 64 results; each item has four rows, and four columns side by side."""
    i, j, k = s.loops("C")
    i0, i1, i2 = s.split(i, [SIDE, EACH])
    j0, j1, j2 = s.split(j, [SIDE, EACH])
    k0, k1 = s.split(k, [DEEP])
    s.reorder(i0, j0, i1, j1, k0, k1, i2, j2)
    _bind(s, i0, j0, i1, j1)
    s.unroll(i2)
    if lanes > 1:
        s.vectorize(j2)
    else:
        s.unroll(j2)
    s.decompose_reduction("C", k0)
    _copy(s, k0, lanes)


def _bind(s: retune.Schedule, *loops: str) -> None:
    """Rows and columns of groups, then of items."""
    for loop, axis in zip(loops, ("group.1", "group.0", "local.1", "local.0"), strict=True):
        s.bind(loop, axis)


def _copy(s: retune.Schedule, at: str, lanes: int) -> None:
    """Inside `at`, parts of A and B in local memory; all items of the group share the copying."""
    for buffer in ("A", "B"):
        made = s.cache_read(buffer, at, "local")
        rows, columns = s.loops(made)[-2:]
        if lanes > 1:
            columns, vector = s.split(columns, [lanes])
            s.vectorize(vector)
        _, row, column = s.split(s.fuse(rows, columns), [SIDE, SIDE], "guard")
        s.bind(row, "local.1")
        s.bind(column, "local.0")


LADDER = (v0_items, v1_local, v2_registers, v3_vectors, v4_banks, v5_ahead)


def main() -> None:
    """Prints the time of each step, and what it gains over the one before."""
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 256
    device = sys.argv[2] if len(sys.argv) > 2 else "pocl"
    program, before = matmul(size), 0.0
    for step in LADDER:
        space = retune.space_for(program, step)
        candidate = space.candidate(space.sample(1, np.random.default_rng(0)), 0)
        (measured,) = retune.measure(program, [candidate], space=space, device=device)
        if not measured.ok:
            raise SystemExit(f"{step.__name__}: {measured.status}: {measured.error}")
        us = min(measured.run_times_us)
        gain = f"{before / us:6.2f}x" if before else ""
        print(f"{step.__name__:14} {us / 1e3:9.3f} ms {2 * size**3 / us / 1e3:8.1f} GFLOP/s {gain}")
        before = us


if __name__ == "__main__":
    main()
