"""Loop programs: nests of loops over blocks, frozen and printed deterministically.

A program starts as one perfect nest per compute of a tensor expression (`from_dag`); schedule
primitives rewrite it. Every `Block` is one assignment stated in loop variables; a block with a
reducer accumulates into memory that a `decompose_reduction`ed init block (or, before that, the
block itself) has set to the reducer's identity.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_not
from typing import Literal

from retune.core.dtypes import BOOL, DType
from retune.ir.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Redirection,
    SizeVar,
    Substitution,
    Var,
    all_of,
    as_expr,
    conjuncts,
    const,
    converted,
    loads,
    size_variables,
    substitute,
    variables,
)
from retune.ir.nodes import IRNode, node
from retune.ir.te import Compute, Concat, Dag, Reducer, Tensor

Indices = tuple[Expr, ...]
Element = tuple[Buffer, Indices]
"""An element of a buffer: what a Load reads and a Block writes."""

LoopKind = Literal[
    "serial",
    "unroll",
    "vectorize",
    "intrinsic",
    "group.0",
    "group.1",
    "group.2",
    "local.0",
    "local.1",
    "local.2",
    "vthread",
]
"""What runs the iterations: time, copies of the body, vector lanes, or work-group/item ids.

`intrinsic` is what an instruction does with all loops inside, see `retune.intrinsics`.

A virtual thread is a copy of the body that keeps step with the other copies, so that all of them
share one pass over the loops inside. Where a loop over work-items lies inside another one over
the same axis, the inner one shares out a piece of work that all items need.
"""

STRAIGHT: frozenset[LoopKind] = frozenset({"unroll", "vectorize", "intrinsic"})
"""Kinds whose iterations are statements side by side, or one statement: no loop in time."""

PEEL = "peel"
"""Note of a loop over tiles whose first and last iterations lowering sets apart, because masks of
padded data hold in all others. It changes no result."""

FEW = "few"
"""Note of a loop of one iteration around a copy of a nest for few sizes: those of which some extent
is shorter than a vector."""

ATTENTION = "attention"
"""Note of a loop over rows of attention, all of whose stages are inside: lowering has a function
do it. It changes no more than roundings."""

AHEAD = "ahead"
"""Note of the loops of a copy into local memory that nothing reads before a barrier which waits for
it: devices that copy asynchronously do so. It changes no result."""

NEAR = "near"
"""Note of a loop whose copies into local memory read much again that others copied shortly before:
they go through the first-level cache. It changes no result."""

IDENTITY: Mapping[Reducer, float] = {
    "sum": 0.0,
    "prod": 1.0,
    "max": float("-inf"),
    "min": float("inf"),
    "bitand": -1,
}
"""The value that changes nothing when combined; what a reduction starts from."""


def identity(reducer: Reducer, dtype: DType) -> Const:
    """The start value of a reduction in a type; integers have no infinities, so their limits."""
    value = IDENTITY[reducer]
    if not dtype.is_float and reducer in ("max", "min"):
        value = dtype.limits[0 if reducer == "max" else 1]
    if dtype.is_unsigned and reducer == "bitand":
        value = dtype.limits[1]
    return const(value, dtype)


@node
class Block(IRNode):
    """`buffer[indices] = value`, or `buffer[indices] <reducer>= value`, where `guard` holds."""

    name: str
    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    reducer: Reducer | None = None
    guard: Expr | None = None
    decomposed: bool = False
    """True when a separate init block sets the start value of this reduction."""


class _Outer(IRNode):
    """Base of statements that others are in: they know which ones, see `inside`."""

    __slots__ = ("_inside",)
    _inside: "Inside"


@node
class For(_Outer):
    """`body` for each value of `var` in [0, extent)."""

    var: Var
    extent: Expr
    body: "Stmt"
    kind: LoopKind = "serial"
    reduce: bool = False
    """True when the loop comes from a reduce axis."""
    shifted: bool = False
    """True for an outer loop whose last tile is moved back to overlap the one before it."""
    unroll: Expr | None = None
    """For serial loops: how many iterations the device's compiler is asked to unroll."""
    notes: tuple[tuple[str, str | int], ...] = ()
    """Annotations: they change nothing, and are printed with the loop."""
    intrinsic: str = ""
    """Of a loop of that kind: the name of what does it."""

    @property
    def in_order(self) -> bool:
        """Whether one item runs all iterations, one after the other."""
        return self.kind == "serial" or self.kind in STRAIGHT

    def around(self, body: "Stmt") -> "For":
        """The same loop with another body."""
        return For(
            self.var, self.extent, body, self.kind, self.reduce, self.shifted, self.unroll,
            self.notes, self.intrinsic,
        )  # fmt: skip


