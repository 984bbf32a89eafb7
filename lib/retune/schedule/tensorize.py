"""The primitive that gives loops to an instruction of the device.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records it.
"""

from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.instructions import intrinsic, mismatch
from retune.ir.stmt import For, Program, Stmt
from retune.schedule.loops import loop_named, replace_loop, root_of


def tensorize(program: Program, name: str, wanted: str) -> Program:
    """See Schedule.tensorize."""
    entry, loop = intrinsic(wanted), loop_named(program, name)
    who = f"tensorize({name}, {wanted})"
    if loop.kind != "serial":
        raise ScheduleError(f"{who}: expected a serial loop, it is {loop.kind} already")
    nest = root_of(program, loop)
    if problem := mismatch(entry, nest, loop, unordered="constant"):
        raise ScheduleError(f"{who}: {problem}")
    return replace_loop(program, name, lambda node: replace(_taken(node), intrinsic=entry.name))


def _taken(nest: Stmt) -> For:
    """The loops, all done by the instruction."""
    assert isinstance(nest, For)
    inside = _taken(nest.body) if isinstance(nest.body, For) else nest.body
    return replace(nest, kind="intrinsic", body=inside)
