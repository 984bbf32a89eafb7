"""The GEMM core as an entry of the registry of instructions: what it does to one row of a block.

    y += int32(a[k]) * int32(b[k])   for k in 0 to block - 1

in each of `block` lanes, which read rows of the weights; `a` is the same for all of them. There is
an entry for each size of a block, as a template gives loops to it by extent.
"""

from retune.core.dtypes import INT8, INT32
from retune.intrinsics import Intrinsic, Operand, Shape, Way, register_intrinsic
from retune.ir.expr import cast
from retune.ir.te import Tensor, compute, placeholder, reduce_axis
from retune.targets.vta.config import VtaConfig

_BLOCKS = tuple(1 << log for log in range(1, 9))


def gemm_name(config: VtaConfig) -> str:
    """The entry's name for a variant, such as `vta.gemm16`."""
    return f"vta.gemm{config.block}"


def _pattern(block: int) -> Tensor:
    k = reduce_axis("k", block)
    a, b = placeholder("a", (block,), INT8), placeholder("b", (block,), INT8)
    return compute("y", (), lambda: cast(a[k], INT32) * cast(b[k], INT32), [a, b], reduce=[k])


def _text(_shape: Shape) -> list[str]:
    """The instruction, whose loops and micro-ops `lower` finds."""
    return ["gemm"]


def _entry(block: int) -> Intrinsic:
    return Intrinsic(
        name=f"vta.gemm{block}",
        pattern=_pattern(block),
        operands=(Operand("a", (INT8,), block), Operand("b", (INT8,), block)),
        ways=(Way(name="core", takes=lambda shape: shape.lanes == block, text={"VTA": _text}),),
    )


GEMMS = tuple(register_intrinsic(_entry(block)) for block in _BLOCKS)
"""All of them."""
