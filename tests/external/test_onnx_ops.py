"""The ONNX node tests of ops that the importer knows itself, through generated OpenCL kernels."""

import pytest

from retune.core.errors import InputError
from tests.external.cases import CASES, check, has_own_ops
from tests.external.exclusions import exclusion_of
from tests.external.on_device import run_on_device

pytestmark = pytest.mark.device

OPS = [name for name in CASES if has_own_ops(name)]


@pytest.mark.parametrize("name", [name for name in OPS if not exclusion_of(name)])
def test_on_device(name: str):
    check(name, run_on_device)


@pytest.mark.parametrize("name", [name for name in OPS if exclusion_of(name)])
def test_excluded(name: str):
    with pytest.raises(InputError):
        check(name, run_on_device)
