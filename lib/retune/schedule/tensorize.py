"""The primitive that gives a loop to an instruction of the device.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records it.
"""

from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.dot import dot_problem
from retune.ir.stmt import Program, walk
from retune.schedule.loops import loop_named, replace_loop

INTRINSICS = ("dot4",)
"""What `tensorize` takes."""


def tensorize(program: Program, name: str, intrinsic: str) -> Program:
    """See Schedule.tensorize."""
    loop = loop_named(program, name)
    who = f"tensorize({name}, {intrinsic})"
    if intrinsic not in INTRINSICS:
        raise ScheduleError(f"tensorize({name}): expected {INTRINSICS[0]}, got {intrinsic!r}")
    if loop.kind != "serial":
        raise ScheduleError(f"{who}: expected a serial loop, it is {loop.kind} already")
    nest = next(root for root in program.body.stmts if loop in walk(root))
    if problem := dot_problem(nest, loop, unordered="constant"):
        raise ScheduleError(f"{who}: {problem}")
    return replace_loop(program, name, lambda node: replace(node, kind="dot4"))
