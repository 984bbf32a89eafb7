"""The cases of the sweep over operators in host steps: inputs and attributes by operator set."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import defs

from retune.frontend.onnx.ops.registry import names
from tests.support.host_sweep import ROWS, Case, Form, cases, ints, normal, share

FLOAT = share(ROWS, 3, 5)
IMAGE = normal(ROWS, 4, 6, 5)
ELSEWHERE = {
    "Constant": "it has no inputs",
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), "test_host_control"),
    **dict.fromkeys(
        ("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert",
         "SequenceLength", "SplitToSequence", "ConcatFromSequence", "If", "Loop", "Scan"),
        "test_host_control",
    ),
    "TensorScatter": "onnxruntime wants as many updates as rows of a cache: node tests",
}  # fmt: skip
"""Operator -> why it is not in the sweep, or where it is tested."""


def _plain() -> Iterator[Case]:
    """Operators of one input, and of two that broadcast, without required attributes."""
    written = {case.op for case in _written()}
    for name in sorted(names()):
        if not defs.has(name) or name in written or name in ELSEWHERE:
            continue
        schema: Any = defs.get_schema(name)
        floats = schema.inputs and "tensor(float)" in schema.inputs[0].types
        truths = schema.inputs and schema.inputs[0].types == {"tensor(bool)"}
        if any(entry.required for entry in schema.attributes.values()) or schema.min_output != 1:
            continue
        x = FLOAT if floats else FLOAT > 0.5 if truths else (FLOAT * 9).astype(np.int32)
        count = max(schema.min_input, 1)
        if count == 1:
            yield from cases(name, x)
        elif count == 2:
            yield from cases(name, x, (1, Form([x[:1, ::-1].copy()])))


def _written() -> Iterator[Case]:
    """Operators whose attributes became inputs, or whose meaning changed."""
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        yield from cases(op, FLOAT, fewest=1)
        for axis in (0, 1, 2):
            yield from cases(op, FLOAT, (1, Form(attrs={"axis": axis})), label=f"{axis}", fewest=1)
    four = [normal(4), normal(4), normal(4), np.abs(normal(4)) + 0.5]
    yield from cases("BatchNormalization", IMAGE, (7, Form(four, {"epsilon": 1e-3})))
    bounds = [np.float32(0.3), np.float32(0.6)]
    clip = (6, Form(attrs={"min": 0.3, "max": 0.6})), (11, Form([np.array(b) for b in bounds]))
    yield from cases("Clip", FLOAT, *clip)
    yield from cases("Clip", FLOAT, (11, Form([None, np.array(bounds[1])])), label="high")
    yield from _moved()
    yield from _reduced()
    yield from _windows()
    yield from _recurrent()
    yield from _chosen()
    yield from _quantized()
    yield from _resized()


def _moved() -> Iterator[Case]:
    cut = {"starts": [-2, 4], "ends": [9, 0], "axes": [0, 2]}
    lists = [ints(-2, 4), ints(9, 0), ints(0, 2)]
    slices = (1, Form(attrs={**cut, "ends": [9, 9]})), (10, Form([*lists, ints(1, -2)]))
    yield from cases("Slice", FLOAT, *slices)
    pads = [1, 0, 2, 0, 1, 0]
    for mode in ("constant", "reflect", "edge"):
        before, after = {"mode": mode, "pads": pads}, {"mode": mode}
        value = [] if mode != "constant" else [np.array(0.5, np.float32)]
        forms = (2, Form(attrs=before)), (11, Form([ints(*pads), *value], after))
        yield from cases("Pad", FLOAT, *forms, label=mode, fewest=3)
    axes = (1, Form(attrs={"axes": [1]})), (13, Form([ints(1)]))
    yield from cases("Unsqueeze", FLOAT, *axes)
    yield from cases("Squeeze", FLOAT[:, :1], *axes)
    split = (2, Form(attrs={"axis": 2, "split": [2, 3]})), (13, Form([ints(2, 3)], {"axis": 2}))
    yield from cases("Split", FLOAT, *split, outputs=2)
    yield from cases("Reshape", FLOAT, (5, Form([ints(0, -1)])), fewest=1)
    yield from cases("Tile", FLOAT, (6, Form([ints(2, 1, 3)])))
    yield from cases("Expand", FLOAT[:, :, :1], (8, Form([ints(1, 1, 4)])))
    yield from cases("Concat", FLOAT, (4, Form([normal(2, 3, 5)], {"axis": 0})))
    yield from cases("Transpose", FLOAT, (1, Form(attrs={"perm": [2, 0, 1]})))
    yield from cases("Flatten", FLOAT, (1, Form(attrs={"axis": 2})))
    yield from cases("DepthToSpace", IMAGE, (1, Form(attrs={"blocksize": 2})))
    yield from cases("SpaceToDepth", IMAGE[..., :4], (1, Form(attrs={"blocksize": 2})))
    yield from cases("Cast", FLOAT, (6, Form(attrs={"to": onnx.TensorProto.INT32})))
    yield from cases("EyeLike", FLOAT[:, :, 0].copy(), (9, Form(attrs={"k": 1})))
    yield from cases("Trilu", FLOAT, (14, Form([np.array(1)], {"upper": 0})))
    yield from cases("ConstantOfShape", ints(2, 3, 1, 2), fewest=ROWS)
    yield from cases("Where", FLOAT > 0.5, (9, Form([normal(3, 5), normal(1, 1)])))
    yield from cases("ReverseSequence", normal(ROWS, 3, 2), (10, Form([ints(1, 1, 1)])), fewest=1)


def _reduced() -> Iterator[Case]:
    sums = ["ReduceSum"]
    others = ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"]
    for op in (*sums, *(f"Reduce{name}" for name in others)):
        since = 13 if op == "ReduceSum" else 18
        attrs = {"keepdims": 0}
        forms = (1, Form(attrs={**attrs, "axes": [1, -1]})), (since, Form([ints(1, -1)], attrs))
        yield from cases(op, FLOAT, *forms)
        first = (1, Form(attrs={"axes": [0]})), (since, Form([ints(0)]))
        yield from cases(op, FLOAT, *first, label="rows", fewest=1)
    for op in ("ArgMax", "ArgMin"):
        yield from cases(op, np.round(FLOAT, 1), (1, Form(attrs={"axis": 2, "keepdims": 0})))
    yield from cases("CumSum", FLOAT, (11, Form([np.array(1)], {"reverse": 1})))
    yield from cases("MeanVarianceNormalization", IMAGE, fewest=1)
    yield from cases("LpNormalization", FLOAT, (1, Form(attrs={"axis": 1, "p": 1})))
    yield from cases("InstanceNormalization", IMAGE, (6, Form([normal(4), normal(4)])), fewest=1)
    yield from cases("LayerNormalization", FLOAT, (17, Form([normal(5), normal(5)])), fewest=1)
    yield from cases("LRN", IMAGE, (1, Form(attrs={"size": 3})), fewest=1)


def _windows() -> Iterator[Case]:
    window = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1]}
    for op in ("MaxPool", "AveragePool", "LpPool"):
        yield from cases(op, IMAGE, (1, Form(attrs=window)), fewest=1)
    for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
        yield from cases(op, IMAGE, fewest=1)
    kernel = [normal(6, 2, 3, 2), normal(6)]
    conv = {"group": 2, "pads": [1, 0, 1, 1], "strides": [2, 1]}
    yield from cases("Conv", IMAGE, (1, Form(kernel, conv)), fewest=1)
    transposed = [normal(4, 3, 3, 2), normal(6)]
    yield from cases("ConvTranspose", IMAGE, (1, Form(transposed, conv)), fewest=1)
    yield from cases("Gemm", normal(ROWS, 6), (7, Form([normal(6, 3), normal(3)])))
    yield from cases("MatMul", FLOAT, (1, Form([normal(5, 4)])))
    yield from cases("Einsum", FLOAT, (12, Form([normal(5, 3)], {"equation": "bij,jk->bik"})))
    places = np.stack(
        [np.arange(4 * 30).reshape(4, 6, 5) * 4 + 4 * 4 * 30 * n for n in range(ROWS)]
    )
    yield from cases(
        "MaxUnpool",
        IMAGE[:, :, :2, :2].copy(),
        (
            9,
            Form(
                [places[:, :, :2, :2] % (4 * 4 * 4), ints(ROWS, 4, 5, 5)], {"kernel_shape": [2, 2]}
            ),
        ),
        fewest=ROWS,
    )
    grid = (share(ROWS, 3, 4, 2) * 2 - 1).astype(np.float32)
    sampled = (16, Form([grid], {"mode": "bilinear"})), (20, Form([grid], {"mode": "linear"}))
    yield from cases("GridSample", IMAGE, *sampled, sliced=("in0",), fewest=1)


def _recurrent() -> Iterator[Case]:
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for directions, name in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
            weights = [normal(directions, gates * 5, 3), normal(directions, gates * 5, 5)]
            lengths = np.array([1, 0, 1], np.int32)
            form = Form([*weights, None, lengths], {"hidden_size": 5, "direction": name})
            outputs = 3 if op == "LSTM" else 2
            given = normal(ROWS, 3, 3)
            yield from cases(op, given, (7, form), label=name, outputs=outputs, fewest=1)
            own = [*weights, None, np.array([ROWS, 1, 2], np.int32)]
            longer = (7, Form(own, {"hidden_size": 5, "direction": name}))
            label = f"{name}-longer"
            yield from cases(op, given, longer, label=label, outputs=outputs, fewest=ROWS)


def _chosen() -> Iterator[Case]:
    yield from cases("NonZero", np.round(FLOAT - 0.3))
    yield from cases("Unique", np.round(FLOAT, 1), outputs=4, fewest=1)
    yield from cases("Compress", FLOAT, (9, Form([np.array([True, False, True])], {"axis": 1})))
    yield from cases("Compress", FLOAT, (9, Form([np.arange(40) % 3 == 0])), label="flat")
    top = (1, Form(attrs={"k": 3})), (10, Form([ints(3)]))
    yield from cases("TopK", FLOAT, *top, outputs=2)
    yield from cases("Gather", FLOAT, (1, Form([np.array([[2, 0]])], {"axis": 1})))
    index = np.array([[[1, -1, 0]]] * ROWS)
    elements = (11, Form([index], {"axis": 2}))
    yield from cases("GatherElements", FLOAT, elements, sliced=("in0",))
    nested = np.array([[[2], [0]]] * ROWS)
    yield from cases("GatherND", FLOAT, (12, Form([nested], {"batch_dims": 1})), sliced=("in0",))
    updates = normal(ROWS, 1, 3)
    for op in ("Scatter", "ScatterElements"):
        written = (9, Form([index, updates], {"axis": 2}))
        yield from cases(op, FLOAT, written, sliced=("in0", "in1"))
    added = Form([index % 2, updates], {"axis": 2, "reduction": "add"})
    summed = {"label": "add", "sliced": ("in0", "in1")}
    yield from cases("ScatterElements", FLOAT, (16, added), **summed)
    rows = np.array([[0, 1], [0, 2]])
    yield from cases("ScatterND", FLOAT, (11, Form([rows, normal(2, 5)])), fewest=1)
    yield from cases("OneHot", ints(0, 2, -1, 9), (9, Form([ints(4), normal(2)])))
    boxes = np.sort(share(ROWS, 9, 4), axis=-1)
    limits = [ints(3), np.array([0.2], np.float32), np.array([0.2], np.float32)]
    suppressed = (10, Form([share(ROWS, 2, 9), *limits]))
    yield from cases("NonMaxSuppression", boxes, suppressed, sliced=("in0",))
    rois = [np.array([[0, 0, 3, 4], [1, 1, 5, 5]], np.float32), ints(0, 0)]
    shape = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
    yield from cases("RoiAlign", IMAGE, (10, Form(rois, shape)), fewest=1)
    regions = np.array([[0, 0, 0, 3, 4], [0, 1, 1, 4, 5]], np.float32)
    yield from cases("MaxRoiPool", IMAGE, (1, Form([regions], {"pooled_shape": [2, 2]})), fewest=1)
    yield from _signals()


def _signals() -> Iterator[Case]:
    yield from cases("Det", normal(ROWS, 3, 3))
    grams = {
        "ngram_counts": [0, 3],
        "ngram_indexes": [0, 1, 2, 3, 4],
        "pool_int64s": [2, 3, 5, 5, 4, 3, 3],
        "min_gram_length": 1,
        "max_gram_length": 2,
        "max_skip_count": 2,
    }
    words = np.array([[2, 3, 3, 5, 4]] * ROWS)
    for mode in ("TF", "IDF", "TFIDF"):
        weighted = Form(attrs={**grams, "mode": mode, "weights": [2.0, 3.0, 4.0, 5.0, 6.0]})
        yield from cases("TfIdfVectorizer", words, (9, weighted), label=mode, fewest=1)
    weights = [2.0, 3.0, 4.0, 5.0, 6.0]
    mixed = {**grams, "mode": "TFIDF", "ngram_indexes": [4, 0, 2, 1, 3], "weights": weights}
    yield from cases("TfIdfVectorizer", words, (9, Form(attrs=mixed)), label="mixed", fewest=1)
    signal = normal(ROWS, 8, 1)
    for onesided in (0, 1):
        forms = (17, Form(attrs={"onesided": onesided})), (20, Form([], {"onesided": onesided}))
        yield from cases("DFT", signal, *forms, label=f"{onesided}", fewest=1)
    windowed = (17, Form([np.array(2), share(4)]))
    yield from cases("STFT", signal, windowed, fewest=1)


def _quantized() -> Iterator[Case]:
    scale, zero = np.array(0.03, np.float32), np.array(120, np.uint8)
    yield from cases("QuantizeLinear", normal(ROWS, 6), (10, Form([scale, zero])))
    codes = np.random.default_rng(1).integers(0, 256, (ROWS, 6)).astype(np.uint8)
    yield from cases("DequantizeLinear", codes, (10, Form([scale, zero])))
    columns = [share(6), np.arange(6).astype(np.uint8)]
    axis = (13, Form(columns, {"axis": 1}))
    yield from cases("DequantizeLinear", codes, axis, label="axis")
    yield from cases("DynamicQuantizeLinear", normal(ROWS, 6), outputs=3, fewest=1)
    yield from cases("Equal", codes.astype(np.int32), (7, Form([codes[1].astype(np.int32)])))
    yield from cases("Mod", normal(ROWS, 6), (10, Form([share(6)], {"fmod": 1})))
    bytes_ = codes.reshape(ROWS, 2, 1, 3)
    convolved = (10, Form([bytes_[:2, :, :, :2].copy(), zero, zero]))
    yield from cases("ConvInteger", bytes_, convolved, fewest=1)
    yield from cases("MatMulInteger", codes, (10, Form([codes.T.copy(), zero, zero])))


def _resized() -> Iterator[Case]:
    scales = np.array([1, 1, 1.5, 2], np.float32)
    for mode in ("nearest", "linear"):
        twice = {"mode": mode}
        region = np.zeros(0, np.float32)
        forms = (10, Form([scales], twice)), (11, Form([region, scales], twice))
        yield from cases("Resize", IMAGE, *forms, label=mode, fewest=1)
        whole = [1.0, 1.0, 2.0, 2.0]
        older = (7, Form(attrs={"mode": mode, "scales": whole}))
        newer = (9, Form([np.array(whole, np.float32)], twice))
        yield from cases("Upsample", IMAGE, older, newer, label=mode, fewest=1)


CASES = [*_written(), *_plain()]
