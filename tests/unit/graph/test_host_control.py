"""Branches, loops, sequences and optionals in host steps, against onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from retune.core.dtypes import UNKNOWN, DType, TensorType
from retune.core.errors import ModelError
from retune.frontend.host.step import HostModel, host_attrs, step_of

LOOP = """
loops (int64 n, bool go, float[4] x) => (float[4] y, float[t, 4] ys, int64[t] turns) {
  y, ys, turns = Loop <body = turn (int64 i, bool c, float[4] v)
    => (bool c2, float[4] v2, float[4] w, int64 j) {
      half = Constant <value_float = 0.5> ()
      scaled = Mul (v, half)
      v2 = Add (scaled, x)
      total = ReduceSum <keepdims = 0> (v2)
      c2 = Less (total, limit)
      w = Identity (v2)
      j = Identity (i)
  }> (n, go, x)
}
"""
BRANCH = """
branches (float[n] x, bool c) => (float[m] y) {
  y = If <
    then_branch = yes () => (float[k] a) { a = Concat <axis = 0> (x, x) },
    else_branch = no () => (float[k] b) { b = Neg (x) }
  > (c)
}
"""
SEQUENCE = """
sequences (float[n, 3] x, int64 at) => (float[m, 3] y, int64 count, float[r, 3] z) {
  parts = SplitToSequence <axis = 0> (x)
  fewer = SequenceErase (parts, at)
  first = SequenceAt (parts, zero)
  more = SequenceInsert (fewer, first)
  count = SequenceLength (more)
  y = ConcatFromSequence <axis = 0> (more)
  none = SequenceEmpty ()
  one = SequenceConstruct (y, first)
  z = SequenceAt (one, last)
}
"""
SCAN = """
scans (float[n, 2] x, float[2, n] z) => (float[2] total, float[2, n] sums) {
  start = Constant <value_floats = [1.0, 2.0]> ()
  total, sums = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [1, 0],
    scan_output_axes = [1], scan_output_directions = [1], body = step (float[2] s, float[2] a,
    float[2] b) => (float[2] t, float[2] u) { p = Mul (a, b) t = Add (s, p) u = Identity (t) }
  > (start, x, z)
}
"""
OPTIONAL = """
optionals (float[n] x, bool c) => (bool has, float[n] y) {
  o = Optional (x)
  has = OptionalHasElement (o)
  y = OptionalGetElement (o)
}
"""
STORED = {"limit": np.float32(9), "zero": np.int64(0), "last": np.int64(-1)}


def model_of(text: str, opset: int) -> onnx.ModelProto:
    """The model, whose free names are the stored scalars."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]>{text}')
    for name, value in STORED.items():
        if f" {name})" in text:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    return model


def assert_like_onnxruntime(text: str, opset: int, *feeds: dict[str, np.ndarray]) -> None:
    """The host step makes what onnxruntime makes of each of the feeds."""
    model = model_of(text, opset)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    step: HostModel | None = None
    for given in feeds:
        expected = session.run(None, given)
        types = [TensorType((UNKNOWN,) * a.ndim, DType(str(a.dtype))) for a in expected]
        step = step or step_of(host_attrs(model, types))
        for ours, theirs in zip(step.run(list(given.values())), expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("opset", [13, 16, 21])
def test_loops(opset: int, rng: np.random.Generator):
    x = rng.random(4, np.float32)
    turns = [(np.int64(n), go) for n in (0, 1, 3, 50) for go in (True, False)]
    feeds = [{"n": np.asarray(n), "go": np.asarray(go), "x": x * 3} for n, go in turns]
    assert_like_onnxruntime(LOOP, opset, *feeds)


@pytest.mark.parametrize("opset", [11, 16, 21])
def test_branches(opset: int):
    x = np.arange(3, dtype=np.float32)
    assert_like_onnxruntime(BRANCH, opset, *({"x": x, "c": np.asarray(c)} for c in (True, False)))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_sequences(rows: int, rng: np.random.Generator):
    x = rng.random((rows, 3), np.float32)
    feeds = [{"x": x, "at": np.asarray(at)} for at in (0, rows - 1, -1, -rows)]
    assert_like_onnxruntime(SEQUENCE, 17, *feeds)


@pytest.mark.parametrize("opset", [9, 16, 21])
@pytest.mark.parametrize("steps", [1, 4])
def test_scans(steps: int, opset: int, rng: np.random.Generator):
    text = (
        SCAN if opset > 11 else SCAN.replace("value_floats = [1.0, 2.0]", "value = float[2] {1, 2}")
    )
    x = rng.random((steps, 2), np.float32)
    assert_like_onnxruntime(text, opset, {"x": x, "z": x.T.copy()})


def test_optionals():
    assert_like_onnxruntime(OPTIONAL, 18, {"x": np.ones(3, np.float32), "c": np.asarray(True)})


def test_a_scan_of_batches_stops_at_lengths():
    """Opset 8, of which onnxruntime's own test is: sums up to each step, zeros behind lengths."""
    text = """
    batches (int64[2] n, float[2, 1] s, float[2, 3, 1] x) => (float[2, 1] t, float[2, 3, 1] y) {
      t, y = Scan <num_scan_inputs = 1, body = step (float[1] a, float[1] b)
        => (float[1] c, float[1] d) { c = Add (a, b) d = Identity (c) }> (n, s, x)
    }
    """
    x = np.arange(1, 7, dtype=np.float32).reshape(2, 3, 1)
    types = [TensorType((2, 1)), TensorType((2, 3, 1))]
    step = step_of(host_attrs(model_of(text, 8), types))
    total, sums = step.run([np.array([3, 1]), np.zeros((2, 1), np.float32), x])
    assert total[:, 0].tolist() == [6, 4] and sums[..., 0].tolist() == [[1, 3, 6], [4, 0, 0]]


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (SEQUENCE, [np.ones((2, 3), np.float32), np.asarray(5)], "position 5 in a sequence of 2"),
        (
            BRANCH.replace("Neg (x)", "Slice (x, x, x)"),
            [np.ones(2, np.float32), np.asarray(False)],
            r"host step If: .*node 'y' \(If\): node 'b' \(Slice\)",
        ),
    ],
)
def test_what_cannot_work_names_the_node(text: str, given: list[np.ndarray], message: str):
    model = model_of(text, 17)
    types = [TensorType((UNKNOWN,)) for _ in model.graph.output]
    with pytest.raises(ModelError, match=message):
        step_of(host_attrs(model, types)).run(given)
