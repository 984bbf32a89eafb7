"""Tiles of products on PoCL give what the loops that they stand for state, by any way."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT8, UINT8
from retune.device.opencl.probe_child import is_right
from retune.device.opencl.runtime import Device, open_device
from retune.intrinsics import Signature
from retune.intrinsics.tile8 import TILE8
from retune.intrinsics.tile16 import TILE16
from tests.support.dags import byte_product, pair_product
from tests.support.oracle import assert_device_agrees
from tests.support.tiles import tiled

pytestmark = pytest.mark.device

PLAIN = TILE8.implementations[-1]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("first", [UINT8, INT8])
@pytest.mark.parametrize(("rows", "columns", "high"), [(2, 2, 16), (3, 1, 16), (1, 2, 7)])
def test_tiles(device: Device, first: str, rows: int, columns: int, high: int):
    dag = byte_product(2 * rows * high, 128, 32 * columns, first=first)
    program = tiled(dag, rows, columns, high=high).program
    assert "// tile8.plain" in lower(program, CPU).text
    assert_device_agrees(device, dag, program)


def test_tiles_of_pairs(device: Device):
    dag = pair_product(28, 96, 32)
    program = tiled(dag, 2, 2, high=7, name="tile16").program
    assert "// tile16.plain" in lower(program, CPU).text
    assert_device_agrees(device, dag, program)


def test_what_the_probe_of_pairs_expects_is_what_loops_make(device: Device):
    (signature,) = TILE16.signatures(TILE16.implementations[0])
    assert is_right(device, TILE16, TILE16.implementations[-1], signature)


@pytest.mark.parametrize("signature", TILE8.signatures(TILE8.implementations[0]), ids=str)
def test_what_a_probe_expects_is_what_loops_make(device: Device, signature: Signature):
    assert is_right(device, TILE8, PLAIN, signature)
