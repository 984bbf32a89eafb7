"""MurmurHash3: 32 bits made of each element's bytes, by multiplications that wrap."""

import numpy as np

from retune.core.dtypes import INT32, UINT32, UINT64, DType
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.proto.scope import MICROSOFT

_MIX = (0xCC9E2D51, 0x1B873593)
_FINAL = ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 0))
"""Shifts, and the factors that follow them; 0 for none."""


@onnx_op("MurmurHash3", domain=MICROSOFT, limits="types of 4 or 8 bytes, no text")
def murmur_hash(node: OnnxNode, emit: Emitter) -> None:
    """The x86 variant of 32 bits over the bytes of each element. Source: Appleby's smhasher."""
    words = _words(emit, node.inputs[0])
    bits = _Bits(emit)
    found = bits.constant(node.integer("seed", 0))
    for word in words:
        mixed = bits.times(bits.turned(bits.times(word, _MIX[0]), 15), _MIX[1])
        turned = bits.turned(emit.temp("bitwise_xor", found, mixed), 13)
        found = emit.temp("add", bits.times(turned, 5), bits.constant(0xE6546B64))
    found = emit.temp("bitwise_xor", found, bits.constant(4 * len(words)))
    for shift, factor in _FINAL:
        moved = emit.temp("shift_right", found, bits.constant(shift))
        found = emit.temp("bitwise_xor", found, moved)
        found = bits.times(found, factor) if factor else found
    if node.integer("positive", 1):
        return emit.same(found)
    return emit.out("bitcast", found, to=INT32)


def _words(emit: Emitter, value: str) -> list[str]:
    """The element's bytes as words of uint32, the low one first."""
    dtype = emit.type(value).dtype

    def bits(to: DType) -> str:
        return value if dtype == to else emit.temp("bitcast", value, to=to)

    if dtype.itemsize == 4:
        return [bits(UINT32)]
    if dtype.itemsize != 8:
        raise emit.refuse(f"a hash of {dtype}", "hash a type of 4 or 8 bytes")
    whole = bits(UINT64)
    high = emit.temp("shift_right", whole, emit.stored("half", np.asarray(32, np.uint64)))
    return [emit.temp("cast", part, to=UINT32) for part in (whole, high)]


class _Bits:
    """Arithmetic of uint32 values and constants."""

    def __init__(self, emit: Emitter) -> None:
        self._emit = emit

    def constant(self, value: int) -> str:
        """A constant, modulo 2**32."""
        return self._emit.stored("constant", np.asarray(value % 2**32, np.uint32))

    def times(self, value: str, factor: int) -> str:
        """The product, modulo 2**32."""
        return self._emit.temp("multiply", value, self.constant(factor))

    def turned(self, value: str, count: int) -> str:
        """The bits rotated to the left."""
        left = self._emit.temp("shift_left", value, self.constant(count))
        right = self._emit.temp("shift_right", value, self.constant(32 - count))
        return self._emit.temp("bitwise_or", left, right)
