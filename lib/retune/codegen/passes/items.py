"""Passes that give each work-item its share: work that one item does, and virtual threads.

Both keep the meaning of the loop program: the interpreter may run it after either one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from retune.ir.expr import Buffer, Expr, Var, all_of, conjuncts, equal
from retune.ir.stmt import (
    Barrier,
    Block,
    Element,
    For,
    Indices,
    LoopKind,
    Program,
    Seq,
    Stmt,
    block_variables,
    blocks,
    inside,
    loops,
    map_accesses,
    paths,
    replaced,
    rewrite,
    substitute_stmt,
    touched,
    with_body,
)


def one_item(program: Program) -> Program:
    """Stores to shared memory that no loop over items spreads are left to the first item.

    The program is one kernel; a single group's loop is gone, and its stages stand side by side.

    Rewrite, beside a loop over local.0 of extent 8:
        y[0] += part[k]    ->    for y.item in range(8):  # local.0
                                   y[0] += part[k]  # where y.item == 0
    """
    body = program.body
    axes: dict[LoopKind, Expr] = {
        n.kind: n.extent for n in loops(body) if n.kind.startswith("local")
    }
    if not axes:
        return program
    missing = {b.name: _missing(b, path, axes) for b, path in paths(body)}
    return with_body(program, _cover(body, missing, axes))


def _missing(
    block: Block, path: Sequence[For], axes: Mapping[LoopKind, Expr]
) -> tuple[LoopKind, ...] | None:
    """Axes on which every item would do the same store; None for stores to private memory."""
    if block.buffer.scope in ("register", "private"):
        return None
    used = block_variables(block)
    spread = {p.kind for p in path if block.buffer.scope == "global" or p.var in used}
    return tuple(axis for axis in axes if axis not in spread)


def _cover(
    stmt: Stmt,
    missing: Mapping[str, tuple[LoopKind, ...] | None],
    axes: Mapping[LoopKind, Expr],
) -> Stmt:
    """The largest parts that are alike, each under loops over the axes that it misses."""
    within = blocks(stmt)
    wanted = {missing[b.name] for b in within}
    if wanted <= {None, ()}:
        return stmt
    alike = len(wanted) == 1
    if alike and not any(n.kind in axes for n in loops(stmt)):
        return _first_only(stmt, within[0].name, wanted.pop() or (), axes)
    match stmt:
        case For():
            return replace(stmt, body=_cover(stmt.body, missing, axes))
        case Seq(stmts):
            return Seq(tuple(_cover(s, missing, axes) for s in stmts))
        case Block():
            return _first_only(stmt, stmt.name, missing[stmt.name] or (), axes)
        case Barrier():
            return stmt


def _first_only(
    stmt: Stmt, name: str, wanted: tuple[LoopKind, ...], axes: Mapping[LoopKind, Expr]
) -> Stmt:
    items: dict[LoopKind, Var] = {axis: Var(f"{name}.item{axis[-1]}") for axis in wanted}
    first = [equal(var, 0) for var in items.values()]

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block):
            return None
        return replace(node, guard=all_of(*first, *conjuncts(node.guard)))

    stmt = rewrite(stmt, rule)
    for axis, var in items.items():
        stmt = For(var, axes[axis], stmt, kind=axis)
    return stmt


def virtual_threads(program: Program) -> Program:
    """Loops over virtual threads moved inside serial loops, and inside the steps of a reduction
    that are written out, where their copies stand side by side.

    Private memory that only one thread uses gets a dimension for the threads; statements that do
    not tell the threads apart are left alone.

    Rewrite:
        for v in range(2):  # vthread      for k: for v: y[v, 0] += x[v, k]
          for k: y[0] += x[v, k]      ->   for v.1: z[v.1] = y[v.1, 0]
          z[v] = y[0]
    """
    while True:
        loop = _innermost_virtual(program.body)
        if loop is None:
            return program
        program = _interleave(program, loop)


def _innermost_virtual(stmt: Stmt) -> For | None:
    found = [n for n in loops(stmt) if n.kind == "vthread"]
    return found[-1] if found else None


def _interleave(program: Program, loop: For) -> Program:
    own, dependent = _thread_memory(program, loop)
    wide = {b: replace(b, shape=(loop.extent, *b.shape)) for b in own}

    def own_part(buffer: Buffer, indices: Indices) -> Element | None:
        return (wide[buffer], (loop.var, *indices)) if buffer in wide else None

    body = map_accesses(loop.body, own_part)
    names = (loop.var if n == 0 else Var(f"{loop.var.name}.v{n}") for n in range(1 << 20))
    body = _push(body, loop, dependent, names)
    whole = replaced(program.body, loop, body)
    return replace(
        with_body(program, whole), scratch=tuple(wide.get(b, b) for b in program.scratch)
    )


def _thread_memory(program: Program, loop: For) -> tuple[set[Buffer], set[str]]:
    """Private buffers that each virtual thread needs for itself; blocks that tell them apart."""
    within = blocks(loop.body)
    names = {b.name for b in within}
    outside = [b for b in blocks(program.body) if b.name not in names]
    elsewhere = {buffer for b in outside for buffer in touched(b)}
    own: set[Buffer] = set()
    dependent: set[str] = set()
    while True:
        more = {
            b.name for b in within if loop.var in block_variables(b) or own.intersection(touched(b))
        }
        own = {
            b.buffer
            for b in within
            if b.name in more
            and b.buffer.scope in ("register", "private")
            and b.buffer not in elsewhere
        }
        if more == dependent:
            return own, dependent
        dependent = more


def _push(stmt: Stmt, loop: For, dependent: set[str], names: Iterator[Var]) -> Stmt:
    if not any(b.name in dependent for b in blocks(stmt)):
        return stmt
    steps = isinstance(stmt, For) and stmt.kind == "unroll" and stmt.reduce
    if inside(stmt).straight and not steps:
        var = next(names)
        return replace(loop, var=var, kind="unroll", body=substitute_stmt(stmt, {loop.var: var}))
    match stmt:
        case For():
            return replace(stmt, body=_push(stmt.body, loop, dependent, names))
        case Seq(stmts):
            return Seq(tuple(_push(s, loop, dependent, names) for s in stmts))
        case Block() | Barrier():
            raise AssertionError("a block alone is plain, and a barrier knows no thread")
