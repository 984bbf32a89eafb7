"""A decoder as the GenAI builder writes it: four-bit weights, shared heads, caches as inputs."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from retune.ops.packed import packed
from retune.proto.scope import MICROSOFT
from tests.support.contrib_attention import angles

HEADS, SHARED, WIDE, WORDS, BLOCK = 4, 2, 16, 30, 16
HIDDEN, INNER, LAYERS = HEADS * WIDE, 96, 2


@dataclass(slots=True)
class _Writer:
    """The nodes and weights so far."""

    rng: np.random.Generator
    accuracy_level: int
    nodes: list[onnx.NodeProto] = field(default_factory=list[onnx.NodeProto])
    weights: list[onnx.TensorProto] = field(default_factory=list[onnx.TensorProto])

    def stored(self, name: str, array: np.ndarray) -> str:
        """A constant's name."""
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def add(self, op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> str:
        """The first output's name."""
        self.nodes.append(helper.make_node(op, inputs, outputs, outputs[0], **attrs))
        return outputs[0]

    def product(self, name: str, x: str, depth: int, made: int) -> str:
        """MatMulNBits of four bits."""
        codes = self.rng.integers(0, 16, (made, depth // BLOCK, BLOCK)).astype(np.uint8)
        scales = self.rng.uniform(0.01, 0.04, made * depth // BLOCK).astype(np.float32)
        inputs = [
            x,
            self.stored(f"{name}.q", packed(codes, 4)),
            self.stored(f"{name}.s", scales),
        ]
        attrs = {"N": made, "K": depth, "bits": 4, "block_size": BLOCK}
        attrs["accuracy_level"] = self.accuracy_level
        return self.add("MatMulNBits", inputs, [name], domain=MICROSOFT, **attrs)

    def gain(self, name: str) -> str:
        """The weight of a norm."""
        return self.stored(name, self.rng.uniform(0.5, 1.5, HIDDEN).astype(np.float32))


def decoder(accuracy_level: int = 1) -> onnx.ModelProto:
    """Words, a mask and caches to logits and caches; batch, sequence and past stay open."""
    w = _Writer(np.random.default_rng(5), accuracy_level)
    lengths = _lengths(w)
    table = w.rng.standard_normal((WORDS, HIDDEN)).astype(np.float32)
    total = w.add("Gather", [w.stored("words", table), "input_ids"], ["embedded"])
    norm = [total, w.gain("first.g")]
    x = w.add("SimplifiedLayerNormalization", norm, ["first"], axis=-1, epsilon=1e-5)
    tables = [w.stored(name, array) for name, array in angles(32, WIDE // 2).items()]
    for layer in range(LAYERS):
        made = _attention(w, layer, x, [*lengths, *tables])
        x, total = _skip(w, f"middle.{layer}", total, made)
        gate, up = (w.product(f"{part}.{layer}", x, HIDDEN, INNER) for part in ("gate", "up"))
        silu = w.add("Mul", [gate, w.add("Sigmoid", [gate], [f"sig.{layer}"])], [f"silu.{layer}"])
        inner = w.add("Mul", [silu, up], [f"inner.{layer}"])
        x, total = _skip(w, f"end.{layer}", total, w.product(f"down.{layer}", inner, INNER, HIDDEN))
    w.product("logits", x, HIDDEN, WORDS)
    return _model(w)


def _lengths(w: _Writer) -> list[str]:
    """The tokens in the cache less one, for each batch, and of the longest, as int32."""
    counts = w.add("ReduceSum", ["attention_mask", w.stored("one", np.array([1]))], ["counts"],
                   keepdims=0)  # fmt: skip
    less = w.add("Sub", [counts, "one"], ["less"])
    held = w.add("Cast", [less], ["seqlens"], to=TensorProto.INT32)
    shape = w.add("Shape", ["attention_mask"], ["mask.shape"])
    whole = w.add("Gather", [shape, w.stored("column", np.asarray(1))], ["whole"])
    return [held, w.add("Cast", [whole], ["total"], to=TensorProto.INT32)]


def _attention(w: _Writer, layer: int, x: str, others: list[str]) -> str:
    """Projections, GroupQueryAttention with rotation and cache, projection."""
    parts = [
        w.product(f"{part}.{layer}", x, HIDDEN, heads * WIDE)
        for part, heads in (("q", HEADS), ("k", SHARED), ("v", SHARED))
    ]
    caches = [f"past.{layer}.{part}" for part in ("key", "value")]
    made = [f"heads.{layer}", *(name.replace("past", "present") for name in caches)]
    attrs = {"num_heads": HEADS, "kv_num_heads": SHARED, "do_rotary": 1}
    inputs = [*parts, *caches, *others]
    heads = w.add("GroupQueryAttention", inputs, made, domain=MICROSOFT, **attrs)
    return w.product(f"o.{layer}", heads, HIDDEN, HIDDEN)


def _skip(w: _Writer, name: str, total: str, made: str) -> tuple[str, str]:
    """The sum's norm, and the sum."""
    outputs = [name, "", "", f"{name}.sum"]
    inputs = [total, made, w.gain(f"{name}.g")]
    op = "SkipSimplifiedLayerNormalization"
    return w.add(op, inputs, outputs, domain=MICROSOFT, epsilon=1e-5), outputs[3]


def _model(w: _Writer) -> onnx.ModelProto:
    def value(name: str, *dims: int | str, element: int = TensorProto.FLOAT) -> Any:
        return helper.make_tensor_value_info(name, element, dims)

    caches = [f"{layer}.{part}" for layer in range(LAYERS) for part in ("key", "value")]
    inputs = [
        value("input_ids", "batch", "sequence", element=TensorProto.INT64),
        value("attention_mask", "batch", "total", element=TensorProto.INT64),
        *(value(f"past.{name}", "batch", SHARED, "past", WIDE) for name in caches),
    ]
    outputs = [
        value("logits", "batch", "sequence", WORDS),
        *(value(f"present.{name}", "batch", SHARED, "total", WIDE) for name in caches),
    ]
    graph = helper.make_graph(w.nodes, "decoder", inputs, outputs, w.weights)
    sets = [helper.make_opsetid("", 14), helper.make_opsetid(MICROSOFT, 1)]
    made = helper.make_model(graph, opset_imports=sets)
    made.ir_version = 8
    return made
