"""A program whose output is a slice of a wider buffer: what makes concatenation free."""

from dataclasses import dataclass, replace

from retune.ir.expr import Buffer, Expr, Load, const, transform
from retune.ir.stmt import Block, Program, Seq, Stmt, map_exprs, rewrite


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

    def shifted(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*indices[:-1], indices[-1] + where.offset)

    def read(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer == output:
            return Load(wide, shifted(expr.indices))
        return None

    def write(node: Stmt) -> Stmt | None:
        if isinstance(node, Block) and node.buffer == output:
            return replace(node, buffer=wide, indices=shifted(node.indices))
        return None

    body = rewrite(map_exprs(program.body, lambda e: transform(e, read)), write)
    return replace(
        program,
        name=f"{program.name}_at{where.offset}of{where.width}",
        body=body if isinstance(body, Seq) else Seq((body,)),
        outputs=tuple(wide if b == output else b for b in program.outputs),
    )
