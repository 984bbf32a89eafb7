"""Operators of onnxruntime's domain through generated kernels: a sample, and all if slow."""

import numpy as np
import pytest

from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import Layout
from tests.external.on_device import compile_graph
from tests.support.contrib import model_of
from tests.support.contrib_cases import CASES
from tests.support.peer import peer_outputs

pytestmark = pytest.mark.device

LAYOUTS: tuple[Layout, ...] = ("NHWC", "NCHW")
SAMPLE = 6
"""Cases in the gate: some take half a second to compile."""


def assert_right(name: str, layout: Layout) -> None:
    case = CASES[name]
    made = model_of(case)
    expected = case.expected() or peer_outputs(made, case.fed)
    found = compile_graph(import_model(made), layout).run(case.fed)
    for output, array in expected.items():
        assert found[output].dtype == array.dtype
        limit = max(case.tolerance, 2e-5)
        np.testing.assert_allclose(found[output], array, rtol=limit, atol=limit, err_msg=output)


@pytest.mark.parametrize("turn", range(SAMPLE))
def test_a_sample(turn: int, seed: int) -> None:
    rng = np.random.default_rng([seed, turn])
    name, layout = str(rng.choice(list(CASES))), LAYOUTS[rng.integers(2)]
    print(f"RETUNE_SEED={seed} chooses {name}, {layout}")
    assert_right(name, layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_all_cases(name: str, layout: Layout) -> None:
    assert_right(name, layout)
