"""Random inputs: right type, right range, repeatable, no values that change a kernel's time."""

import numpy as np
import pytest

from retune.core.dtypes import DTYPES, TensorType, numpy_dtype
from retune.device.measure.inputs import default_range, random_array


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_stays_in_its_range(dtype):
    array = random_array(TensorType((500,), dtype), seed=1)
    low, high = default_range(dtype)
    assert array.dtype == numpy_dtype(dtype)
    assert array.astype(np.float64).min() >= low
    assert array.astype(np.float64).max() <= high
    assert len(np.unique(array)) > 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_float_is_denormal(dtype):
    array = random_array(TensorType((20_000,), dtype), -1e-4, 1e-4, seed=2)
    sizes = np.abs(array[array != 0])
    assert np.isfinite(array).all()
    assert sizes.min() >= np.finfo(dtype).tiny


def test_equal_seeds_give_equal_arrays():
    kind = TensorType((3, 4))
    assert np.array_equal(random_array(kind, seed=5), random_array(kind, seed=5))
    assert not np.array_equal(random_array(kind, seed=5), random_array(kind, seed=6))


def test_bounds_are_inclusive_for_integers():
    array = random_array(TensorType((200,), "int32"), 3, 4, seed=0)
    assert set(array.tolist()) == {3, 4}


def test_a_scalar_and_an_empty_array_have_their_shapes():
    assert random_array(TensorType(())).shape == ()
    assert random_array(TensorType((0, 3))).shape == (0, 3)
