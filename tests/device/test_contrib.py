"""Operators of onnxruntime's domain through generated kernels: a sample, and all if slow."""

import numpy as np
import pytest

from retune.core.dtypes import itemsize
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.passes.pipeline import Layout
from tests.external.on_device import compile_graph
from tests.support.contrib import model_of
from tests.support.contrib_cases import CASES
from tests.support.peer import peer_outputs
from tests.support.tool_files import FILES

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


def test_weights_of_four_bits_stay_packed() -> None:
    """In the plan, and so in the bundle, are as many bytes, and zero points in a byte each.

    Rows of weights are filled up to whole tiles.
    """
    graph = load_file(FILES / "decoder_4_shifted.onnx")
    module = compile_graph(graph)
    packed, blocks = (20 * 64 + 64 * 64 + 64 * 48 + 48 * 20) // 2, (20 + 64 + 48) * 4 + 20 * 3
    stored = [buffer for buffer in module.plan.buffers if buffer.role == "weight"]
    whole = [buffer for buffer in stored if buffer.dtype in ("uint8", "int32")]
    of_bytes = sum(buffer.elements * itemsize(buffer.dtype) for buffer in whole)
    assert packed + blocks <= of_bytes < 1.2 * (packed + blocks)
    assert sum(buffer.elements for buffer in stored if buffer.dtype == "float32") < 1.3 * blocks


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_all_cases(name: str, layout: Layout) -> None:
    assert_right(name, layout)
