"""The space of a packed layer: the template's candidates, and those of the rules beside it.

Read `space_of`.
"""

from retune.core.errors import ScheduleError
from retune.ir.stmt import Program, from_dag
from retune.schedule.space import Space, sketch_of
from retune.vta.config import VtaConfig
from retune.vta.expression import expression
from retune.vta.rules import stays
from retune.vta.template import packed
from retune.vta.workload import Convolution

TEMPLATE = "vta.conv2d_packed"
"""Name of the template's sketch, which comes first."""


def program_of(work: Convolution, config: VtaConfig) -> Program:
    """The layer as loops that are not scheduled."""
    return from_dag(expression(work, config), work.name)


def space_of(work: Convolution, config: VtaConfig) -> Space:
    """All decisions that fit the memories.

    Raises: ScheduleError if there are none.
    """
    program = program_of(work, config)
    sketch = sketch_of(program, lambda s: packed(s, work, config), TEMPLATE)
    if sketch.empty:
        raise ScheduleError(f"{work.name}: no tiles of it fit the memories of {config.name}")
    return Space((sketch, *stays(program, work, config)))
