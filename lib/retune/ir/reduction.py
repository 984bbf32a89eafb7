"""Splitting a reduction into the block that sets the start value and the one that accumulates."""

from dataclasses import replace

from retune.ir.expr import variables
from retune.ir.stmt import Block, For, Program, Seq, Stmt, blocks, identity, rewrite


def decompose(loop: For, block: Block) -> Seq:
    """`loop` preceded by an init nest for `block`, which lies inside it.

    Rewrite:
        for k (reduce):            for i: y[i] = identity
          for i:               ->  for k (reduce):
            y[i] += f(i, k)          for i:
                                       y[i] += f(i, k)
    """
    start = identity(block.reducer, block.buffer.dtype) if block.reducer else block.value
    init = Block(f"{block.name}.init", block.buffer, block.indices, start, guard=block.guard)
    used = {v for i in block.indices for v in variables(i)}
    if block.guard is not None:
        used |= variables(block.guard)
    nest: Stmt = init
    for around in reversed(_path(loop, block)):
        if around.var in used and not around.reduce:
            nest = replace(around, body=nest)
    done = replace(block, decomposed=True)
    body = rewrite(loop, lambda node: done if node == block else None)
    return Seq((nest, body))


def decompose_all(program: Program) -> Program:
    """Every reduction decomposed, each at its outermost reduce loop."""
    body: Stmt = program.body
    for block in blocks(body):
        if block.reducer is not None and not block.decomposed:
            body = decompose_at_outermost(body, block)
    return replace(program, body=body if isinstance(body, Seq) else Seq((body,)))


def decompose_at_outermost(body: Stmt, block: Block) -> Stmt:
    """`body` with `block` decomposed at the outermost reduce loop around it."""
    target = next((loop for loop in _path(body, block) if loop.reduce), None)
    if target is None:
        plain = replace(block, reducer=None)
        return rewrite(body, lambda node: plain if node == block else None)
    return rewrite(body, lambda node: decompose(target, block) if node == target else None)


def _path(stmt: Stmt, block: Block) -> list[For]:
    """The loops around `block`, outermost first; empty if it is not inside `stmt`."""
    found = path_to(stmt, block)
    return found if found is not None else []


def path_to(stmt: Stmt, block: Block) -> list[For] | None:
    """The loops of `stmt` around a block, outermost first; None if it is not inside."""
    match stmt:
        case Block():
            return [] if stmt == block else None
        case For():
            inner = path_to(stmt.body, block)
            return None if inner is None else [stmt, *inner]
        case Seq(stmts):
            for child in stmts:
                inner = path_to(child, block)
                if inner is not None:
                    return inner
            return None


