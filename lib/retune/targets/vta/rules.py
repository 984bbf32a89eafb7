"""Sketches that follow from what a layer reads: the orders in which its tiles can be made.

Read `stationary_sketches`. The template makes tiles row by row, with all channels of a row before
the next one. A tile that a buffer holds already is not loaded again, so other orders load less:
where the loops go innermost that do not move an operand, it stays on chip for all of them.
"""

from retune.core.errors import ScheduleError
from retune.ir.stmt import Program
from retune.schedule.access import Accesses, AffineAccess
from retune.schedule.space import Sketch, sketch_of
from retune.schedule.stages import block_named
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.expression import SUMS
from retune.targets.vta.template import ORDERS, packed
from retune.targets.vta.workload import Convolution

BY_RULE = "vta.stay."
"""What the names of these sketches begin with."""


def stationary_sketches(program: Program, work: Convolution, config: VtaConfig) -> list[Sketch]:
    """A sketch for each operand of the products that other orders than the template's keep on chip.

    Its candidates are those that load otherwise than with the template's order.
    """
    stage = Accesses.of(block_named(program, SUMS), program.body)
    found: list[Sketch] = []
    for operand in stage.operands:
        number = ORDERS.index(_order(operand, stage))
        if not number:
            continue
        name = f"{BY_RULE}{'weights' if operand.constant else 'inputs'}"
        try:
            sketch = sketch_of(program, lambda s, n=number: packed(s, work, config, n), name)
        except ScheduleError:  # there is a single tile along some axes
            continue
        found += [] if sketch.empty else [sketch]
    return found


def _order(operand: AffineAccess, stage: Accesses) -> tuple[str, ...]:
    """Loops over tiles that move the operand, then those that leave it where it is."""
    moving = {
        loop.var.name.rsplit(".", 1)[-1] for loop in stage.loops if loop.var in operand.moving
    }
    axes = ORDERS[0]
    return (*(a for a in axes if a in moving), *(a for a in axes if a not in moving))
