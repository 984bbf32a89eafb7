"""A program whose inputs and outputs are columns of wider buffers: what makes joining them free."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from retune.ir.expr import Buffer, const
from retune.ir.stmt import Element, Indices, Program, map_accesses, with_body


@dataclass(frozen=True, slots=True, order=True)
class Columns:
    """Where a value lies in a wider one, along the last dimension."""

    offset: int
    """First element of the value in each row."""
    width: int
    """Elements of a row of the wider value."""

    def __str__(self) -> str:
        return f"at{self.offset}of{self.width}"


def view(program: Program, columns: Mapping[str, Columns]) -> Program:
    """The program whose inputs and outputs of these names are columns of wider buffers.

    The rest of what it writes into is left alone. Buffers keep their names; the program's own
    says where they lie, as its kernels are others.
    """
    wide = {
        b: replace(b, shape=(*b.shape[:-1], const(columns[b.name].width)))
        for b in (*program.inputs, *program.outputs)
        if b.name in columns
    }
    if not wide:
        return program

    def moved(buffer: Buffer, indices: Indices) -> Element | None:
        if buffer not in wide:
            return None
        return wide[buffer], (*indices[:-1], indices[-1] + columns[buffer.name].offset)

    marks = [
        f"{side}{number}_{columns[b.name]}"
        for side, buffers in (("in", program.inputs), ("out", program.outputs))
        for number, b in enumerate(buffers)
        if b in wide
    ]
    return replace(
        with_body(program, map_accesses(program.body, moved)),
        name="_".join([program.name, *marks]),
        inputs=tuple(wide.get(b, b) for b in program.inputs),
        outputs=tuple(wide.get(b, b) for b in program.outputs),
    )
