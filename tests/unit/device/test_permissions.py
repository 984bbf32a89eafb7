"""What a process must be allowed to do before kernels for a device may run in it."""

from dataclasses import replace

import pytest

from retune.core.errors import DeviceError
from retune.core.target import GENERIC_CPU, GENERIC_GPU
from retune.device.opencl import permissions
from retune.device.opencl.permissions import require_registers


@pytest.fixture(params=[True, False], ids=["allowed", "forbidden"])
def allowed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(permissions, "ask_for_matrix_registers", lambda: request.param)
    return request.param


def test_kernels_on_matrix_registers_need_the_permission(allowed: bool):
    spec = replace(GENERIC_CPU, instructions=("dot4.vnni", "tile8.amx"))
    if allowed:
        require_registers(spec)
        return
    with pytest.raises(DeviceError, match=r"offers tile8\.amx, and this process may not use"):
        require_registers(spec)


def test_other_devices_need_nothing(allowed: bool):
    for spec in (GENERIC_CPU, replace(GENERIC_CPU, instructions=("dot4.vnni",)), GENERIC_GPU):
        require_registers(spec)
