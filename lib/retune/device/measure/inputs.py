"""Random arrays by type and range: no NaN, no denormals, indices stay small.

Uninitialised or denormal data changes a kernel's time several times over, so every buffer that a
measurement touches is filled from here.
"""

import numpy as np

from retune.core.dtypes import BOOL, FLOAT64, INT7, INT8, UINT8, DType, TensorType

BYTES = (INT7, INT8, UINT8, BOOL)
"""Types whose data take any value."""
INDEX_RANGE = (0, 15)
"""Wider integers are mostly indices or shapes: values that are small and never negative."""


def default_range(dtype: DType) -> tuple[float, float]:
    """Least and greatest value of random data of that type, both included."""
    return (-1.0, 1.0) if dtype.is_float else _integers(dtype)


def _integers(dtype: DType) -> tuple[int, int]:
    return dtype.limits if dtype in BYTES else INDEX_RANGE


def random_array(
    type: TensorType,
    low: float | None = None,
    high: float | None = None,
    *,
    seed: int = 0,
) -> np.ndarray:
    """An array of `type`, uniform in [low, high]; equal arguments give equal arrays.

    No element is NaN, infinite or denormal.
    """
    least, greatest = default_range(type.dtype)
    least = least if low is None else low
    greatest = greatest if high is None else high
    rng = np.random.default_rng(seed)
    if not type.dtype.is_float:
        wide = rng.integers(int(least), int(greatest), type.shape, np.int64, endpoint=True)
        return wide.astype(type.dtype.numpy)
    draw = np.float64 if type.dtype == FLOAT64 else np.float32
    values = rng.random(type.shape, draw) * draw(greatest - least) + draw(least)
    return _without_denormals(np.asarray(values, type.dtype.numpy), type.dtype)


def _without_denormals(values: np.ndarray, dtype: DType) -> np.ndarray:
    values[np.abs(values) < dtype.finfo.tiny] = 0
    return values
