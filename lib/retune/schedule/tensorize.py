"""The primitive that gives a loop to an instruction of the device.

Program -> program, meaning kept, ScheduleError where that is impossible; `Schedule` records it.
"""

from dataclasses import replace

from retune.core.errors import ScheduleError
from retune.ir.dot import WIDTH, dot_operands, is_dot_loop, word_index
from retune.ir.stmt import Block, Program
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
    if not is_dot_loop(loop):
        raise ScheduleError(
            f"{who}: expected a reduce loop of {WIDTH} steps around one block, "
            f"got {loop.extent}{'' if loop.reduce else ' that does not reduce'}"
        )
    assert isinstance(loop.body, Block)
    operands = dot_operands(loop.body)
    if operands is None:
        raise ScheduleError(
            f"{who}: expected int32 sums of products of two bytes, the second one int8; "
            f"got {loop.body.reducer} of {loop.body.value}"
        )
    for load in (operands.a, operands.b):
        ordered_later = load.buffer.scope == "constant"
        if not ordered_later and word_index(load, loop.var) is None:
            raise ScheduleError(
                f"{who}: the four bytes of {load} must lie side by side in one word; split the "
                "last axis by 4, of an operand whose rows are multiples of 4"
            )
    return replace_loop(program, name, lambda node: replace(node, kind="dot4"))
