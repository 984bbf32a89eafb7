"""Copies of a loop's body for chosen values of its variable."""

from dataclasses import replace

from retune.ir.expr import Expr, Var
from retune.ir.stmt import Barrier, Block, For, Seq, Stmt, loops, rewrite, substitute_stmt


def copy_body(loop: For, value: Expr, mark: str) -> Stmt:
    """The body where the loop's variable is `value`; its blocks and loops are renamed by `mark`."""
    inner = [n.var for n in loops(loop.body)]
    names = {var: Var(f"{var.name}.{mark}") for var in inner}
    body = substitute_stmt(loop.body, {loop.var: value, **names})

    def rename(node: Stmt) -> Stmt | None:
        match node:
            case For():
                return replace(node, var=names.get(node.var, node.var))
            case Block():
                return replace(node, name=f"{node.name}.{mark}")
            case Seq() | Barrier():
                return None

    return rewrite(body, rename)
