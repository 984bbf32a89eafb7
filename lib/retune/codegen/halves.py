"""Floats of sixteen bits lie in memory alone: kernels read and write them as float32.

`vload_half` and `vstore_half` do that on every device, as OpenCL C's 6.15.7 says; arithmetic and
variables of that type are for some. Inside of a kernel there are no more of them after `in_floats`,
and rounding is what a store does.
"""

from dataclasses import replace

from retune.ir.expr import Buffer, Cast, Const, Expr, Load, cast, const, loads
from retune.ir.stmt import Block, Stmt, blocks, expressions, map_exprs, rewrite

HALF, WIDE = "float16", "float32"
_STORED = ("global", "constant", "local")
"""Scopes of buffers that keep the type in memory; what a work-item holds is wide."""


def in_floats(root: Stmt) -> tuple[Stmt, frozenset[str]]:
    """The nest with float32 in place of float16, and the names of the buffers in memory that keep
    it."""
    used = {block.buffer for block in blocks(root)}
    for block in blocks(root):
        used.update(read.buffer for expr in expressions(block) for read in loads(expr))
    halves = {buffer for buffer in used if buffer.dtype == HALF}
    if not halves:
        return root, frozenset()

    def store(node: Stmt) -> Stmt | None:
        return replace(node, buffer=_wide(node.buffer)) if isinstance(node, Block) else None

    body = rewrite(map_exprs(root, _widened), store)
    return body, frozenset(buffer.name for buffer in halves if buffer.scope in _STORED)


def _wide(buffer: Buffer) -> Buffer:
    return replace(buffer, dtype=WIDE) if buffer.dtype == HALF else buffer


def _widened(expr: Expr) -> Expr:
    match expr:
        case Const(value, "float16"):
            return const(value, WIDE)
        case Load(buffer, indices):
            return Load(_wide(buffer), tuple(map(_widened, indices)))
        case Cast(value, "float16"):
            return cast(_widened(value), WIDE)
        case _ if expr.children:
            return expr.rebuild(tuple(map(_widened, expr.children)))
        case _:
            return expr
