"""Floats of sixteen bits lie in memory alone: kernels read and write them as float32.

`vload_half` and `vstore_half` do that on every device, as OpenCL C's 6.15.7 says; arithmetic and
variables of that type are for some. Inside of a kernel there are no more of them after `in_floats`,
and rounding is what a store does.
"""

from dataclasses import replace

from retune.core.dtypes import FLOAT16, FLOAT32
from retune.ir.expr import Buffer, Cast, Const, Expr, Load, Rewriter, cast, const
from retune.ir.stmt import Block, Stmt, blocks, map_exprs, rewrite, touched

_STORED = ("global", "constant", "local")
"""Scopes of buffers that keep the type in memory; what a work-item holds is wide."""


def in_floats(root: Stmt) -> tuple[Stmt, frozenset[str]]:
    """The nest with float32 in place of float16, and the names of the buffers in memory that keep
    it."""
    halves = {b for block in blocks(root) for b in touched(block) if b.dtype == FLOAT16}
    if not halves:
        return root, frozenset()

    def store(node: Stmt) -> Stmt | None:
        return replace(node, buffer=_wide(node.buffer)) if isinstance(node, Block) else None

    body = rewrite(map_exprs(root, _Widening()), store)
    return body, frozenset(buffer.name for buffer in halves if buffer.scope in _STORED)


def _wide(buffer: Buffer) -> Buffer:
    return replace(buffer, dtype=FLOAT32) if buffer.dtype == FLOAT16 else buffer


class _Widening(Rewriter):
    """Expressions over the wide buffers; what casts to float16 is left as it is before that."""

    def rewritten(self, expr: Expr) -> Expr:
        match super().rewritten(expr):
            case Const(value, dtype) if dtype == FLOAT16:
                return const(value, FLOAT32)
            case Load(buffer, indices) if buffer.dtype == FLOAT16:
                return Load(_wide(buffer), indices)
            case Cast(value, dtype) if dtype == FLOAT16:
                return cast(value, FLOAT32)
            case other:
                return other
