"""Sums of sums: weights in blocks, whose products are scaled block by block.

    products[i, block, j] += q[j, block, k]*x[i, block, k]        in int32, or in floats
    y[i, j] += products[i, block, j]*scale[j, block]

Both are held in registers: the products of one block are made before they are added. Read
`total_of`, then `order_partial_sums`.
"""

from retune.intrinsics import Intrinsic
from retune.ir.expr import loads
from retune.ir.stmt import Block, Program
from retune.schedule.schedule import Schedule
from retune.schedule.stages import loops_of, readers
from retune.targets.accumulators import accumulate_in_registers
from retune.targets.instructions import split_pack
from retune.targets.tiling import unroll_all


def total_of(program: Program, block: Block) -> Block | None:
    """The outer sum: the only reader of the reduction's results, one of them in each step.

    None if there is no such block.
    """
    users = readers(program, block.buffer)
    if len(users) != 1 or users[0].reducer != "sum" or block.reducer != "sum":
        return None
    (user,) = users
    found = [load for load in loads(user.value) if load.buffer == block.buffer]
    steps = [loop.var for loop in loops_of(program, user.name) if loop.reduce]
    if len(found) != 1 or len(steps) != 1 or not user.indices:
        return None
    read = found[0].indices
    same = {*read} == {*user.indices, *steps} and len(read) == len(user.indices) + 1
    return user if same and read[-1] == user.indices[-1] else None


def order_partial_sums(
    s: Schedule, name: str, total: str, lanes: int, packed: Intrinsic | None
) -> None:
    """The loop over blocks around the tile of `total`; in each step the tile of the products.

    Both tiles are written out, and so is what lies in one word of a weight. Products of packs are
    made by an instruction, if there is one.
    """
    own, axes = s.loops(total), s.axes(total)
    (step,) = [n for n in own if s.loop(n).reduce]
    accumulate_in_registers(s, [step], [n for n in own if n in axes], lanes)
    s.compute_at(name, step)
    around, axes = s.loops(name), s.axes(name)
    own = around[around.index(axes[0]) :]
    steps, inside = [n for n in own if s.loop(n).reduce], ""
    if packed is not None:
        inside = split_pack(s, steps, packed.pack)
    accumulate_in_registers(s, steps, [n for n in own if n in axes], lanes, inside)
    unroll_all(s, steps[1:])
    if packed is not None:
        s.tensorize(inside, packed.name)
