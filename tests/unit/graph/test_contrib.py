"""Each operator of onnxruntime's domain means what onnxruntime computes."""

import pytest

from tests.support import contrib_float  # noqa: F401
from tests.support.contrib import CASES, model_of
from tests.support.peer import assert_as_peer, assert_computes


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_onnxruntime_computes(name: str) -> None:
    case = CASES[name]
    expected = case.expected()
    if expected is None:
        assert_as_peer(model_of(case), case.fed, case.tolerance)
    else:
        assert_computes(model_of(case), case.fed, expected, case.tolerance)
