"""Random products with packed weights, for any number of rows, against onnxruntime."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.variants import join_plans
from retune.bundle.verify.examination import Original
from retune.bundle.verify.oracles import oracle_of
from retune.core.dims import Size, assuming, dim_of
from retune.device.opencl.runtime import open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.contrib import MICROSOFT

pytestmark = pytest.mark.device


def random_product(rng: np.random.Generator) -> tuple[ModelProto, int, tuple[Any, ...]]:
    """A product and a rectifier, the columns of its input, and that one's shape."""
    bits, level = int(rng.choice([4, 4, 8, 2])), int(rng.choice([0, 4, 4]))
    block = int(rng.choice([16, 32, 64, 128]))
    depth, count = int(rng.integers(1, 200)), int(rng.integers(1, 100))
    blocks = -(-depth // block)
    arrays = {
        "b": rng.integers(0, 256, (count, blocks, block * bits // 8), np.uint8),
        "s": rng.uniform(0.01, 0.02, count * blocks).astype(np.float32),
    }
    if rng.integers(2):
        arrays["z"] = rng.integers(0, 256, count * -(-blocks * bits // 8), np.uint8)
    shape = (2, "rows") if rng.integers(2) else ("rows",)
    nodes = [
        helper.make_node(
            "MatMulNBits", ["x", *arrays], ["p"], domain=MICROSOFT,
            K=depth, N=count, bits=bits, block_size=block, accuracy_level=level,
        ),
        helper.make_node("Relu", ["p"], ["y"]),
    ]  # fmt: skip
    given, made = (
        helper.make_tensor_value_info(name, 1, (*shape, extent))
        for name, extent in (("x", depth), ("y", count))
    )
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "packed", [given], [made], stored)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=8), depth, shape


def assert_right(seed: int) -> None:
    import onnxruntime

    rng = np.random.default_rng(seed)
    model, depth, shape = random_product(rng)
    low, device = int(rng.choice([1, 2, 17])), open_device("pocl")
    rows = Size("rows", low, low + int(rng.integers(1, 70)))
    with assuming({"rows": min(rows.most, low + 13)}) as assumed:
        extents = tuple(dim_of(rows) if n == "rows" else n for n in shape)
        network = extract(optimise(import_model(model, {"x": (*extents, depth)})), max_error=0.0)
        plan = build_plan(network, {}, device.spec, model_key="", notes={})
    module = Module(join_plans([plan], [assumed.conditions]), device)
    peer = onnxruntime.InferenceSession(model.SerializeToString())
    for count in sorted({low, low + 1, (low + rows.most) // 2, rows.most}):
        extents = [count if n == "rows" else n for n in shape]
        x = rng.standard_normal((*extents, depth)).astype(np.float32)
        (expected,) = peer.run(None, {"x": x})
        allowed = 1e-4 * max(1e-3, float(np.ptp(expected)))
        np.testing.assert_allclose(module.run({"x": x})["y"], expected, rtol=0, atol=allowed)


def test_a_sample(seed: int) -> None:
    assert_right(seed)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(60))
def test_many(turn: int) -> None:
    assert_right(turn)


@pytest.mark.parametrize(("level", "oracle"), [(0, "onnxruntime"), (4, "numpy")])
def test_rows_that_onnxruntime_does_not_round_are_judged_by_numpy(
    level: int, oracle: str, tmp_path: Path
) -> None:
    """It computes in floats where zero points are floats, whatever the accuracy level says."""
    rng = np.random.default_rng(3)
    arrays = {
        "b": rng.integers(0, 256, (8, 2, 16), np.uint8),
        "s": rng.uniform(0.01, 0.02, 16).astype(np.float32),
        "z": rng.uniform(0, 15, 16).astype(np.float32),
    }
    node = helper.make_node(
        "MatMulNBits", ["x", *arrays], ["y"], domain=MICROSOFT,
        K=64, N=8, bits=4, block_size=32, accuracy_level=level,
    )  # fmt: skip
    given, made = (
        helper.make_tensor_value_info(name, 1, (3, extent))
        for name, extent in (("x", 64), ("y", 8))
    )
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([node], "packed", [given], [made], stored)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    model, path = helper.make_model(graph, opset_imports=domains, ir_version=8), tmp_path / "m.onnx"
    onnx.save(model, path)
    spec = open_device("pocl").spec
    plan = build_plan(extract(optimise(import_model(model))), {}, spec, model_key="", notes={})
    peer, _ = oracle_of(plan, Original(onnx=path, shapes={"x": (3, 64)}), spec)
    assert peer.name == oracle
