"""The GEMM core as an entry of the registry of instructions: what it does to one row of a block.

    y += int32(a[k]) * int32(b[k])   for k in 0 to block - 1

in each of `block` lanes, which read rows of the weights; `a` is the same for all of them. There is
an entry for each size of a block, as a template gives loops to it by extent.
"""

from retune.core.dtypes import INT8
from retune.intrinsics import (
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    register_intrinsic,
)
from retune.targets.vta.config import VtaConfig

_BLOCKS = tuple(1 << log for log in range(1, 9))


def gemm_name(config: VtaConfig) -> str:
    """The entry's name for a variant, such as `vta.gemm16`."""
    return f"vta.gemm{config.block}"


def _text(_: Signature) -> list[str]:
    """The instruction, whose loops and micro-ops `lower` finds."""
    return ["gemm"]


def _entry(block: int) -> Intrinsic:
    return Intrinsic(
        name=f"vta.gemm{block}",
        k=block,
        operands=(MatrixOperand("a", (INT8,), block), MatrixOperand("b", (INT8,), block)),
        implementations=(Implementation("core", lambda s: s.lanes == block, {"VTA": _text}),),
    )


GEMMS = tuple(register_intrinsic(_entry(block)) for block in _BLOCKS)
"""All of them."""
