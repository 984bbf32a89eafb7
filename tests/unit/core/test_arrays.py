"""Arrays of small floats go through files and messages; so do those of types that a test adds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.weights import map_file, save_weights, view_weights
from retune.core.dtypes import BFLOAT16, DType, TensorType, as_stored
from retune.core.schema import pack, unpack
from retune.device.measure.inputs import random_array
from retune.device.remote.wire import pack_arrays, unpack_arrays
from retune.device.simulated.simulation import corrupted_array
from tests.support.new_types import E3M4, E5M2FNUZ, new_type

SMALL = pytest.mark.parametrize("name", [BFLOAT16, E5M2FNUZ["name"], E3M4["name"]])


@pytest.fixture(autouse=True)
def new_types() -> Iterator[None]:
    with new_type(E5M2FNUZ), new_type(E3M4):
        yield


def arrays_of(name: str) -> dict[str, np.ndarray]:
    dtype = DType(name).numpy
    rows = np.arange(-3, 3).reshape(2, 3).astype(dtype)
    strays = {"__metadata__": np.ones(2, np.uint8), "bytes": np.arange(3, dtype=np.uint8)}
    return {"rows": rows, "turned": rows.T, "none": rows[:0], "scalar": rows[0, 0, ...], **strays}


def assert_same(found: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]) -> None:
    assert found.keys() == sent.keys()
    for name, array in sent.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


@SMALL
def test_weights_of_a_bundle_keep_their_type(name: str, tmp_path: Path):
    weights = arrays_of(name)
    save_weights(weights, tmp_path / "weights")
    assert_same(view_weights(map_file(tmp_path / "weights")), weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    arrays: Mapping[str, np.ndarray]


@SMALL
def test_arrays_of_messages_keep_their_type(name: str):
    sent = arrays_of(name)
    assert_same(unpack((Message,), pack(Message(arrays=sent)), 1 << 20).arrays, sent)
    del sent["__metadata__"]
    assert_same(unpack_arrays(pack_arrays(sent)), sent)


@SMALL
def test_inputs_are_drawn_saved_and_corrupted(name: str):
    dtype = DType(name)
    array = random_array(TensorType((2, 9), dtype))
    assert array.dtype == dtype.numpy
    file = BytesIO()
    np.savez(file, x=array)
    file.seek(0)
    assert_same({"x": as_stored(np.load(file)["x"], dtype)}, {"x": array})
    wrong = corrupted_array(array)
    assert np.isfinite(wrong).all()
    assert abs(float(wrong[0, 0]) - float(array[0, 0])) > dtype.tolerance
