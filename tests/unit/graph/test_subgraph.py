"""Parts of ONNX models are found by the names of their values."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from retune.core.dtypes import TensorType
from retune.frontend.onnx.subgraph import extract_subgraph, margin_name, with_input_types
from tests.support.device_networks import Net

X = TensorType((1, 3, 4, 4))


@pytest.fixture
def chain(tmp_path: Path) -> tuple[Path, list[str]]:
    """conv -> relu -> conv, and the names of what they make."""
    net = Net("chain")
    names = [net.conv(net.input(*X.shape), 3, 4)]
    names.append(net("Relu", names[0]))
    names.append(net.conv(names[1], 4, 2))
    onnx.save(net.model(names[2]), str(tmp_path / "chain.onnx"))
    return tmp_path / "chain.onnx", names


def run(model: bytes, **inputs: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(a) for a in onnxruntime.InferenceSession(model).run(None, inputs)]


def test_parts_make_up_the_whole(chain: tuple[Path, list[str]], rng: np.random.Generator):
    path, (_, middle, last) = chain
    x = rng.random(X.shape, np.float32)
    before = extract_subgraph(path, {"x0": X}, [middle])
    assert before is not None
    (value,) = run(before, x0=x)
    after = extract_subgraph(path, {middle: TensorType(value.shape)}, [last])
    assert after is not None
    assert [e.name for e in onnx.ModelProto.FromString(after).graph.input] == [middle]
    whole = run(path.read_bytes(), x0=x)
    np.testing.assert_allclose(run(after, **{middle: value})[0], whole[0], rtol=1e-5)


def test_a_part_holds_only_its_own_weights(chain: tuple[Path, list[str]]):
    path, (first, *_) = chain
    part = extract_subgraph(path, {"x0": X}, [first])
    assert part is not None
    graph = onnx.ModelProto.FromString(part).graph
    assert [node.op_type for node in graph.node] == ["Conv"]
    assert [weight.name for weight in graph.initializer] == list(graph.node[0].input[1:])


def test_what_the_file_does_not_name_cannot_be_cut_out(chain: tuple[Path, list[str]]):
    path, (_, _, last) = chain
    assert extract_subgraph(path, {"x0": X}, ["inside a function"]) is None
    assert extract_subgraph(path, {}, [last]) is None


def test_comparisons_give_what_they_compare(tmp_path: Path, rng: np.random.Generator):
    net = Net("threshold")
    x = net("Relu", net.input(4, 4))
    y = net("Greater", x, net.stored(np.array(0.5, np.float32)))
    onnx.save(net.model(y), str(tmp_path / "threshold.onnx"))
    part = extract_subgraph(tmp_path / "threshold.onnx", {"x0": TensorType((4, 4))}, [x, y], [x, y])
    assert part is not None
    kind = onnx.ModelProto.FromString(part).graph.output
    assert [entry.name for entry in kind] == [x, y, margin_name(y)]
    data = rng.random((4, 4), np.float32)
    relu, greater, margin = run(part, x0=data)
    np.testing.assert_array_equal(margin > 0, greater)
    np.testing.assert_array_equal(margin, relu - np.float32(0.5))


def test_inputs_get_types(chain: tuple[Path, list[str]]):
    path, names = chain
    part = extract_subgraph(path, {"x0": X}, names)
    assert part is not None
    typed = onnx.ModelProto.FromString(with_input_types(part, [TensorType((2, 3, 4, 4))]))
    (entry,) = typed.graph.input
    assert [d.dim_value for d in entry.type.tensor_type.shape.dim] == [2, 3, 4, 4]