@node
class Seq(_Outer):
    """Statements in order."""

    stmts: tuple["Stmt", ...]


@dataclass(frozen=True, slots=True)
class Barrier:
    """Every item of a work-group comes here before any goes on, and sees local memory as it is."""

    pending: int = 0
    """How many of the latest copies, of those noted `ahead`, need not be there yet."""


Stmt = Block | For | Seq | Barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A sequence of root statements over buffers; each root nest becomes one kernel."""

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    scratch: tuple[Buffer, ...]
    body: Seq
    packed: tuple[str, ...] = ()
    """Names of constant inputs that are re-ordered at compile time to the order of their reads."""
    images: tuple[tuple[str, int], ...] = ()
    """Names of constant inputs that kernels may read through images of four channels, and the
    texels of a row."""

    def __str__(self) -> str:
        return show(self)


def from_dag(dag: Dag, name: str = "program") -> Program:
    """The program that computes each stage by its own perfect nest, in order."""
    nests: list[Stmt] = []
    for stage in dag.stages:
        nests.extend(_nests(stage))
    outputs = tuple(t.buffer for t in dag.outputs)
    return Program(
        name=name,
        inputs=tuple(t.buffer for t in dag.placeholders),
        outputs=outputs,
        scratch=tuple(t.buffer for t in dag.stages if t.buffer not in outputs),
        body=Seq(tuple(nests)),
    )


def _nests(stage: Tensor) -> Iterator[Stmt]:
    match stage.op:
        case Compute() as op:
            renamed = {
                a.var: Var(f"{stage.name}.{a.var.name}") for a in (*op.axes, *op.reduce_axes)
            }
            indices = tuple(renamed[a.var] for a in op.axes)
            body = substitute(op.body, dict(renamed))
            block: Stmt = Block(stage.name, stage.buffer, indices, body, op.reducer)
            steps = over(
                [(renamed[a.var], as_expr(a.extent)) for a in op.reduce_axes], block, reduce=True
            )
            yield over([(renamed[a.var], as_expr(a.extent)) for a in op.axes], steps)
        case Concat() as op:
            offset = 0
            for position, source in enumerate(op.inputs):
                name = f"{stage.name}.{position}"
                yield _copy(name, stage.buffer, source, op.dim, offset)
                offset += source.shape[op.dim]
        case None:
            return


def _copy(name: str, target: Buffer, source: Tensor, dim: int, offset: int) -> Stmt:
    axes = [(Var(f"{name}.i{d}"), as_expr(n)) for d, n in enumerate(source.shape)]
    variables = tuple(var for var, _ in axes)
    indices = tuple(v + offset if d == dim else v for d, v in enumerate(variables))
    return over(axes, Block(name, target, indices, Load(source.buffer, variables)))


def over(axes: Iterable[tuple[Var, Expr]], body: Stmt, *, reduce: bool = False) -> Stmt:
    """The body for all values of the variables below their extents, the first outermost."""
    for var, extent in reversed([*axes]):
        body = For(var, extent, body, reduce=reduce)
    return body


def nested(loops: Sequence[For], body: Stmt) -> Stmt:
    """The body in loops like these, the first outermost."""
    for loop in reversed(loops):
        body = loop.around(body)
    return body


def sequence(*stmts: Stmt) -> Seq:
    """The statements one after the other, those of sequences among them too."""
    return Seq(tuple(one for s in stmts for one in (s.stmts if isinstance(s, Seq) else (s,))))


@node
class Inside(IRNode):
    """The parts of a statement."""

    blocks: tuple[Block, ...]
    loops: tuple[For, ...]
    waits: bool
    """Whether items wait for each other somewhere."""

    @property
    def straight(self) -> bool:
        """Whether it expands to assignments: no loop in time or over ids, and no wait."""
        return not self.waits and all(loop.kind in STRAIGHT for loop in self.loops)


def inside(stmt: Stmt) -> Inside:
    """The parts of the statement, itself included; computed once."""
    match stmt:
        case Block():
            return Inside((stmt,), (), waits=False)
        case Barrier():
            return Inside((), (), waits=True)
        case For() | Seq():
            try:
                return stmt._inside  # noqa: SLF001
            except AttributeError:
                found = _inside(stmt)
                object.__setattr__(stmt, "_inside", found)
                return found


def _inside(stmt: "For | Seq") -> Inside:
    if isinstance(stmt, For):
        body = inside(stmt.body)
        return Inside(body.blocks, (stmt, *body.loops), body.waits)
    parts = [inside(s) for s in stmt.stmts]
    return Inside(
        tuple([block for part in parts for block in part.blocks]),
        tuple([loop for part in parts for loop in part.loops]),
        any(part.waits for part in parts),
    )


def blocks(stmt: Stmt) -> tuple[Block, ...]:
    """All blocks in program order."""
    return inside(stmt).blocks


def loops(stmt: Stmt) -> tuple[For, ...]:
    """All loops in program order, outer ones before inner ones."""
    return inside(stmt).loops


def paths(stmt: Stmt, around: tuple[For, ...] = ()) -> Iterator[tuple[Block, tuple[For, ...]]]:
    """Every block in program order, with the loops around it, outermost first."""
    match stmt:
        case Block():
            yield stmt, around
        case For():
            yield from paths(stmt.body, (*around, stmt))
        case Seq(stmts):
            for child in stmts:
                yield from paths(child, around)
        case Barrier():
            pass


def expressions(block: Block) -> Indices:
    """The block's indices, its value, and its guard if it has one."""
    guard = () if block.guard is None else (block.guard,)
    return (*block.indices, block.value, *guard)


