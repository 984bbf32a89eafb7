"""Which scratch buffers of a nest become named registers, and with how many lanes.

A `register` buffer whose every index is settled by unrolled and vectorized loops needs no memory:
each of its vectors is a named variable. One that some serial loop indexes is a private array.
"""

from dataclasses import dataclass

from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Const, Expr, Var, loads
from retune.ir.flat import FlatIndices
from retune.ir.simplify import affine_terms
from retune.ir.stmt import STRAIGHT, Block, For, Stmt, paths


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a buffer, with the loops around it."""

    indices: tuple[Expr, ...]
    path: tuple[For, ...]
    block: Block


def accesses(nest: Stmt, buffer: Buffer) -> list[Access]:
    """Every read and write of a buffer in a nest."""
    found: list[Access] = []
    for block, path in paths(nest):
        if block.buffer == buffer:
            found.append(Access(block.indices, path, block))
        found.extend(
            Access(node.indices, path, block)
            for node in loads(block.value)
            if node.buffer == buffer
        )
    return found


def register_lanes(
    nest: Stmt, buffer: Buffer, vectorized: frozenset[Var], flat: FlatIndices
) -> int:
    """Lanes of the buffer's named registers; 0 if it has to be an array.

    `vectorized` are the loops that will really run as vector lanes.
    """
    lanes: set[int] = set()
    steps: set[int] = set()
    for access in accesses(nest, buffer):
        settled = {p.var for p in access.path if p.kind in STRAIGHT}
        form = affine_terms(flat(buffer, access.indices), settled)
        if form is None or not isinstance(form[1], Const):
            return 0
        width = 1
        for loop in access.path:
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
