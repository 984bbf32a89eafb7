"""Kernels by number agree on PoCL, from which other implementations are told apart.

`python -m tests.implementations DEVICE 2000` runs them on another one.
"""

import pytest

from retune.device.opencl.runtime import open_device
from tests.implementations.kernels import EXPRESSIONS, SPECS, Kernel

pytestmark = [pytest.mark.device, pytest.mark.slow]


def test_a_kernel_is_its_number():
    first, again = Kernel.of(7), Kernel.of(7)
    assert first.name == again.name and str(first.program) == str(again.program)


@pytest.mark.parametrize("first", range(0, 300, 30))
def test_kernels_agree_on_pocl(first: int):
    device = open_device("pocl")
    for number in range(first, first + 30):
        kernel = Kernel.of(number)
        assert not (why := kernel.difference(device)), f"kernel {number}, {kernel.name}: {why}"


def test_rules_and_templates_come_up():
    names = {Kernel.of(number).name for number in range(300)}
    kinds = {name.partition(":")[0] for name in names}
    assert kinds == set(EXPRESSIONS)
    strategies = {name.partition(": ")[2].partition(".")[0] for name in names}
    assert {kind.split()[0] for kind in SPECS} <= strategies
    assert any(name.startswith("template ") for name in strategies)
    assert any("winograd" in name for name in names)
