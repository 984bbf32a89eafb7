"""A limit on the statements that a kernel writes out, whatever a schedule asks for."""

from collections.abc import Callable
from dataclasses import replace

from retune.codegen.registers import vectorizable
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import variables
from retune.ir.flat import FlatIndices
from retune.ir.stmt import FEW, For, Program, Seq, Stmt, blocks, loops, rewrite, with_body

MOST_STATEMENTS = 4096
"""Of a loop that is written out. Register tiles have some hundreds; compilers take minutes over
tens of thousands."""
MOST_OF_LANES = 64
"""The same in copies for few sizes, where each lane of a vector is a statement with a test of its
own. A 1x1 convolution of rows of pixels: PoCL took 11 s over 2,560 of them and 0.7 s over 160; a
run took 24 and 22 us. Twelve heads of attention, 7 tokens: 47 us with 96 of them, 32 us with 48, 30
us with 8; 2 tokens: 21, 22 and 23 us."""


def limit_statements(program: Program) -> Program:
    """No loop is written out as more than MOST_STATEMENTS: those around so many run in time.

    Rewrite, where a tile has 160 elements and each a test of its own:
        for k in range(64):  # unroll     ->  for k in range(64):
          for i in range(160):  # unroll  ->    for i in range(160):
    """
    flat = FlatIndices()

    def apart(loop: For) -> bool:
        """Whether it is over lanes that are a statement each."""
        return not all(
            vectorizable(block, loop.var, flat, reduce=loop.reduce) for block in blocks(loop)
        )

    def limited(loop: For, most: int) -> Stmt | None:
        if loop.kind not in ("unroll", "vectorize") or _count(loop, lambda _: True) <= most:
            return None
        return replace(loop, kind="serial") if _count(loop, apart) > most else None

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For):
            return None
        if FEW in dict(node.notes):
            return node.around(rewrite(node.body, of_lanes))
        return limited(node, MOST_STATEMENTS)

    def of_lanes(node: Stmt) -> Stmt | None:
        if isinstance(node, For) and any(map(_tells_lanes_apart, loops(node))):
            return limited(node, MOST_OF_LANES)
        return None

    return with_body(program, rewrite(program.body, rule))


def _count(stmt: Stmt, apart: Callable[[For], bool]) -> int:
    """Statements that it is written out as; those of a loop in time count once."""
    match stmt:
        case Seq(stmts):
            return sum(_count(each, apart) for each in stmts)
        case For():
            if stmt.kind == "intrinsic":
                return 1
            each = _count(stmt.body, apart)
            copies = stmt.kind == "unroll" or (stmt.kind == "vectorize" and apart(stmt))
            return evaluate_int(stmt.extent) * each if copies else each
        case _:
            return 1


def _tells_lanes_apart(loop: For) -> bool:
    guards = (block.guard for block in blocks(loop) if block.guard is not None)
    return loop.kind == "vectorize" and any(loop.var in variables(guard) for guard in guards)
