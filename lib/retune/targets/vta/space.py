"""The space of a packed layer: the template's candidates, and those of the rules beside it.

Read `space_of`.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from retune.core.errors import ScheduleError
from retune.ir.stmt import Program, from_dag
from retune.schedule.space import Sketch, Space, sketch_of
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.estimate import cycles
from retune.targets.vta.expression import expression
from retune.targets.vta.rules import stationary_sketches
from retune.targets.vta.template import KNOBS, ORDER, packed
from retune.targets.vta.workload import Convolution

TEMPLATE = "vta.conv2d_packed"
"""Name of the template's sketch, which comes first."""

_ENUMERATED, _SAMPLED = 1 << 16, 4096
"""Option rows of a sketch that are all looked at, and those that are where there are more."""


def program_of(work: Convolution, config: VtaConfig) -> Program:
    """The layer as loops that are not scheduled."""
    return from_dag(expression(work, config), work.name)


def space_of(work: Convolution, config: VtaConfig) -> Space:
    """All decisions that fit the memories. Each sketch knows what its candidates take, nearly, and
    starts with the fastest by that.

    Raises: ScheduleError if there are none.
    """
    program = program_of(work, config)
    sketch = sketch_of(program, lambda s: packed(s, work, config), TEMPLATE)
    if sketch.empty:
        raise ScheduleError(f"{work.name}: no tiles of it fit the memories of {config.name}")
    return Space(
        tuple(
            _with_cost(s, work, config)
            for s in (sketch, *stationary_sketches(program, work, config))
        )
    )


def _with_cost(sketch: Sketch, work: Convolution, config: VtaConfig) -> Sketch:
    rng = np.random.default_rng(0)
    rows = sketch.all_rows() if sketch.size <= _ENUMERATED else sketch.sample(_SAMPLED, rng)
    cost = partial(_cycles, work, config)
    fastest = rows[int(np.argmin(cost(sketch.values(rows))))]
    return replace(sketch, cost=cost, untuned=fastest)


def _cycles(work: Convolution, config: VtaConfig, decided: Mapping[str, np.ndarray]) -> np.ndarray:
    """Of candidates of one sketch, which all have the same order. float64 [n]"""
    order = int(decided[ORDER][0, 0]) if ORDER in decided else 0
    return cycles(work, config, {name: decided[name][:, 0] for name in KNOBS}, order)
