"""What attention as one kernel takes on a GPU, by the tile of its work-groups.

A step over keys is a chain of products and exponentials that a warp waits for; several groups on a
unit hide that, until the unit is busy. Fitted to the times of 17 tiles for 12 heads of 64 and 128
to 4,096 tokens on an H100.
"""

from functools import reduce

import numpy as np

from retune.core.target import DeviceSpec
from retune.intrinsics.attention import ROWS, AttentionTile
from retune.ir.expr import Select
from retune.ir.stmt import ATTENTION
from retune.targets.cost.nests import Array, Kernel, parallel_extent
from retune.targets.tiling import GROUP

_FIXED = 3000.0
"""Cycles of a kernel beside its steps."""
_STEP, _KEY, _TILE = 500.0, 16.0, 7.5
"""Cycles of a step that nothing hides: once, for each key, and for each key and each sixteen rows
of a warp."""
_PART = 400.0
"""Cycles to add up the results of a part."""
_BUSY = 3.4
"""Cycles of a unit for sixteen rows by a key."""
_L2_BYTES = 2100.0
"""Of keys and values that come to all units from the second-level cache in a cycle: each group
reads all of them."""
_WIDTH = 64.0
"""Elements of a key for which these are."""
_FITTED_BYTES = 2
"""Of an element, in what these were fitted to. Instructions multiply half as many elements of four
bytes at once."""
_REGISTERS, _OWN_REGISTERS = 65_536, 60
"""Of a unit, and of an item beside scores, results and queries."""
_LOCAL_BYTES = 228.0 * 1024
"""Of a unit: keys and values of all of its groups."""


def attention_tile(kernel: Kernel) -> AttentionTile | None:
    """The tile of a kernel of attention; None for others."""
    notes = (dict(loop.notes) for nest in kernel for loop in nest.loops)
    found = next((str(note[ATTENTION]) for note in notes if ATTENTION in note), None)
    return None if found is None else AttentionTile.of(found)


def attention_cycles(kernel: Kernel, tile: AttentionTile, spec: DeviceSpec) -> Array:
    """Cycles of a kernel of attention from launch to end. float64 [n]"""
    scores = next(nest for nest in kernel if len(nest.accesses.operands) > 1)
    *_, keys, width = (scores.extent(loop) for loop in scores.loops)
    groups, units = parallel_extent(kernel, GROUP), float(max(1, spec.compute_units))
    wide = scores.accesses.operands[0].item_bytes / _FITTED_BYTES
    held = tile.tiles * (tile.keys / 2 + width * (0.5 + 0.25 * wide)) + _OWN_REGISTERS
    local = tile.stages * tile.step * 4 * (width * wide + 8)
    resident = np.floor(np.minimum(_REGISTERS / (held * tile.items), _LOCAL_BYTES / local))
    resident = np.clip(np.ceil(groups / units), 1.0, np.maximum(1.0, resident))
    steps = np.ceil(keys / tile.step)
    mean = (steps + 1.0) / 2.0 if _is_causal(kernel) else steps
    waits = _STEP + tile.keys * (_KEY + _TILE * tile.tiles) * width / _WIDTH * wide
    work = _BUSY * tile.rows / ROWS * tile.step * width / _WIDTH * wide
    rounds = np.maximum(1.0, groups / (units * resident))
    busy = rounds * mean * np.maximum(waits, resident * work)
    read = groups * mean * tile.step * 4.0 * width * wide / _L2_BYTES
    return _FIXED + _PART * (tile.parts - 1) + reduce(np.maximum, (busy, read, steps * waits))


def _is_causal(kernel: Kernel) -> bool:
    """Whether the first queries see few keys."""
    return any(isinstance(nest.accesses.block.value, Select) for nest in kernel)
