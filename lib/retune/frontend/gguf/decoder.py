"""The ONNX model of a GGUF file of a llama-like architecture.

Such an architecture has RMS norms, rotary embeddings, attention with groups of heads and a gated
product (SwiGLU). The model has the form that the builder of onnxruntime-genai writes:
GroupQueryAttention with its rotation and growing caches, and MatMulNBits for quantized weights.
`DecoderConfig.model` returns it.

Inputs are input_ids int64 [batch, sequence], past_key_values.N.key and .value float32 [batch,
heads, past, width]; outputs are logits of the last token [batch, 1, words] (of all tokens, if
wanted), present.N.key and .value. All rows have tokens at all positions: there is no mask.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from retune.core.errors import ModelError
from retune.frontend.gguf.reader import GgufFile, GgufTensor
from retune.frontend.gguf.writer import Writer

INTERLEAVED = {"llama": True, "qwen2": False, "qwen3": False}
"""Architecture -> whether its files pair neighbouring rows of a head for the rotation.

The model pairs row i with row i + width / 2; rows of queries and keys are put into that order.
"""
_TENSORS = {f"{name}.weight" for name in ("token_embd", "output_norm", "output", "rope_freqs")}
_OF_LAYERS = {
    *(f"attn_{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    *(f"attn_{part}.weight" for part in ("norm", "q_norm", "k_norm", "output")),
    *(f"ffn_{part}.weight" for part in ("norm", "gate", "up", "down")),
}
"""The tensors that have a meaning here; another one would change the network's results."""
_LAYER = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.(.+)")
_MOST_ANGLES = 1 << 27
"""Elements of a table of the rotation: those of a million tokens have half of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """What the file says of its network."""

    file: GgufFile
    architecture: str
    layers: int
    hidden: int
    inner: int
    heads: int
    shared: int
    """Heads of keys and values."""
    width: int
    """Of a head."""
    rotated: int
    """Elements of a head that are rotated."""
    words: int
    context: int
    """Tokens for which the tables of the rotation have rows."""
    epsilon: float

    @classmethod
    def of(cls, file: GgufFile, context: int | None = None) -> "DecoderConfig":
        """The decoder of the file. Raises: ModelError for what is not llama-like."""
        architecture = file.text("general.architecture")
        if architecture not in INTERLEAVED:
            raise ModelError(
                f"{file.path}: expected an architecture among {', '.join(INTERLEAVED)}, got "
                f"{architecture!r}; export the original model as ONNX"
            )
        said = _Said(file, architecture)
        said.refuse_others()
        heads, hidden = said.size("attention.head_count"), said.size("embedding_length")
        width = said.size("attention.key_length", hidden // heads)
        table = file.tensors.get("token_embd.weight")
        words = table.shape[0] if table is not None and table.shape else 0
        most = said.size("context_length")
        if context is not None and not 1 <= context <= most:
            raise ModelError(
                f"{file.path}: context of {context}: expected 1 to {most} tokens, which the "
                "model was trained for; state another"
            )
        found = cls(
            file=file,
            architecture=architecture,
            layers=said.size("block_count"),
            hidden=hidden,
            inner=said.size("feed_forward_length"),
            heads=heads,
            shared=said.size("attention.head_count_kv", heads),
            width=width,
            rotated=said.size("rope.dimension_count", width),
            words=words,
            context=context or most,
            epsilon=said.positive("attention.layer_norm_rms_epsilon"),
        )
        found._check()
        return found

    def _check(self) -> None:
        """Raises: ModelError for extents that do not go together, and tensors without a meaning."""
        whole = INTERLEAVED[self.architecture] and self.rotated != self.width
        if self.heads % self.shared or self.rotated % 2 or self.rotated > self.width or whole:
            raise ModelError(
                f"{self.file.path}: expected heads in groups, and rotations of them; got "
                f"{self.heads} heads for {self.shared}, {self.rotated} of {self.width} elements "
                "rotated; export the original model as ONNX"
            )
        if self.context * self.rotated // 2 > _MOST_ANGLES:
            raise ModelError(
                f"{self.file.path}: context of {self.context}: expected tables of the rotation of "
                f"at most {_MOST_ANGLES} elements, got {self.context} times {self.rotated // 2}; "
                "state a smaller --context"
            )
        for name in self.file.tensors:
            if not self._reads(name):
                raise ModelError(
                    f"{self.file.path}: expected the tensors of a llama-like decoder of "
                    f"{self.layers} layers, got {name!r:.60}; export the original model as ONNX"
                )

    def _reads(self, name: str) -> bool:
        """Whether the model may have the tensor of that name."""
        found = _LAYER.fullmatch(name)
        if found is None:
            return name in _TENSORS
        return int(found[1]) < self.layers and found[2] in _OF_LAYERS

    def model(self, writer: Writer, *, all_logits: bool = False) -> onnx.ModelProto:
        """The model, whose weights the writer stores."""
        w = writer
        lengths = self._lengths(w)
        tables = [w.stored(name, table) for name, table in self._angles().items()]
        total = self._embedded(w)
        gain = self._gain(w, "blk.0.attn_norm")
        attrs = {"axis": -1, "epsilon": self.epsilon}
        x = w.add("SimplifiedLayerNormalization", [total, gain], "blk.0.attn_norm.out", **attrs)
        for layer in range(self.layers):
            at = f"blk.{layer}"
            made = self._attention(w, layer, x, [*lengths, *tables])
            x, total = self._normalised(w, total, made, f"{at}.ffn_norm")
            made = self._gated(w, at, x)
            last = layer == self.layers - 1
            after = "output_norm" if last else f"blk.{layer + 1}.attn_norm"
            x, total = self._normalised(w, total, made, after)
        if not all_logits:
            x = w.add("Gather", [x, w.stored("last", np.array([-1]))], "last_token", axis=1)
        head = "output" if "output.weight" in self.file.tensors else "token_embd"
        w.product(x, self._weight(head, self.words, self.hidden), "logits")
        return w.model(self._inputs(), self._outputs(all_logits), self.architecture)

    def _weight(self, name: str, rows: int, columns: int) -> GgufTensor:
        return self.file.tensor(f"{name}.weight", rows, columns)

    def _gain(self, w: Writer, name: str, size: int = 0) -> str:
        return w.stored(
            f"{name}.weight", self.file.tensor(f"{name}.weight", size or self.hidden).values()
        )

    def _normalised(self, w: Writer, total: str, made: str, norm: str) -> tuple[str, str]:
        """The norm of the sum, and the sum."""
        outputs = [f"{norm}.out", "", "", f"{norm}.sum"]
        inputs = [total, made, self._gain(w, norm)]
        w.add_all("SkipSimplifiedLayerNormalization", inputs, outputs, epsilon=self.epsilon)
        return outputs[0], outputs[3]

    def _lengths(self, w: Writer) -> list[str]:
        """int32: each row's tokens after the step less one [batch], and the tokens after it."""
        batch, new = (
            w.add("Shape", ["input_ids"], name, start=axis, end=axis + 1)
            for axis, name in enumerate(("batch", "new"))
        )
        held = w.add("Shape", ["past_key_values.0.key"], "held", start=2, end=3)
        total = w.add("Add", [held, new], "total")
        last = w.add("Sub", [total, w.stored("one", np.array([1]))], "last_position")
        rows = w.add("Expand", [w.cast(last, np.int32, "last_32"), batch], "seqlens_k")
        scalar = w.add("Squeeze", [w.cast(total, np.int32, "total_32")], "total_length")
        return [rows, scalar]

    def _angles(self) -> dict[str, np.ndarray]:
        """float32 [context, rotated / 2]: cosines and sines, computed in float32."""
        a, file = self.architecture, self.file
        said = _Said(file, a)
        base = np.float32(said.positive("rope.freq_base", 10000.0))
        exponents = np.arange(0, self.rotated, 2, dtype=np.float32) / np.float32(self.rotated)
        rates = np.float32(1) / base**exponents
        if "rope_freqs.weight" in file.tensors:
            rates = rates / file.tensor("rope_freqs.weight", self.rotated // 2).values()
        if file.text(f"{a}.rope.scaling.type", "none") == "linear":
            rates = rates / np.float32(said.positive("rope.scaling.factor"))
        angles = np.arange(self.context, dtype=np.float32)[:, None] * rates
        return {"cos_cache": np.cos(angles), "sin_cache": np.sin(angles)}

    def _embedded(self, w: Writer) -> str:
        """float32 [batch, sequence, hidden]: the rows of the tokens."""
        return w.looked_up("input_ids", self._weight("token_embd", self.words, self.hidden))

    def _attention(self, w: Writer, layer: int, x: str, rest: Sequence[str]) -> str:
        at = f"blk.{layer}"
        pasts = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
        inputs = [*self._projected(w, at, x), *pasts, *rest]
        attrs = {"num_heads": self.heads, "kv_num_heads": self.shared, "do_rotary": 1}
        outputs = [f"{at}.attention", *(f"present.{layer}.{part}" for part in ("key", "value"))]
        w.add_all("GroupQueryAttention", inputs, outputs, scale=self.width**-0.5, **attrs)
        weight = self._weight(f"{at}.attn_output", self.hidden, self.heads * self.width)
        return w.product(outputs[0], weight, f"{at}.attn_output")

    def _projected(self, w: Writer, at: str, x: str) -> list[str]:
        """Queries, keys and values; of one product, as the first of them, where they can be."""
        heads = {"q": self.heads, "k": self.shared, "v": self.shared}
        weights = [self._ordered(f"{at}.attn_{part}", n) for part, n in heads.items()]
        biases = [self._bias(f"{at}.attn_{part}", n) for part, n in heads.items()]
        normed = f"{at}.attn_q_norm.weight" in self.file.tensors
        if not normed and len({weight.kind.name for weight in weights}) == 1:
            own = [bias for bias in biases if bias is not None]
            if len(own) in (0, len(biases)):
                whole = weights[0].with_rows_of(f"{at}.attn_qkv.weight", weights[1:])
                bias = np.concatenate(own) if own else None
                return [w.product(x, whole, f"{at}.qkv", bias), "", ""]
        parts = [
            w.product(x, weight, f"{at}.{part}", bias)
            for part, weight, bias in zip(heads, weights, biases, strict=True)
        ]
        if normed:
            for number, part in enumerate("qk"):
                gain = self._gain(w, f"{at}.attn_{part}_norm", self.width)
                parts[number] = self._head_norm(w, parts[number], gain, heads[part])
        return parts

    def _head_norm(self, w: Writer, value: str, gain: str, heads: int) -> str:
        """The RMS norm of each head."""
        split = w.stored("by_heads_" + str(heads), np.array([0, 0, heads, self.width]))
        joined = w.stored("joined_" + str(heads), np.array([0, 0, heads * self.width]))
        by_heads = w.add("Reshape", [value, split], f"{value}.heads")
        attrs = {"axis": -1, "epsilon": self.epsilon}
        made = w.add("SimplifiedLayerNormalization", [by_heads, gain], f"{value}.normed", **attrs)
        return w.add("Reshape", [made, joined], f"{value}.joined")

    def _ordered(self, name: str, heads: int) -> GgufTensor:
        """The weight with a head's rows in the order of the model's rotation."""
        weight = self._weight(name, heads * self.width, self.hidden)
        if name.endswith("_v") or not INTERLEAVED[self.architecture]:
            return weight
        return weight.with_rows(_halves(heads, self.width))

    def _bias(self, name: str, heads: int) -> np.ndarray | None:
        if f"{name}.bias" not in self.file.tensors:
            return None
        bias = self.file.tensor(f"{name}.bias", heads * self.width).values()
        if name.endswith("_v") or not INTERLEAVED[self.architecture]:
            return bias
        return bias[_halves(heads, self.width)]

    def _gated(self, w: Writer, at: str, x: str) -> str:
        gate, up = (
            w.product(x, self._weight(f"{at}.ffn_{part}", self.inner, self.hidden), f"{at}.{part}")
            for part in ("gate", "up")
        )
        silu = w.add("Mul", [gate, w.add("Sigmoid", [gate], f"{at}.sigmoid")], f"{at}.silu")
        inner = w.add("Mul", [silu, up], f"{at}.inner")
        weight = self._weight(f"{at}.ffn_down", self.hidden, self.inner)
        return w.product(inner, weight, f"{at}.down")

    def _inputs(self) -> list[onnx.ValueInfoProto]:
        ids = onnx.helper.make_tensor_value_info(
            "input_ids", onnx.TensorProto.INT64, ["batch", "sequence"]
        )
        return [ids, *self._caches("past_key_values", "past")]

    def _outputs(self, all_logits: bool) -> list[onnx.ValueInfoProto]:
        shape = ["batch", "sequence" if all_logits else 1, self.words]
        logits = onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, shape)
        return [logits, *self._caches("present", "total")]

    def _caches(self, name: str, length: str) -> list[onnx.ValueInfoProto]:
        shape = ["batch", self.shared, length, self.width]
        return [
            onnx.helper.make_tensor_value_info(
                f"{name}.{layer}.{part}", onnx.TensorProto.FLOAT, shape
            )
            for layer in range(self.layers)
            for part in ("key", "value")
        ]


