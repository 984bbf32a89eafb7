"""The form of a product that rounds no operand: what instructions of TF32 read, as it lies.

    y[i] += round_to_tf32(a[i, k]) * round_to_tf32(b[k])  ->  y[i] += a[i, k] * b[k]

That is nearer to the network's values; without instructions that round, it is faster, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.core.dtypes import FLOAT32, TF32
from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, Load, Rewriter, loads, walk
from retune.ir.functions import call, rounding
from retune.ir.stmt import Block, Program, replaced
from retune.schedule.stages import replace_root, root_nest


def rounds(block: Block) -> bool:
    """Whether a stage rounds what it multiplies."""
    rounded = _rounded(block)
    return bool(rounded) and any(node in rounded for node in walk(block.value))


def unrounded(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stage that multiplies float32 as it lies; no stage is made.

    Raises: ScheduleError for sizes, and for a stage that does not round.
    """
    root, block, _ = root_nest(program, name)
    if sizes or not rounds(block):
        raise ScheduleError(f"unrounded({name}): expected a product of {TF32}, and no sizes")
    whole = replace(block, value=_Unrounding(_rounded(block))(block.value))
    nest = replaced(root, block, whole)
    return replace_root(program, root, nest), []


def _rounded(block: Block) -> Mapping[Expr, Load]:
    """The rounding of each float32 element that the stage reads."""
    found = (load for load in loads(block.value) if load.buffer.dtype is FLOAT32)
    return {call(rounding(TF32), load): load for load in found}


class _Unrounding(Rewriter):
    """Expressions in which these elements are not rounded."""

    def __init__(self, rounded: Mapping[Expr, Load]) -> None:
        super().__init__()
        self._rounded = rounded

    def rewritten(self, expr: Expr) -> Expr:
        found = self._rounded.get(expr)
        return super().rewritten(expr) if found is None else found
