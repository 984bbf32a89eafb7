"""Our numpy for ops of host steps computes what onnxruntime does."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from retune.core.dtypes import FLOAT32, INT64, UINT8, UNKNOWN, TensorType
from retune.frontend.host.step import host_attrs, step_of
from retune.ops.host_numpy import top_positions

Arrays = list[np.ndarray | None]


def assert_like_onnxruntime(
    op: str, arrays: Arrays, outputs: int = 1, opset: int = 17, tolerance: float = 0, **attrs: Any
) -> list[np.ndarray]:
    """Both run a model of the one node; integers are equal, floats within the tolerance."""
    names = ["" if array is None else f"x{i}" for i, array in enumerate(arrays)]
    feeds = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
    made = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, made, **attrs)],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in made],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString())
    expected = session.run(None, feeds)
    types = [TensorType((UNKNOWN,) * a.ndim, str(a.dtype)) for a in expected]
    found = step_of(host_attrs(model, types)).run(list(feeds.values()))
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
    return expected


def random_boxes(rng: np.random.Generator, batches: int, count: int) -> np.ndarray:
    """Corners in any order, many of them overlapping; some boxes have no area."""
    boxes = rng.random((batches, count, 4), np.float32)
    boxes[:, ::7, 2:] = boxes[:, ::7, :2]
    return boxes


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("count", [1, 40, 700])
@pytest.mark.parametrize("threshold", [None, 0.4])
def test_non_max_suppression(count: int, center: int, threshold: float | None, rng):
    boxes = random_boxes(rng, 2, count)
    scores = np.round(rng.random((2, 3, count), np.float32), 2)  # with ties
    limits = [np.array([7 if count < 500 else 400]), np.array([0.3], np.float32)]
    least = None if threshold is None else np.array([threshold], np.float32)
    arrays: Arrays = [boxes, scores, *limits, *([] if least is None else [least])]
    (chosen,) = assert_like_onnxruntime("NonMaxSuppression", arrays, center_point_box=center)
    assert count == 1 or len(chosen) > 6


@pytest.mark.parametrize("limit", [1, 3, 500])
def test_non_max_suppression_of_many_classes_with_few_boxes(limit: int, rng):
    boxes, scores = random_boxes(rng, 2, 200), rng.random((2, 40, 200), np.float32)
    scores[:, 7] = 1
    scores[1, 9:20] = 0
    limits = [np.array([limit]), np.array([0.3], np.float32), np.array([0.95], np.float32)]
    (chosen,) = assert_like_onnxruntime("NonMaxSuppression", [boxes, scores, *limits])
    assert len(chosen) > 40


def test_non_max_suppression_without_limits(rng):
    boxes, scores = random_boxes(rng, 1, 9), rng.random((1, 2, 9), np.float32)
    (nothing,) = assert_like_onnxruntime("NonMaxSuppression", [boxes, scores])
    assert nothing.shape == (0, 3)
    some = np.array(3, np.int64)
    assert_like_onnxruntime("NonMaxSuppression", [boxes, scores, some])
    least = np.array([0.5], np.float32)
    assert_like_onnxruntime("NonMaxSuppression", [boxes, scores, some, None, least])


@pytest.mark.parametrize("outputs", [1, 4])
@pytest.mark.parametrize("in_order", [0, 1])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_unique(axis: int | None, in_order: int, outputs: int, rng):
    x = rng.integers(0, 3, (6, 2)).astype(np.float32)
    attrs = {} if axis is None else {"axis": axis}
    assert_like_onnxruntime("Unique", [x], outputs, sorted=in_order, **attrs)


@pytest.mark.parametrize("dtype", [FLOAT32, INT64, UINT8])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_top_k(axis: int, largest: int, dtype: str, rng):
    x = rng.integers(0, 9, (5, 8)).astype(dtype)
    assert_like_onnxruntime("TopK", [x, np.array([4])], 2, axis=axis, largest=largest)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("axis", "count"), [(0, 1), (1, 300), (-1, 0)])
def test_few_of_long_rows_are_found_before_they_are_sorted(
    axis: int, count: int, largest: int, rng
):
    x = rng.integers(0, 200, (1500, 1200)).astype(np.float32)
    assert_like_onnxruntime("TopK", [x, np.array([count])], 2, axis=axis, largest=largest)


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("share", [0.001, 0.9])
def test_no_number_is_above_a_nan_in_long_rows(share: float, largest: bool, rng):
    x = np.where(rng.random(2000) < share, np.nan, rng.integers(0, 50, 2000))
    order = np.lexsort([range(2000), -np.nan_to_num(x, nan=99.0) if largest else x])
    assert top_positions(x, 100, 0, largest=largest).tolist() == order[:100].tolist()


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather_elements_of_more_choices_than_numpy_takes(axis: int, rng):
    x = rng.random((70, 80), np.float32)
    assert_like_onnxruntime("GatherElements", [x, rng.integers(-70, 70, (70, 80))], axis=axis)


@pytest.mark.parametrize(("batch", "last"), [(0, 1), (0, 3), (1, 2), (2, 1)])
def test_gather_nd(batch: int, last: int, rng):
    x = rng.random((2, 3, 4, 5), np.float32)
    where = rng.integers(-2, 2, (2, 3, last))
    assert_like_onnxruntime("GatherND", [x, where], batch_dims=batch)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str, rng):
    x = rng.random((6, 4), np.float32)
    rows = rng.permutation(6)[:3]
    where = np.repeat(rows[:, None], 4, axis=1)
    updates = rng.random((3, 4), np.float32)
    given = {"opset": 18, "reduction": reduction}
    assert_like_onnxruntime("ScatterElements", [x, where - 6, updates], axis=0, **given)
    assert_like_onnxruntime("ScatterND", [x, rows[:, None], updates], **given)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("ratio", [0, 2])
@pytest.mark.parametrize("opset", [10, 16])
def test_roi_align(mode: str, ratio: int, opset: int, rng):
    x = rng.random((2, 5, 9, 7), np.float32)
    corner = rng.random((6, 2), np.float32) * 12 - 2
    rois = np.concatenate([corner, corner + rng.random((6, 2), np.float32) * 8], axis=1)
    shape = {"output_height": 3, "output_width": 2, "spatial_scale": 0.75}
    which = rng.integers(0, 2, 6)
    arrays: Arrays = [x, rois, which]
    assert_like_onnxruntime(
        "RoiAlign", arrays, opset=opset, tolerance=1e-5, mode=mode, sampling_ratio=ratio, **shape
    )
