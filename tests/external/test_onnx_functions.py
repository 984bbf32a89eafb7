"""The ONNX node tests of ops imported as functions, or run on the host, by generated kernels.

Their meaning is checked by numpy in each run of the gate, and so are the smaller ops on the device.
"""

import pytest

from retune.core.errors import InputError
from tests.external.cases import CASES, check, has_own_ops
from tests.external.exclusions import exclusion_of
from tests.external.on_device import run_on_device

pytestmark = [pytest.mark.device, pytest.mark.slow]

FUNCTIONS = [name for name in CASES if not has_own_ops(name)]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if not exclusion_of(name)])
def test_on_device(name: str):
    check(name, run_on_device)


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if exclusion_of(name)])
def test_excluded(name: str):
    with pytest.raises(InputError):
        check(name, run_on_device)
