"""Splitting a reduction into the block that sets the start value and the one that accumulates."""

from collections.abc import Sequence
from dataclasses import replace

from retune.ir.expr import (
    Buffer,
    Expr,
    Var,
    all_of,
    conjuncts,
    loads,
    size_variables,
    substitute,
    variables,
)
from retune.ir.stmt import (
    Barrier,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    identity,
    nested,
    replaced,
    with_body,
)


def decompose(loop: For, block: Block) -> Seq:
    """`loop` preceded by an init nest for `block`, which lies inside it.

    Rewrite:
        for k (reduce):            for i: y[i] = identity
          for i:               ->  for k (reduce):
            y[i] += f(i, k)          for i:
                                       y[i] += f(i, k)
    """
    start = identity(block.reducer, block.buffer.dtype) if block.reducer else block.value
    around = _path(loop, block)
    reduced = {node.var for node in around if node.reduce}
    guard = _without(block.guard, reduced)
    if guard is not None and block.buffer.scope == "register" and size_variables(guard):
        guard = None  # what is past the end of a tile is never read: to set it costs no test
    used = {v for i in block.indices for v in variables(i)}
    if guard is not None:
        used |= variables(guard)
    kept = [node for node in around if node.var in used - reduced]
    names: dict[Var, Expr] = {node.var: Var(f"{node.var.name}.init") for node in kept}
    indices = tuple(substitute(i, names) for i in block.indices)
    guard = None if guard is None else substitute(guard, names)
    nest: Stmt = Block(f"{block.name}.init", block.buffer, indices, start, guard=guard)
    renamed = [replace(node, var=Var(f"{node.var.name}.init")) for node in kept]
    plain = [
        replace(n, kind="serial", intrinsic="") if n.kind == "intrinsic" else n for n in renamed
    ]
    nest = nested(plain, nest)
    done = replace(block, decomposed=True)
    body = replaced(loop, block, done)
    return Seq((nest, body))


def _without(guard: Expr | None, reduced: set[Var]) -> Expr | None:
    """The conditions of a guard that do not depend on the reduce iteration."""
    if guard is None:
        return None
    left = [c for c in conjuncts(guard) if not variables(c) & reduced]
    return all_of(*left) if left else None


def decompose_all(program: Program) -> Program:
    """Every reduction decomposed, each at its outermost reduce loop."""
    body: Stmt = program.body
    for block in blocks(body):
        if block.reducer is not None and not block.decomposed:
            body = decompose_at_outermost(body, block)
    return with_body(program, body)


def decompose_at_outermost(body: Stmt, block: Block) -> Stmt:
    """`body` with `block` decomposed at the outermost reduce loop around it.

    What an instruction does stays whole.
    """
    path = _path(body, block)
    target = next(iter(reduce_loops(path, block)), None)
    if target is not None:
        whole = (n for n in path[: path.index(target)] if n.kind == "intrinsic")
        target = next(whole, target)
    if target is None:
        plain = replace(block, reducer=None)
        return replaced(body, block, plain)
    return replaced(body, target, decompose(target, block))


def reduce_loops(path: Sequence[For], block: Block) -> list[For]:
    """The loops of `path` that `block` reduces over, outermost first.

    A reduce loop in which another block reads the result belongs to that reader: there, `block`
    is computed afresh in each iteration.
    """
    return [loop for loop in path if loop.reduce and not read_inside(loop, block)]


def read_inside(loop: For, block: Block) -> bool:
    """True when a block of `loop` other than `block` reads what `block` writes."""
    return any(
        reads(other, block.buffer) for other in blocks(loop.body) if other.name != block.name
    )


def reads(block: Block, buffer: Buffer) -> bool:
    """True when the block's value reads the buffer."""
    return any(load.buffer == buffer for load in loads(block.value))


def _path(stmt: Stmt, block: Block) -> list[For]:
    """The loops around `block`, outermost first; empty if it is not inside `stmt`."""
    found = path_to(stmt, block)
    return found if found is not None else []


def path_to(stmt: Stmt, block: Block) -> list[For] | None:
    """The loops of `stmt` around a block, outermost first; None if it is not inside."""
    match stmt:
        case Block():
            return [] if stmt is block else None
        case Barrier():
            return None
        case For():
            inner = path_to(stmt.body, block)
            return None if inner is None else [stmt, *inner]
        case Seq(stmts):
            for child in stmts:
                inner = path_to(child, block)
                if inner is not None:
                    return inner
            return None