@dataclass(frozen=True, slots=True)
class _Said:
    """The metadata of the file's architecture."""

    file: GgufFile
    architecture: str

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer. Raises: ModelError."""
        found = self.file.whole(f"{self.architecture}.{key}", default)
        if not 0 < found < 1 << 31:
            raise ModelError(
                f"{self.file.path}: {self.architecture}.{key}: expected a positive integer, got "
                f"{found}; convert the model again"
            )
        return found

    def positive(self, key: str, default: float | None = None) -> float:
        """A positive number. Raises: ModelError."""
        found = self.file.number(f"{self.architecture}.{key}", default)
        if not 0 < found < math.inf:
            raise ModelError(
                f"{self.file.path}: {self.architecture}.{key}: expected a positive number, got "
                f"{found}; convert the model again"
            )
        return found

    def refuse_others(self) -> None:
        """Raises: ModelError for what a llama-like decoder does not have."""
        a, file = self.architecture, self.file
        scaling = file.text(f"{a}.rope.scaling.type", "none")
        got = ""
        if file.whole(f"{a}.expert_count", 0):
            got = "a mixture of experts"
        elif scaling not in ("none", "linear"):
            got = f"rotations scaled by {scaling!r}"
        if got:
            raise ModelError(
                f"{file.path}: expected a decoder of one gated product and plain or linearly "
                f"scaled rotations, got {got}; export the original model as ONNX"
            )


def _halves(heads: int, width: int) -> np.ndarray:
    """The rows of all heads: of each first the even ones, then the odd ones."""
    rows = np.arange(heads * width).reshape(heads, width // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)