def touched(block: Block) -> tuple[Buffer, ...]:
    """The buffers that its value reads, in order, then the one that it writes."""
    return (*(load.buffer for load in loads(block.value)), block.buffer)


def for_most_sizes(stmt: Stmt) -> Stmt:
    """The statement without copies for few sizes."""

    def rule(node: Stmt) -> Stmt | None:
        return Seq(()) if isinstance(node, For) and FEW in dict(node.notes) else None

    return rewrite(stmt, rule)


def is_compile_time(root: Stmt) -> bool:
    """Whether the nest computes a constant from constants: numpy does it once, no kernel."""
    return blocks(root)[0].buffer.scope == "constant"


def block_variables(block: Block) -> frozenset[Var]:
    """The variables that the block's indices, value and guard use."""
    return frozenset[Var]().union(*map(variables, expressions(block)))


def rewrite(stmt: Stmt, rule: Callable[[Stmt], Stmt | None]) -> Stmt:
    """Bottom-up: `rule(node)` replaces a node whose children are already rewritten.

    A rule that gives an empty Seq removes the node; loops without a body vanish; sequences are
    flattened. Parts that no rule changes stay the same objects.
    """
    match stmt:
        case Seq(stmts):
            result: list[Stmt] = []
            for child in stmts:
                new = rewrite(child, rule)
                result.extend(new.stmts if isinstance(new, Seq) else (new,))
            if len(result) == 1:
                stmt = result[0]
            elif len(result) != len(stmts) or any(map(is_not, result, stmts)):
                stmt = Seq(tuple(result))
        case For():
            body = rewrite(stmt.body, rule)
            if isinstance(body, Seq) and not body.stmts:
                return body
            stmt = stmt if body is stmt.body else stmt.around(body)
        case Block() | Barrier():
            pass
    new = rule(stmt)
    return stmt if new is None else new


def replaced(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """The statement with `new` instead of `old`, that very object, wherever it is a part of it.

    An empty Seq removes it, as in `rewrite`; what it is not in stays the same objects.
    """
    match stmt:
        case _ if stmt is old:
            return new
        case For():
            body = replaced(stmt.body, old, new)
            if body is stmt.body:
                return stmt
            return body if isinstance(body, Seq) and not body.stmts else stmt.around(body)
        case Seq(stmts):
            parts = [replaced(child, old, new) for child in stmts]
            if not any(map(is_not, parts, stmts)):
                return stmt
            whole = sequence(*parts)
            return whole.stmts[0] if len(whole.stmts) == 1 else whole
        case Block() | Barrier():
            return stmt


def guarded(stmt: Stmt, condition: Expr) -> Stmt:
    """The statement, whose blocks keep to the condition as well."""

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block):
            return None
        return replace(node, guard=all_of(condition, *conjuncts(node.guard)))

    return rewrite(stmt, rule)


_HOLDS = const(True, BOOL)


def map_exprs(stmt: Stmt, change: Callable[[Expr], Expr]) -> Stmt:
    """The statement with `change` applied to every index, value, guard, extent and unroll count.

    A guard that becomes true is gone.
    """

    def rule(node: Stmt) -> Stmt | None:
        match node:
            case Block():
                old = expressions(node)
                new = tuple([change(expr) for expr in old])
                if not any(map(is_not, new, old)):
                    return None
                rank = len(node.indices)
                guard = None if node.guard is None or new[-1] == _HOLDS else new[-1]
                return Block(
                    node.name, node.buffer, new[:rank], new[rank], node.reducer, guard,
                    node.decomposed,
                )  # fmt: skip
            case For():
                extent = change(node.extent)
                unroll = None if node.unroll is None else change(node.unroll)
                if extent is node.extent and unroll is node.unroll:
                    return None
                return replace(node, extent=extent, unroll=unroll)
            case Seq() | Barrier():
                return None

    return rewrite(stmt, rule)


