"""The small models and arrays that pages of the documentation speak of, and names of programs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from retune.records.nights import NightRow, write_nights
from retune.records.schema import failed
from retune.records.store import RecordStore
from tests.support.cached import cached_decoder
from tests.support.ml_models import ml_model
from tests.support.store import record

MODELS = {
    "model": """model (float[1,3,32,32] data) => (float[1,10] prob)
        <float[8,3,3,3] w, float[8,10] w_dense> {
        a = Conv <pads = [1,1,1,1], strides = [2,2]> (data, w)
        b = Relu (a)
        c = GlobalAveragePool (b)
        d = Flatten (c)
        e = MatMul (d, w_dense)
        prob = Softmax (e) }""",
    "open": """open (float[batch,3,224,224] data) => (float[batch,10] prob)
        <float[8,3,3,3] w, float[8,10] w_dense> {
        a = Conv <pads = [1,1,1,1], strides = [4,4]> (data, w)
        b = Relu (a)
        c = GlobalAveragePool (b)
        d = Flatten (c)
        e = MatMul (d, w_dense)
        prob = Softmax (e) }""",
    "text": """text (float[batch,length,16] x) => (float[batch,length,8] y) <float[16,8] w> {
        a = MatMul (x, w)
        y = Relu (a) }""",
    "slice": """slice (float[64] x, int64[1] end) => (float[n] y) {
        start = Constant <value = int64[1] {0}> ()
        a = Slice (x, start, end)
        y = Exp (a) }""",
    "tail": """tail (float[64] x, int64[1] start) => (float[n] y) {
        end = Constant <value = int64[1] {64}> ()
        a = Slice (x, start, end)
        y = Exp (a) }""",
    "resize": """resize (float[1,3,16,16] x, int64[2] hw) => (float[1,3,h,w] y) {
        nc = Constant <value = int64[2] {1, 3}> ()
        sizes = Concat <axis = 0> (nc, hw)
        a = Resize <mode = "nearest"> (x, , , sizes)
        y = Relu (a) }""",
    "vad": """vad (float[1,16] x, int64 sr) => (float[1,8] y) <float[16,8] w, float[16,8] w_2> {
        rate = Constant <value = int64 {16000}> ()
        wide = Equal (sr, rate)
        y = If (wide) <then_branch = g1 () => (float[1,8] y1) { y1 = MatMul (x, w) },
                       else_branch = g2 () => (float[1,8] y2) { y2 = MatMul (x, w_2) }> }""",
    "recogniser": """recogniser (float[n,3,48,w] x) => (float[n,8,24,v] y) <float[8,3,3,3] w1> {
        a = Conv <pads = [1,1,1,1], strides = [2,2]> (x, w1)
        y = Relu (a) }""",
    "detector": """detector (float[1,16] input, float[1,8] state) =>
        (float[1,8] output, float[1,8] stateN) <float[16,8] w, float[8,8] w_h> {
        a = MatMul (input, w)
        b = MatMul (state, w_h)
        c = Add (a, b)
        stateN = Tanh (c)
        output = Sigmoid (stateN) }""",
    "lstm": """lstm (float[1,8] x, float[1,8] h, float[1,8] c) =>
        (float[1,8] y, float[1,8] hn, float[1,8] cn) <float[8,8] w, float[8,8] w_h> {
        a = MatMul (x, w)
        b = MatMul (h, w_h)
        s = Add (a, b)
        g = Sigmoid (s)
        k = Mul (c, g)
        cn = Add (k, a)
        t = Tanh (cn)
        hn = Mul (g, t)
        y = Relu (hn) }""",
    "memory": """memory (float[1,8] x, float[1,8] "memory.0", float[1,8] "memory.1") =>
        (float[1,8] y, float[1,8] "next.0", float[1,8] "next.1") <float[8,8] w> {
        a = MatMul (x, w)
        "next.0" = Add (a, "memory.0")
        "next.1" = Mul ("next.0", "memory.1")
        y = Relu ("next.1") }""",
}
"""Graphs in ONNX's text, by file; inputs that are called w are weights."""

GIVEN = {
    "": """
import json
import numpy as np
from retune.bundle.runtime.module import Module
rng = np.random.default_rng(0)
image = rng.random((1, 3, 32, 32), np.float32)
images, photos = [image, image], rng.random((5, 3, 32, 32), np.float32)
rows, chunks = rng.random((4, 3), np.float32), rng.random((3, 1, 16), np.float32)
""",
    "vta": """
import numpy as np
data = np.zeros((1, 4, 56, 56, 1, 16), np.int8)
weight = np.zeros((4, 4, 3, 3, 16, 16), np.int8)
""",
}
"""Page -> names that its programs have from their readers; "": those of all others."""

TUNED = "retune tune model.onnx --out build"
BEFORE = {
    "bundles": (TUNED, f"{TUNED} --layout NCHW", "cp -rL build before"),
    "records": ("mkdir other", "cp -r artifacts/records other/records"),
    "report": (TUNED, f"{TUNED} --layout NCHW", "mkdir yesterday", "cp -r build yesterday/build"),
}
"""Page -> commands that its reader has given before."""


def parsed(text: str) -> onnx.ModelProto:
    """The model of a text; its weights are random numbers."""
    head = '<ir_version: 9, opset_import: ["" : 17]>\n'
    model = onnx.parser.parse_model(head + text)
    rng = np.random.default_rng(0)
    values = {each.name: each for each in model.graph.value_info if each.name.startswith("w")}
    for name, value in values.items():
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = rng.normal(size=shape).astype(np.float32) / 4
        model.graph.initializer.append(numpy_helper.from_array(array, name))
        model.graph.value_info.remove(value)
    return model


def classifier() -> onnx.ModelProto:
    """A linear classifier with names, as skl2onnx writes one."""
    made = ml_model(
        *("LinearClassifier", {"X": np.zeros((4, 3), np.float32)}, ("label", "probabilities")),
        coefficients=[1.0, -1.0, 0.5, -1.0, 1.0, -0.5],
        intercepts=[0.1, -0.1],
        classlabels_strings=["no", "yes"],
        post_transform="SOFTMAX",
    )
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    return made


def write_records(root: Path) -> None:
    """Writes records of two nights, and the rows of their table."""
    store, nights = RecordStore(root), ("2026-11-24", "2026-11-25")
    for number, night in enumerate(nights):
        rows = [record(2 * n + number, night=night, run_id=f"run-{number}") for n in range(6)]
        wrong = failed("wrong_result", "off by 3")
        store.append([*rows, record(20 + number, night=night, measurement=wrong)])
        row = NightRow(fleet="lab", night=night, network="mlp", device="pocl", ratio=1.0)
        write_nights(root, [replace(row, verdict="real", change=1.0 + number / 10)])


def write_files(folder: Path) -> None:
    """Writes the models, and arrays for their inputs."""
    for name, text in MODELS.items():
        onnx.save(parsed(text), folder / f"{name}.onnx")
    onnx.save(classifier(), folder / "classifier.onnx")
    onnx.save(cached_decoder(), folder / "decoder.onnx")
    rng = np.random.default_rng(1)
    image = rng.random((1, 3, 32, 32), np.float32)
    np.save(folder / "image.npy", image)
    np.save(folder / "x.npy", image)
    np.savez(folder / "in.npz", data=image)
    for name in ("data", "samples", "inputs"):
        np.savez(folder / f"{name}.npz", data=rng.random((8, 3, 32, 32), np.float32))
