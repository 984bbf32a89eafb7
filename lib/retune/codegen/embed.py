"""A program whose output is a slice of a wider buffer: what makes concatenation free."""

from dataclasses import dataclass, replace

from retune.ir.expr import Buffer, const
from retune.ir.stmt import Element, Indices, Program, map_accesses, with_body


@dataclass(frozen=True, slots=True)
class Slice:
    """Where an output lies in a wider buffer, along the last dimension."""

    offset: int
    """First element of the slice in each row."""
    width: int
    """Elements of a row of the wider buffer."""


def embed_output(program: Program, output: Buffer, where: Slice) -> Program:
    """The program that writes its output into `where` of a buffer with wider rows.

    The rest of the wider buffer is left alone. The buffer keeps its name.
    """
    shape = (*output.shape[:-1], const(where.width))
    wide = replace(output, shape=shape)

    def shifted(buffer: Buffer, indices: Indices) -> Element | None:
        return (wide, (*indices[:-1], indices[-1] + where.offset)) if buffer == output else None

    return replace(
        with_body(program, map_accesses(program.body, shifted)),
        name=f"{program.name}_at{where.offset}of{where.width}",
        outputs=tuple(wide if b == output else b for b in program.outputs),
    )
