"""Primitives that say what runs a loop: copies of its body, lanes, groups, items, an instruction.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records them.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.intrinsics import intrinsic, mismatch
from retune.ir.expr import Buffer, Const, Expr, loads
from retune.ir.reduction import reads
from retune.ir.simplify import Simplifying, range_below
from retune.ir.stmt import (
    Block,
    For,
    LoopKind,
    Program,
    Stmt,
    block_variables,
    blocks,
    loops,
    map_exprs,
)
from retune.schedule.effects import check_sums
from retune.schedule.loops import loop_named, replace_loop, root_of

GROUP_AXES: tuple[LoopKind, ...] = ("group.0", "group.1", "group.2")
ITEM_AXES: tuple[LoopKind, ...] = ("local.0", "local.1", "local.2")
AXES: tuple[LoopKind, ...] = (*GROUP_AXES, *ITEM_AXES, "vthread")
"""What `bind` takes."""


def run_as(program: Program, name: str, kind: LoopKind) -> Program:
    """The loop run as `kind`. See Schedule.unroll, vectorize and bind."""
    loop = loop_named(program, name)
    if loop.kind != "serial":
        raise ScheduleError(f"{kind}({name}): expected a serial loop, it is {loop.kind} already")
    if loop.reduce and kind not in ("unroll", "vectorize"):
        raise ScheduleError(
            f"{kind}({name}): expected a spatial loop, got a reduce loop, which runs in order; "
            "`rfactor` makes sums in parts"
        )
    if kind in AXES:
        _check_parallel(program, loop, kind)
    bound = replace_loop(program, name, lambda node: replace(node, kind=kind))
    if kind in AXES:
        check_sums(f"bind({name})", bound)
    return bound


def hint_unroll(program: Program, name: str, count: Expr) -> Program:
    """See Schedule.unroll."""
    return replace_loop(program, name, lambda node: replace(node, unroll=count))


def tensorize(program: Program, name: str, wanted: str) -> Program:
    """See Schedule.tensorize."""
    entry, loop = intrinsic(wanted), loop_named(program, name)
    who = f"tensorize({name}, {wanted})"
    if loop.kind != "serial":
        raise ScheduleError(f"{who}: expected a serial loop, it is {loop.kind} already")
    nest = root_of(program, loop)
    problem = mismatch(entry, nest, loop, unordered="constant")
    if problem and mismatch(entry, *_settled(nest, name), unordered="constant"):
        raise ScheduleError(f"{who}: {problem}")
    return replace_loop(program, name, lambda node: replace(_taken(node), intrinsic=entry.name))


def _settled(nest: Stmt, name: str) -> tuple[Stmt, For]:
    """The nest, and a loop of it, with what the ranges of its loops prove, as lowering will."""
    known = (n for n in loops(nest) if isinstance(n.extent, Const))
    ranges = {n.var: range_below(n.extent) for n in known}
    nest = map_exprs(nest, Simplifying(ranges))
    return nest, next(n for n in loops(nest) if n.var.name == name)


def _taken(nest: Stmt) -> For:
    """The loops, all done by the instruction."""
    assert isinstance(nest, For)
    inside = _taken(nest.body) if isinstance(nest.body, For) else nest.body
    return replace(nest, kind="intrinsic", body=inside)


def annotate(program: Program, name: str, key: str, value: str | int) -> Program:
    """See Schedule.annotate."""
    if not key.isidentifier():
        raise ScheduleError(f"annotate({name}): the key is a word, got {key!r}")
    if "\n" in str(value):
        raise ScheduleError(f"annotate({name}): the value of {key} is one line")

    def note(loop: For) -> Stmt:
        return replace(loop, notes=tuple((dict(loop.notes) | {key: value}).items()))

    return replace_loop(program, name, note)


def free_group_axis(program: Program, name: str) -> LoopKind:
    """The first group axis that no loop of the nest runs on. Raises: ScheduleError for none."""
    root = root_of(program, loop_named(program, name))
    taken = {n.kind for n in loops(root)}
    for axis in GROUP_AXES:
        if axis not in taken:
            return axis
    raise ScheduleError(f"parallel({name}): all three group axes of its nest are taken")


def _check_parallel(program: Program, loop: For, axis: LoopKind) -> None:
    """Iterations of `loop` may run at once on `axis`: no other one shares what they write."""
    root = root_of(program, loop)
    if axis != "vthread":
        for other in loops(root):
            if other.kind == axis:
                _check_same_axis(loop, other, axis)
    inside = blocks(loop.body)
    outside = [b for b in blocks(root) if not any(b is i for i in inside)]
    if axis != "vthread":
        _check_outside(loop, axis, inside, outside)
    if not axis.startswith("group"):
        _check_shared(loop, axis, inside, outside)


def _check_same_axis(loop: For, other: For, axis: LoopKind) -> None:
    """Two loops on one axis: side by side, or a shared piece of work inside all items' work."""
    if other.extent != loop.extent:
        raise ScheduleError(
            f"bind({loop.var}): {axis} runs {other.var} already, with extent {other.extent}"
        )
    for around, inner in ((loop, other), (other, loop)):
        if not any(n is inner for n in loops(around.body)):
            continue
        shared = all(
            b.buffer.scope == "local" and around.var not in block_variables(b)
            for b in blocks(inner.body)
        )
        if axis.startswith("group") or not shared:
            raise ScheduleError(
                f"bind({loop.var}): {axis} runs {other.var} already, one inside the other; only "
                "a copy to local memory may share an axis with the loops around it"
            )


def _check_outside(
    loop: For, axis: LoopKind, inside: Sequence[Block], outside: Sequence[Block]
) -> None:
    """Blocks beside the loop neither run once too often nor need what other iterations hold."""
    made = {b.buffer for b in inside}
    read = {b for block in inside for b in _reads(block)}
    for block in outside:
        seen = {b for b in _reads(block) & made if axis.startswith("group") or b.scope != "local"}
        repeated = block.buffer.scope == "global" and (
            axis.startswith("group") or block.buffer in made | read
        )
        if repeated or seen:
            raise ScheduleError(
                f"bind({loop.var}): {block.name} is outside the loop and would run in every "
                "iteration; bind a loop around both, or decompose after binding"
            )


def _check_shared(
    loop: For, axis: LoopKind, inside: Sequence[Block], outside: Sequence[Block]
) -> None:
    """Local memory that is used inside the loop alone is one for all its iterations."""
    for block in inside:
        alone = block.buffer.scope == "local" and not any(reads(b, block.buffer) for b in outside)
        if alone and loop.var in block_variables(block):
            raise ScheduleError(
                f"bind({loop.var}): {block.buffer} in local memory holds one iteration's part; "
                f"bind to {axis} before copying to local memory"
            )


def _reads(block: Block) -> set[Buffer]:
    return {load.buffer for load in loads(block.value)}
