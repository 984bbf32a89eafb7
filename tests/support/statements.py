"""Walks over loop programs."""

from collections.abc import Iterator

from retune.ir.stmt import For, Seq, Stmt


def walk(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement, parents before children, in program order."""
    stack: list[Stmt] = [stmt]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, For):
            stack.append(node.body)
        elif isinstance(node, Seq):
            stack.extend(reversed(node.stmts))
