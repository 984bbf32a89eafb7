"""Types of GGUF tensors: how their blocks are decoded, and which blocks of integers they are.

`values` is the reference definition of ggml, in float32 and in its order of operations. `blocks`
states the same numbers as MatMulNBits has them: (q - zero) * scale. The integers are those of the
file. Scales are products of the file's scales, exact in float32. A minimum m becomes the zero point
-m / scale, so that a value may differ from `values` in its last bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_HALF = "<f2"


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix of integers in blocks along its rows."""

    quantized: np.ndarray
    """uint8 [rows, blocks, values of a block], one value each."""
    scales: np.ndarray
    """float32 [rows, blocks]"""
    zeros: np.ndarray | None
    """float32 [rows, blocks]; None: half of the range."""
    bits: int
    """4 or 8."""


@dataclass(frozen=True, slots=True)
class GgufType:
    """A type of GGUF tensors."""

    name: str
    values_of_block: int
    bytes_of_block: int
    decode: Callable[[np.ndarray], np.ndarray]
    """uint8 [n, bytes of a block] -> float32 [n, values of a block]."""
    parts: Callable[[np.ndarray], "_Parts"] | None = None
    """Of quantized types: the integers of each block and their factors."""

    def values(self, raw: np.ndarray) -> np.ndarray:
        """uint8 [rows, bytes] -> float32 [rows, values]."""
        found = self.decode(raw.reshape(-1, self.bytes_of_block))
        return found.reshape(len(raw), -1)

    def blocks(self, raw: np.ndarray) -> Blocks | None:
        """uint8 [rows, bytes] as blocks of integers; None for types of floats."""
        if self.parts is None:
            return None
        rows, found = len(raw), self.parts(raw.reshape(-1, self.bytes_of_block))
        quantized, scales, bits = found.quantized, found.scales, found.bits
        if found.minima is None:
            return Blocks(*_by_rows(rows, quantized, scales), zeros=None, bits=bits)
        flat = scales == 0  # all values of the block are its minimum
        quantized = np.where(flat[..., None], np.uint8(0), quantized)
        scales = np.where(flat, np.float32(1), scales)
        zeros = -found.minima / scales
        quantized, scales, zeros = _by_rows(rows, quantized, scales, zeros)
        return Blocks(quantized, scales, zeros, bits)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Blocks before they are put into rows: q * scale + minimum."""

    quantized: np.ndarray
    """uint8 [n, parts, values of a part]; without minima half of the range is 0."""
    scales: np.ndarray
    """float32 [n, parts]"""
    minima: np.ndarray | None
    bits: int


def _by_rows(rows: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """[n, parts, ...] -> [rows, blocks, ...]"""
    return tuple(array.reshape(rows, -1, *array.shape[2:]) for array in arrays)


def _half(raw: np.ndarray, at: int) -> np.ndarray:
    """float32 [n, 1]: the float16 at that byte of each block."""
    return np.ascontiguousarray(raw[:, at : at + 2]).view(_HALF).astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """The low halves of all bytes, then the high ones."""
    return np.concatenate((raw & 15, raw >> 4), axis=-1)


def _symmetric(found: _Parts) -> np.ndarray:
    """float32 [n, values]: scale * (q - half of the range)."""
    signed = found.quantized.astype(np.float32) - np.float32(1 << (found.bits - 1))
    return (found.scales[..., None] * signed).reshape(len(signed), -1)


def _with_minima(found: _Parts) -> np.ndarray:
    """float32 [n, values]: scale * q + minimum."""
    assert found.minima is not None
    product = found.scales[..., None] * found.quantized.astype(np.float32)
    return (product + found.minima[..., None]).reshape(len(product), -1)


def _q4_0(raw: np.ndarray) -> _Parts:
    """A scale, then 32 values of 4 bits around 8: the first 16 in low halves of bytes."""
    return _Parts(_nibbles(raw[:, 2:])[:, None], _half(raw, 0), None, 4)


def _q4_1(raw: np.ndarray) -> _Parts:
    """As q4_0 from 0, with a minimum behind the scale."""
    return _Parts(_nibbles(raw[:, 4:])[:, None], _half(raw, 0), _half(raw, 2), 4)


def _q8_0(raw: np.ndarray) -> _Parts:
    """A scale, then 32 values of int8."""
    return _Parts((raw[:, 2:] ^ 0x80)[:, None], _half(raw, 0), None, 8)


def _q4_k(raw: np.ndarray) -> _Parts:
    """Two scales, eight pairs of 6 bits, and 8 * 32 values of 4 bits.

    A pair scales the values and the minimum of 32 values. The first four pairs are the low 6 bits
    of eight bytes; of the others, low bits are in four more bytes and high bits in the first eight.
    """
    six = raw[:, 4:16]
    low, high, rest = six[:, :4], six[:, 4:8], six[:, 8:]
    factors = np.concatenate((low & 63, (rest & 15) | (low >> 6 << 4)), axis=1)
    minima = np.concatenate((high & 63, (rest >> 4) | (high >> 6 << 4)), axis=1)
    quantized = _nibbles(raw[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    scales = _half(raw, 0) * factors.astype(np.float32)
    return _Parts(quantized, scales, -(_half(raw, 2) * minima.astype(np.float32)), 4)


def _q6_k(raw: np.ndarray) -> _Parts:
    """256 values of 6 bits around 32, whose low 4 and high 2 bits are apart; 16 scales; a scale.

    Of each 128 values, the first and second 32 are the low halves of 64 bytes, the others the high
    ones; high bits of four such rows of 32 are in one row of 32 bytes. Here they have 8 bits.
    """
    low = _nibbles(raw[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = (raw[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    quantized = (low | high << 4) + np.uint8(128 - 32)
    factors = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return _Parts(quantized.reshape(-1, 16, 16), _half(raw, 208) * factors, None, 8)


def _floats(code: str) -> Callable[[np.ndarray], np.ndarray]:
    return lambda raw: np.ascontiguousarray(raw).view(code).astype(np.float32)


def _bfloat16(raw: np.ndarray) -> np.ndarray:
    """The upper half of float32."""
    return (np.ascontiguousarray(raw).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _quantized(
    name: str,
    sizes: tuple[int, int],
    parts: Callable[[np.ndarray], _Parts],
    meaning: Callable[[_Parts], np.ndarray],
) -> GgufType:
    return GgufType(name, *sizes, decode=lambda raw: meaning(parts(raw)), parts=parts)


KINDS: dict[int, GgufType] = {
    0: GgufType("F32", 1, 4, _floats("<f4")),
    1: GgufType("F16", 1, 2, _floats(_HALF)),
    2: _quantized("Q4_0", (32, 18), _q4_0, _symmetric),
    3: _quantized("Q4_1", (32, 20), _q4_1, _with_minima),
    8: _quantized("Q8_0", (32, 34), _q8_0, _symmetric),
    12: _quantized("Q4_K", (256, 144), _q4_k, _with_minima),
    14: _quantized("Q6_K", (256, 210), _q6_k, _symmetric),
    30: GgufType("BF16", 1, 2, _bfloat16),
}
"""Number in the file -> type."""
