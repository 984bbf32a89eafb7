"""Which scratch buffers of a nest become named registers, and with how many lanes.

A `register` buffer whose every index is settled by unrolled and vectorized loops needs no memory:
each of its vectors is a named variable. One that some serial loop indexes is a private array.
"""

from collections.abc import Iterator

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Const, Var, loads
from retune.ir.flat import FlatIndices
from retune.ir.simplify import affine_terms
from retune.ir.stmt import STRAIGHT, For, Indices, Stmt, paths


def _accesses(nest: Stmt, buffer: Buffer) -> Iterator[tuple[Indices, tuple[For, ...]]]:
    """Every read and write of a buffer in a nest, each with the loops around it."""
    for block, path in paths(nest):
        if block.buffer == buffer:
            yield block.indices, path
        yield from ((load.indices, path) for load in loads(block.value) if load.buffer == buffer)


def register_lanes(
    nest: Stmt, buffer: Buffer, vectorized: frozenset[Var], flat: FlatIndices
) -> int:
    """Lanes of the buffer's named registers; 0 if it has to be an array.

    `vectorized` are the loops that will really run as vector lanes.
    """
    lanes: set[int] = set()
    steps: set[int] = set()
    for indices, path in _accesses(nest, buffer):
        settled = {p.var for p in path if p.kind in STRAIGHT}
        form = affine_terms(flat(buffer, indices), settled)
        if form is None or not isinstance(form[1], Const):
            return 0
        width = 1
        for loop in path:
            coefficient = form[0].get(loop.var)
            if coefficient is None:
                continue
            if not isinstance(coefficient, Const):
                return 0
            step = int(coefficient.value)
            if loop.var in vectorized and step:
                if step != 1:
                    return 0
                width = evaluate_int(loop.extent)
            else:
                steps.add(step)
        lanes.add(width)
        steps.add(int(form[1].value))
    if len(lanes) != 1:
        return 0
    width = lanes.pop()
    return width if all(step % width == 0 for step in steps) else 0
