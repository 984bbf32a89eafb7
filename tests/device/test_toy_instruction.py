"""A matrix instruction from outside of lib/ is found, probed, tiled, printed and right."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.dtypes import FLOAT16, FLOAT32
from retune.core.target import GENERIC_CPU
from retune.device.opencl import probing
from retune.device.opencl.probe_child import is_right
from retune.device.opencl.runtime import Device, open_device
from retune.intrinsics import Intrinsic, build_options, register_intrinsic
from retune.intrinsics.intrinsic import _KNOWN
from retune.ir.expr import cast
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from tests.support.oracle import assert_device_agrees, assert_same_meaning
from tests.support.toy_instruction import OUTER16

pytestmark = pytest.mark.device

SPEC = replace(GENERIC_CPU, instructions=("outer16.unit",))


def forget() -> None:
    """Other tests compare what a device offers in this process and in its children."""
    del _KNOWN[OUTER16.name]
    build_options.cache_clear()


forget()  # importing registers it, and every worker imports all tests


@pytest.fixture(scope="module", autouse=True)
def device() -> Iterator[Device]:
    opened = open_device("pocl")  # described for all tests, before there is the instruction
    register_intrinsic(OUTER16)
    yield opened
    forget()


def product(rows: int, inner: int, outer: int, dtype: str = FLOAT16) -> Dag:
    """`x @ w.T` of numbers of 16 bits, added up in float32."""
    x = placeholder("x", (rows, inner), dtype)
    w = placeholder("w", (outer, inner), dtype, constant=True)
    k = reduce_axis("k", inner)

    def element(i, j):
        return cast(x[i, k], FLOAT32) * cast(w[j, k], FLOAT32)

    return Dag((compute("y", (rows, outer), element, [x, w], reduce=(k,)),))


def test_devices_are_probed_for_it(device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By itself, and what is found stays out of the file that tests of other instructions read."""
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path))
    monkeypatch.setattr(probing, "intrinsics", lambda: (OUTER16,))
    assert probing.offered(device.spec)[0] == "outer16.unit"


@pytest.fixture
def wrong() -> Iterator[Intrinsic]:
    unit, plain = OUTER16.implementations
    text = unit.text["OpenCL C"]
    off = replace(unit, text={"OpenCL C": lambda s: [t.replace("+=", "-=") for t in text(s)]})
    yield register_intrinsic(replace(OUTER16, name="wrong16", implementations=(off, plain)))
    del _KNOWN["wrong16"]


def test_its_probe_compares_with_what_it_declares(device: Device, wrong: Intrinsic):
    unit = OUTER16.implementations[0]
    (signature,) = OUTER16.signatures(unit)
    assert is_right(device, OUTER16, unit, signature)
    assert not is_right(device, wrong, wrong.implementations[0], signature)


@pytest.mark.parametrize(("rows", "inner", "outer"), [(32, 64, 48), (19, 32, 16), (8, 48, 8)])
def test_rules_tile_reductions_with_it(device: Device, rows: int, inner: int, outer: int):
    dag = product(rows, inner, outer)
    tiled = [s for s in cpu_space(from_dag(dag), SPEC).sketches if ".matrix." in s.name]
    assert tiled, "a rule asks for a tile of such operands, whatever its name"
    for sketch in tiled:
        assert sketch.name.startswith("cpu.v8.matrix.")
        (row,) = sketch.sample(1, np.random.default_rng(rows))
        program = sketch.instantiate(row)
        assert "// outer16.unit" in lower(program, target_of(SPEC)).text
        assert_same_meaning(dag, program)
        assert_device_agrees(device, dag, program)


def test_devices_without_it_get_other_tiles():
    sketches = cpu_space(from_dag(product(32, 64, 48)), GENERIC_CPU).sketches
    assert not any(".matrix." in s.name for s in sketches)
