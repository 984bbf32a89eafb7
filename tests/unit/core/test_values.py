"""Errors, knobs, types and device limits."""

import pytest

from retune.core import errors
from retune.core.config import KNOBS, cache_root, knob, records_root
from retune.core.dtypes import DTYPES, TensorType, is_float, itemsize
from retune.core.target import GENERIC_CPU


def test_tensor_types():
    kind = TensorType((2, 3, 4), "int16")
    assert (kind.elements, kind.bytes, str(kind)) == (24, 48, "int16[2, 3, 4]")
    assert TensorType(()).elements == 1
    assert TensorType((0, 3)).bytes == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_elements(dtype: str):
    digits = "".join(c for c in dtype if c.isdigit())
    assert itemsize(dtype) == (-(-int(digits) // 8) if digits else 1)
    assert is_float(dtype) == ("float" in dtype)


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
