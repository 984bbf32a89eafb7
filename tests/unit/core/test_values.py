"""Errors, knobs, types and device limits."""

import copy
import json
import pickle

import numpy as np
import pytest

from retune.core import errors
from retune.core.config import KNOBS, cache_root, knob, records_root
from retune.core.dtypes import (
    DTYPES,
    INT7,
    NUMPY_DTYPES,
    DType,
    TensorType,
    dtype_of,
    itemsize,
    packed,
)
from retune.core.keys import content_key
from retune.core.target import GENERIC_CPU


def test_tensor_types():
    kind = TensorType((2, 3, 4), "int16")
    assert (kind.elements, kind.bytes, str(kind)) == (24, 48, "int16[2, 3, 4]")
    assert TensorType(()).elements == 1
    assert TensorType((0, 3)).bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_elements(dtype: DType):
    digits = "".join(c for c in dtype.partition("_")[0] if c.isdigit())
    assert itemsize(dtype) == (-(-int(digits) // 8) if digits else 1)
    assert dtype.is_float == ("float" in dtype)


def test_what_the_user_can_mend_exits_with_two():
    codes = {
        e.__name__: e.exit_code
        for e in vars(errors).values()
        if isinstance(e, type) and issubclass(e, errors.RetuneError)
    }
    mendable = {"InputError", "ModelError", "ShapesMissing", "RecordError", "LookupFailed"}
    assert {name for name, code in codes.items() if code == 2} == mendable
    assert set(codes.values()) == {1, 2}


def test_knobs_have_defaults_and_follow_the_environment(monkeypatch: pytest.MonkeyPatch):
    assert all(k.doc and k.name.startswith("RETUNE_") for k in KNOBS)
    monkeypatch.delenv("RETUNE_VERIFY", raising=False)
    assert knob("RETUNE_VERIFY") == "0"
    monkeypatch.setenv("RETUNE_VERIFY", "1")
    assert knob("RETUNE_VERIFY") == "1"
    monkeypatch.setenv("RETUNE_RECORDS", "/r")
    monkeypatch.setenv("RETUNE_CACHE", "/c")
    assert (str(records_root()), str(cache_root())) == ("/r", "/c")
    with pytest.raises(KeyError):
        knob("RETUNE_NOTHING")


def test_device_limits():
    assert GENERIC_CPU.lanes_f32 == 16
    assert GENERIC_CPU.fingerprint == "two cores with 512-bit vectors|none|OpenCL 3.0"


def test_a_type_is_one_value_that_prints_and_stores_as_its_name():
    for dtype in DTYPES:
        assert DType(str(dtype)) is dtype
        assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype  # noqa: S301
        assert (f"{dtype}", repr(dtype), json.dumps(dtype)) == (dtype, f"'{dtype}'", f'"{dtype}"')
        assert content_key(dtype) == content_key(str(dtype))
        assert dtype.compute.compute is dtype.compute
    with pytest.raises(ValueError, match=r"expected an element type among float32, .*, got 'int3'"):
        DType("int3")


def test_types_of_arrays():
    for dtype in NUMPY_DTYPES:
        assert dtype_of(np.zeros(2, dtype.numpy)) is dtype
    assert INT7.numpy == np.int8
    assert (INT7.limits, DType("uint8").limits, DType("int4").limits) == (
        (-64, 64),
        (0, 255),
        (-8, 7),
    )


def test_words_of_several_elements():
    word = packed(INT7, 4)
    assert word is packed(INT7, 4)
    assert (word, word.itemsize, word.element, word.is_narrow) == ("int7x4", 4, INT7, False)
