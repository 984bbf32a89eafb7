"""Products of bytes with known bytes, as instructions take them: sums first, zero points after.

Read `ByteWeight`, `byte_product` and `byte_convolution`. Of data x with a zero point, and a weight
that is w - rest, w in eight bits with their sign,

    sum((x - zero) * (w - rest)) = sum(x * w) - zero * sum(w - rest) - rest * sum(x)

where the second sum is known. The zero point of the data need not be. Channels come in words of
four: those that are missing have no weight.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from retune.core.dtypes import INT7, INT8, INT32, UINT8
from retune.frontend.onnx.ops.linear import dense_rows
from retune.frontend.onnx.ops.registry import Emitter
from retune.frontend.onnx.ops.windows import Call
from retune.graph.quantize.arithmetic import signed_bytes
from retune.intrinsics.dot4 import PACK
from retune.ops import Array, lookup
from retune.ops.registry import ints

_BYTES = (UINT8, INT8)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ByteWeight:
    """A weight less its zero point: values - rest."""

    values: Array
    """int8."""
    rest: Array
    """int32, which broadcasts with the values: one for all, or one for each output channel."""

    @property
    def whole(self) -> Array:
        """What they are together. int32"""
        return self.values - self.rest

    def flat(self) -> "ByteWeight":
        """A kernel of one dimension as one of images of height 1."""
        rest = self.rest[:, :, None] if self.rest.ndim else self.rest
        return ByteWeight(self.values[:, :, None], rest)


def byte_weight(emit: Emitter, data: str, kernel: str, zero: str) -> ByteWeight | None:
    """The kernel less its zero point ('' for none, else it broadcasts); None if it is not known.

    None for data that are not bytes, too.
    """
    known, less = emit.known(kernel), emit.known(zero) if zero else np.zeros((), np.int8)
    if emit.type(data).dtype not in _BYTES or known is None or less is None:
        return None
    if known.dtype.name not in _BYTES or not known.size:
        return None
    return ByteWeight(*signed_bytes(known, less))


def byte_product(
    emit: Emitter, data: tuple[str, str], weight: ByteWeight, put: Callable[..., T]
) -> T:
    """Rows of bytes [..., k] less their zero points times a weight [k, n], in int32.

    The zero point ('' for none) broadcasts with what is made. `put` (`emit.temp` or `emit.out`)
    makes the last op.
    """
    rows, zero = data
    turned = _in_words(weight.values.T)
    stored = emit.stored("codes", turned, INT7)
    shape = emit.shape(rows)
    wide = rows
    if missing := turned.shape[1] - shape[-1]:
        pads = (*(0,) * (2 * len(shape) - 1), missing)
        wide = emit.temp("pad", rows, label="words", pads=pads, value=0.0)
    less: list[str] = []
    if np.any(weight.rest):
        sums = emit.temp("reduce_sum", rows, axes=(len(shape) - 1,), keepdims=True)
        less.append(emit.temp("multiply", sums, emit.stored("rest", weight.rest), label="more"))
    if zero and np.any(known := weight.whole.sum(axis=0, dtype=np.int32)):
        less.append(_times(emit, zero, known))
    return _less(emit, lambda last: dense_rows(emit, wide, stored, last), less, put)


def byte_convolution(
    emit: Emitter, call: Call, data: tuple[str, str], weight: ByteWeight, put: Callable[..., T]
) -> T:
    """Bytes less their zero point, one element ('' for none), convolved with the weight, in int32.

    What lies around the data adds nothing. A weight with a rest is that of one group. `put`
    (`emit.temp` or `emit.out`) makes the last op.
    """
    (op, attrs), (images, zero) = call, data
    shape, values = emit.shape(images), weight.values
    around = emit.known(zero) if zero else np.zeros(())
    if around is not None and np.any(around) and any(ints(attrs, "pads")):
        attrs = {**attrs, "border": int(around.reshape(-1)[0])}
    made = _in_words(values) if values.shape[1] == shape[1] else values
    if missing := made.shape[1] - values.shape[1]:
        none = (0,) * len(shape)
        pads = (*none, 0, missing, *none[2:])
        images = emit.temp("pad", images, label="words", pads=pads, value=0.0)
    stored = emit.stored("codes", made, INT7)
    less: list[str] = []
    if np.any(weight.rest):
        ones = emit.stored("ones", _in_words(np.ones((1, *values.shape[1:]), np.int8)), INT7)
        sums = emit.temp(op, images, ones, label="inside", **attrs)
        rest = emit.stored("rest", weight.rest.reshape(1, -1, *weight.rest.shape[2:]))
        less.append(emit.temp("multiply", sums, rest, label="more"))
    if around is None or np.any(around):
        less.append(_times(emit, zero, _inside(op, attrs, shape, weight.whole)))
    return _less(emit, lambda last: last(op, images, stored, **attrs), less, put)


def _less(
    emit: Emitter,
    products: Callable[[Callable[..., Any]], Any],
    less: list[str],
    put: Callable[..., T],
) -> T:
    """The products less all of these; `put` makes the last op."""
    if not less:
        return products(put)
    total = products(emit.temp)
    for value in less[:-1]:
        total = emit.temp("subtract", total, value)
    return put("subtract", total, less[-1])


def _inside(op: str, attrs: dict[str, Any], shape: tuple[int, ...], whole: Array) -> Array:
    """The sums of weights over what lies inside of each window; one for each channel if all do.

    int32 [1, channels, ...]
    """
    if "border" in attrs or not any(ints(attrs, "pads")):
        sums = whole.sum(axis=tuple(range(1, whole.ndim)), dtype=np.int32)
        return sums.reshape(1, -1, *[1] * (whole.ndim - 2))
    ones = np.ones((1, *shape[1:]), np.float64)
    (sums,) = lookup(op).reference([ones, whole.astype(np.float64)], attrs)
    return sums.astype(np.int32)


def _times(emit: Emitter, zero: str, sums: Array) -> str:
    """What a zero point adds to the sums of products."""
    known = emit.known(zero)
    if known is not None:
        return emit.stored("zeros", known.astype(np.int32) * sums)
    factor = emit.cast(zero, INT32)
    return emit.temp("multiply", factor, emit.stored("weights", sums), label="zeros")


def _in_words(weight: Array) -> Array:
    """The weight with as many zeros along its second axis as fill the last word."""
    missing = -weight.shape[1] % PACK
    return np.pad(weight, [(0, missing if d == 1 else 0) for d in range(weight.ndim)])