def with_body(program: Program, body: Stmt) -> Program:
    """The program over another body."""
    return replace(program, body=sequence(body))


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """The statement with variables replaced in every expression."""
    return map_exprs(stmt, Substitution(values))


def marked(stmt: Stmt, mark: str) -> Stmt:
    """The statement with that mark behind the names of its blocks and loops."""
    names = {n.var: Var(f"{n.var.name}.{mark}") for n in loops(stmt)}

    def rename(node: Stmt) -> Stmt | None:
        match node:
            case For():
                return replace(node, var=names[node.var])
            case Block():
                return replace(node, name=f"{node.name}.{mark}")
            case _:
                return None

    return rewrite(substitute_stmt(stmt, names), rename)


def map_accesses(stmt: Stmt, change: Callable[[Buffer, Indices], Element | None]) -> Stmt:
    """The statement with every `buffer[indices]`, read or written, at the position `change` gives.

    None leaves an access as it is. Accesses inside indices are changed before those around them.
    """

    def read(load: Load) -> Expr | None:
        moved = change(load.buffer, load.indices)
        return None if moved is None else Load(*moved)

    def write(node: Stmt) -> Stmt | None:
        if not isinstance(node, Block) or (moved := change(node.buffer, node.indices)) is None:
            return None
        return replace(node, buffer=moved[0], indices=moved[1])

    return rewrite(map_exprs(stmt, Redirection(read)), write)


def replace_buffer(stmt: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """The statement with every read and write of one buffer going to another, same indices."""
    return map_accesses(stmt, lambda buffer, at: (new, at) if buffer == old else None)


def sizes_in(program: Program) -> frozenset[SizeVar]:
    """The sizes on which buffers, loops and values of the program depend."""
    buffers = (*program.inputs, *program.scratch, *program.outputs)
    extents = [*(n for b in buffers for n in b.shape), *(n.extent for n in loops(program.body))]
    values = [e for block in blocks(program.body) for e in (*block.indices, block.value)]
    return frozenset(v for expr in (*extents, *values) for v in size_variables(expr))


def show(program: Program) -> str:
    """The program as indented text: buffers, then the loop nest."""
    lines = [f"program {program.name}:"]
    packed, images = set(program.packed), dict(program.images)
    for role, group in (
        ("input", program.inputs),
        ("scratch", program.scratch),
        ("output", program.outputs),
    ):
        for b in group:
            notes = ("" if b.scope == "global" else f" {b.scope}") + (
                " packed" if b.name in packed else ""
            )
            notes += f" image of rows of {images[b.name]}" if b.name in images else ""
            lines.append(f"  {role} {b.name}: {b.dtype}[{', '.join(map(str, b.shape))}]{notes}")
    lines.extend(show_stmt(program.body, 1))
    return "\n".join(lines)


def show_stmt(stmt: Stmt, depth: int = 0) -> list[str]:
    """The statement as lines of text, indented by two spaces a level."""
    pad = "  " * depth
    match stmt:
        case Seq(stmts):
            return [line for child in stmts for line in show_stmt(child, depth)]
        case For():
            notes = [stmt.kind] if stmt.kind != "serial" else []
            notes += ["reduce"] if stmt.reduce else []
            notes += ["shifted"] if stmt.shifted else []
            notes += [f"unroll={stmt.unroll}"] if stmt.unroll is not None else []
            notes += [f"{key}={value}" for key, value in stmt.notes]
            tail = f"  # {', '.join(notes)}" if notes else ""
            head = f"{pad}for {stmt.var} in range({stmt.extent}):{tail}"
            return [head, *show_stmt(stmt.body, depth + 1)]
        case Block():
            sign = {None: "=", "sum": "+=", "prod": "*=", "bitand": "&="}.get(
                stmt.reducer, f"{stmt.reducer}="
            )
            target = f"{stmt.buffer.name}[{', '.join(map(str, stmt.indices))}]"
            guard = f"  # where {stmt.guard}" if stmt.guard is not None else ""
            return [f"{pad}{target} {sign} {converted(stmt.value, stmt.buffer)}{guard}"]
        case Barrier(pending):
            return [f"{pad}barrier" + (f"  # {pending} copies pending" if pending else "")]
