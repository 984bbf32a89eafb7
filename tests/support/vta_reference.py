"""What packed layers compute, in numpy: the judge of the simulators of VTA."""

from collections.abc import Mapping

import numpy as np

from retune.targets.vta.workload import DATA, WEIGHT, Convolution, alu


def dense(*, n: int = 1, c: int, o: int, name: str = "dense", **rest: object) -> Convolution:
    """A dense layer: [n/B, c/C] by [o/C, c/C]."""
    return Convolution(n=n, c=c, h=1, w=1, o=o, name=name, **rest)


def reference(work: Convolution, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The output of the layer in numpy, exact. int8 [n/B, o/C, h, w, B, C]"""
    total = sums(work, arrays[DATA], arrays[WEIGHT])
    return epilogue(work, total, arrays)


def epilogue(work: Convolution, total: np.ndarray, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """The steps on sums int32 [n/B, o/C, h, w, B, C], and the low bytes of what they make."""
    values = {
        operand.name: arrays[operand.name].astype(np.int32)
        if operand.reach == "image"
        else arrays[operand.name].reshape(1, work.o, 1, 1, -1, total.shape[-1])
        for operand in work.operands
    }
    for step in work.steps:
        old = total if step.to is None else values[step.to]
        by = step.imm or 0 if step.operand is None else values[step.operand]
        new = alu(step.op, old, by)
        if step.to is None:
            total = new
        else:
            values[step.to] = new
    return total.astype(np.int8)


def sums(work: Convolution, data: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The sums of products before the epilogue. int32 [n/B, o/C, h, w, B, C]"""
    # float64 is exact below 2**53, and has fast products of matrices.
    x, weights = data.astype(np.float64), weight.astype(np.float64)
    batch, block = data.shape[-2:]
    total = np.zeros((work.n, work.o, *work.out_size, batch, block))
    if work.transposed:
        _spread(work, x, weights, total)
    else:
        _gather(work, x, weights, total)
    return total.astype(np.int64).astype(np.int32)


def _gather(work: Convolution, x: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """Adds to every output what its window sees."""
    top, left, bottom, right = work.padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right), (0, 0), (0, 0)))
    (sh, sw), (dh, dw), (rows, columns) = work.strides, work.dilation, work.out_size
    for dy in range(work.kernel[0]):
        for dx in range(work.kernel[1]):
            y = slice(dy * dh, dy * dh + (rows - 1) * sh + 1, sh)
            z = slice(dx * dw, dx * dw + (columns - 1) * sw + 1, sw)
            total += _products(x[:, :, y, z], weights[:, :, dy, dx])


def _spread(work: Convolution, x: np.ndarray, weights: np.ndarray, total: np.ndarray) -> None:
    """Adds every input to all outputs whose windows see it."""
    top, left, bottom, right = work.padding
    (sh, sw), (rows, columns) = work.strides, work.out_size
    whole = np.zeros((*total.shape[:2], top + rows + bottom, left + columns + right,
                      *total.shape[4:]))  # fmt: skip
    for dy in range(work.kernel[0]):
        for dx in range(work.kernel[1]):
            y = slice(dy, dy + (work.h - 1) * sh + 1, sh)
            z = slice(dx, dx + (work.w - 1) * sw + 1, sw)
            whole[:, :, y, z] += _products(x, weights[:, :, dy, dx])
    total += whole[:, :, top : top + rows, left : left + columns]


def _products(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of images [n, c, h, w, b, i] and weights [o, c, j, i]. [n, o, h, w, b, j]"""
    return np.einsum("nchwbi,ocji->nohwbj", x, weights, optimize=True)
