"""Inputs and outputs that lie in other ways, on a device: same values, and nothing beside them."""

from collections.abc import Mapping

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import TensorType
from retune.device.opencl.runtime import Device, open_device
from retune.ir.stmt import from_dag
from retune.ir.storage import Storage, row_major
from retune.ir.te import Dag, compute, placeholder
from retune.ir.views import view
from retune.schedule.schedule import Schedule
from tests.support.dags import conv2d
from tests.support.oracle import assert_close, inputs_for, poisoned, reference, run_source

CHANNELS, ROWS, COLUMNS = 32, 3, 8


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


def run_stored(
    device: Device, s: Schedule, dag: Dag, storages: Mapping[str, Storage]
) -> dict[str, np.ndarray]:
    """The outputs, where the storages say that they lie; NaN wherever nothing was written."""
    inputs = inputs_for(dag)
    for name, storage in storages.items():
        if name in inputs:
            inputs[name] = around(storage, inputs[name])
    types = {
        t.name: TensorType(
            (storages[t.name].elements,) if t.name in storages else t.shape,
            t.dtype,  # type: ignore[arg-type]
        )
        for t in dag.outputs
    }
    return run_source(device, lower(view(s.program, storages), CPU), inputs, types)


def around(storage: Storage, array: np.ndarray) -> np.ndarray:
    """The packed array, with NaN beside its elements."""
    mine = storage.pack(np.ones(array.shape, bool))
    return np.where(mine, storage.pack(array), poisoned(storage.elements, str(array.dtype)))


@pytest.mark.parametrize(
    "storages",
    [
        {"x": row_major((1, 6, 7, 4)).pitched(9)},
        {"x": row_major((1, 6, 7, 4)).columns(3, 8), "out": row_major((1, 6, 7, 8)).columns(4, 20)},
        {"x": row_major((1, 6, 7, 4)).within(1, 1, 8).within(2, 1, 9)},
        {"x": row_major((1, 6, 7, 4)).tiled(3, 2), "out": row_major((1, 6, 7, 8)).tiled(3, 4)},
        {"out": row_major((1, 6, 7, 8)).ordered((0, 3, 1, 2)).pitched(8)},
    ],
    ids=["pitched", "columns", "halo", "tiles", "channels first"],
)
def test_a_layer_reads_and_writes_where_its_values_lie(
    device: Device, storages: Mapping[str, Storage]
):
    dag = conv2d(1, 6, 7, 4, 8)
    s = Schedule(from_dag(dag))
    found = run_stored(device, s, dag, storages)["out"]
    want = reference(dag, inputs_for(dag))["out"]
    if "out" in storages:
        storage = storages["out"]
        assert_close({"out": storage.unpack(found)}, {"out": want}, "")
        np.testing.assert_array_equal(np.isnan(found), np.isnan(around(storage, want)))
    else:
        assert_close({"out": found}, {"out": want}, "")


def channels_last(tile: int) -> tuple[Dag, Schedule]:
    """A transpose, channels by tiles; its pixels are unrolled."""
    x = placeholder("x", (CHANNELS, ROWS, COLUMNS))
    y = compute("y", (ROWS, COLUMNS, CHANNELS), lambda i, j, c: x[c, i, j] * 2.0, [x])
    dag = Dag((y,))
    s = Schedule(from_dag(dag))
    i, j, c = s.loops("y")
    outer, inner = s.split(c, [tile])
    s.reorder(i, outer, j, inner)
    s.unroll(j)
    s.vectorize(inner)
    return dag, s


def test_channel_blocks_are_read_by_vectors(device: Device):
    """Of NCHW16c, tiles of 16 channels are one load each, without a division."""
    storage = row_major((CHANNELS, ROWS, COLUMNS)).tiled(0, 16)
    dag, s = channels_last(16)
    text = lower(view(s.program, {"x": storage}), CPU).text
    assert text.count("vload16(") == COLUMNS
    code = [line for line in text.splitlines() if not line.startswith("//")]
    assert not any("/" in line or "%" in line for line in code)
    found = run_stored(device, s, dag, {"x": storage})
    assert_close(found, reference(dag, inputs_for(dag)), text)
