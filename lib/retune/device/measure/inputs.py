"""Random arrays by type and range: no NaN, no denormals, indices stay small.

Uninitialised or denormal data changes a kernel's time several times over, so every buffer that a
measurement touches is filled from here.
"""

import numpy as np

from retune.core.dtypes import INTEGER_LIMITS, TensorType, is_float, numpy_dtype

_BYTES = ("int7", "int8", "uint8", "bool")
"""Types whose data take any value."""
_INDEX_RANGE = (0, 15)
"""Wider integers are mostly indices or shapes: values that are small and never negative."""


def default_range(dtype: str) -> tuple[float, float]:
    """Least and greatest value of random data of that type, both included."""
    return (-1.0, 1.0) if is_float(dtype) else _integers(dtype)


def _integers(dtype: str) -> tuple[int, int]:
    return INTEGER_LIMITS[dtype] if dtype in _BYTES else _INDEX_RANGE


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
    if not is_float(type.dtype):
        wide = rng.integers(int(least), int(greatest), type.shape, np.int64, endpoint=True)
        return wide.astype(numpy_dtype(type.dtype))
    draw = np.float64 if type.dtype == "float64" else np.float32
    values = rng.random(type.shape, draw) * draw(greatest - least) + draw(least)
    return _without_denormals(np.asarray(values, type.dtype))


def _without_denormals(values: np.ndarray) -> np.ndarray:
    tiny = np.finfo(values.dtype).tiny
    values[np.abs(values) < tiny] = 0
    return values
