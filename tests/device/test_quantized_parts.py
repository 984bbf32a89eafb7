"""A quantized network with norms and softmax: each part has to be right, whatever rounding does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import TOLERANCE, compare
from retune.bundle.verify.examination import Comparison, Original
from retune.bundle.verify.examiner_child import verdict_on
from retune.bundle.verify.quantized_parts import quantized_parts
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.pipeline.network import import_network
from tests.external.on_device import opened
from tests.support.device_networks import Net
from tests.support.onnx_pairs import quantized

pytestmark = pytest.mark.device


def shuffled(array: np.ndarray) -> np.ndarray:
    """The array with a fiftieth of its elements in other places."""
    found, rng = array.reshape(-1).copy(), np.random.default_rng(0)
    chosen = rng.choice(found.size, max(8, found.size // 50), replace=False)
    found[chosen] = np.roll(found[chosen], 1)
    return found.reshape(array.shape)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions, a norm, attention and a last product, whose mean is the output."""
    folder = tmp_path_factory.mktemp("parts")
    n = Net("parts", opset=17)
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 16))
    joined = n("Concat", x, n.conv(x, 16, 16), axis=1)
    rows = n("Transpose", n("Reshape", joined, n.ints(1, 32, 64)), perm=[0, 2, 1])
    rows = n("LayerNormalization", rows, n.positive(32), n.weight(32))
    query, key = (n("MatMul", rows, n.weight(32, 24)) for _ in range(2))
    shares = n("Softmax", n("MatMul", query, n("Transpose", key, perm=[0, 2, 1])))
    mixed = n("MatMul", shares, n("MatMul", rows, n.weight(32, 24)))
    model = n.model(n("ReduceMean", n("MatMul", mixed, n.weight(24, 12)), axes=[1], keepdims=0))
    onnx.save(quantized(model, folder), path := folder / "net.onnx")
    return path


@pytest.fixture(scope="module", params=("NHWC", "NCHW"))
def plan(file: Path, request: pytest.FixtureRequest) -> NetworkPlan:
    network = import_network(str(file), layout=request.param).network
    return build_plan(network, {}, opened("pocl").spec, model_key="", notes={})


def wrong_parts(plan: NetworkPlan, file: Path, seed: int = 0) -> list[str]:
    module = Module(plan, opened("pocl"))
    written = (optimise(load_file(file), order) for order in ("NHWC", "NCHW"))
    parts = quantized_parts(module, written, TOLERANCE)
    assert parts is not None and parts.role == "confirming"
    inputs = module.random_inputs(seed)
    found = parts(inputs, module.run(inputs))
    assert len(found) > 8
    return [p.name for p in found if compare(p.name, p.got, p.expected).used > 1]


def test_all_parts_of_a_right_bundle_agree(plan: NetworkPlan, file: Path) -> None:
    assert [wrong_parts(plan, file, seed) for seed in range(4)] == [[]] * 4


def test_a_fault_in_any_product_is_found(plan: NetworkPlan, file: Path) -> None:
    bytes_of = [n for n, w in plan.weights.items() if w.dtype in (np.int8, np.uint8)]
    assert len(bytes_of) > 5
    for name in bytes_of:
        faulty = {**plan.weights, name: shuffled(plan.weights[name])}
        assert wrong_parts(replace(plan, weights=faulty), file), name


def test_a_refusal_names_the_part(plan: NetworkPlan, file: Path) -> None:
    asked = Comparison(network=Original(onnx=file, shapes=plan.input_shapes), samples=1)
    device, first = opened("pocl"), next(n for n, w in plan.weights.items() if w.dtype == np.int8)
    faulty = replace(plan, weights={**plan.weights, first: shuffled(plan.weights[first])})
    right, wrong = (
        verdict_on(Module(each, device), device.spec, asked).found for each in (plan, faulty)
    )
    assert right.passed and not right.by_parts
    assert wrong.by_parts and not wrong.passed
    assert "values differ, which have to be equal" in wrong.decision
