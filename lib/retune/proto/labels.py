"""Outputs that are strings or maps, as tensors of numbers.

Classifiers of ai.onnx.ml name their classes, and exporters end them with ZipMap, which makes one
dictionary of each row. Read `with_numbers`: a string becomes its number in a table, a map of
probabilities the tensor of them. `Numbered.tables` says which string each number is.

    label, p = LinearClassifier(x, classlabels_strings=[cat, dog])       label: strings
    maps     = ZipMap(p, classlabels_strings=[cat, dog])                 maps: dictionaries
 -> label, p = LinearClassifier(x, classlabels_ints=[0, 1])              label: 0 for cat
    maps     = Identity(p)                                               maps: [rows, 2]
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.proto.scope import standard

_ML = "ai.onnx.ml"
_STRING, _INT64 = onnx.TensorProto.STRING, onnx.TensorProto.INT64
_CLASSIFIERS = {
    "LinearClassifier": "classlabels_ints",
    "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}
"""Operators that choose a class -> their attribute for labels that are numbers."""
_MOVES = (
    *("Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Gather", "Slice"),
    *("Expand", "Tile", "ArrayFeatureExtractor"),
)
"""Operators that choose and move elements of their first input."""

Table = tuple[str, ...]
"""The string of each number."""


@dataclass(frozen=True, slots=True)
class Numbered:
    """A model whose outputs are tensors of numbers, as far as that can be."""

    model: onnx.ModelProto
    tables: Mapping[str, Table]
    """Output -> the string that each of its numbers is, or that each of its columns is for."""
    maps: tuple[str, ...]
    """Outputs that were dictionaries."""


def has_strings(model: onnx.ModelProto) -> bool:
    """Whether an output is of strings, or a sequence, such as of maps."""
    return any(
        not entry.type.HasField("tensor_type") or entry.type.tensor_type.elem_type == _STRING
        for entry in model.graph.output
        if entry.type.WhichOneof("value") is not None
    )


def with_numbers(model: onnx.ModelProto) -> Numbered:
    """The model with numbers for strings and tensors for maps; itself if no output has them.

    What cannot be said in numbers stays as it is.
    """
    if not has_strings(model):
        return Numbered(model, {}, ())
    made = onnx.ModelProto()
    made.CopyFrom(model)
    writer = _LabelWriter(made)
    for node in made.graph.node:
        rule = _RULES.get((standard(node.domain), node.op_type))
        if rule is not None:
            rule(writer, node)
    return writer.finished()


class _LabelWriter:
    """The model while its nodes are rewritten, in their order."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self.tables: dict[str, Table] = {}
        """Value that was of strings -> their table."""
        self._columns: dict[str, Table] = {}
        self._maps: list[str] = []
        self._outputs = {entry.name for entry in model.graph.output}
        self._read = {name for node in model.graph.node for name in node.input}
        for tensor in model.graph.initializer:
            if tensor.data_type == _STRING:
                self.stored(tensor.name, tensor)

    def stored(self, name: str, tensor: onnx.TensorProto) -> None:
        """The constant of strings holds their numbers; it is of the same shape."""
        words = [word.decode(errors="replace") for word in tensor.string_data]
        table = _table(words)
        positions = np.array([table.index(word) for word in words], np.int64)
        tensor.CopyFrom(numpy_helper.from_array(positions.reshape(tuple(tensor.dims)), tensor.name))
        self.tables[name] = table

    def unmapped(self, node: onnx.NodeProto) -> None:
        """The ZipMap at the end of a network hands on its data."""
        output = node.output[0]
        if output in self._read or output not in self._outputs:
            return
        names = _strings(node, "classlabels_strings")
        self._columns[output] = names or tuple(map(str, _attribute(node, "classlabels_int64s")))
        self._maps.append(output)
        del node.attribute[:]
        node.op_type, node.domain = "Identity", ""

    def finished(self) -> Numbered:
        """What came of it: outputs state their new types."""
        for entry in self._model.graph.output:
            if entry.name in self._maps:
                entry.type.CopyFrom(onnx.TypeProto())
            elif entry.name in self.tables:
                entry.type.tensor_type.elem_type = _INT64
        del self._model.graph.value_info[:]
        found = {**self.tables, **self._columns}
        return Numbered(
            self._model,
            {name: table for name, table in found.items() if name in self._outputs},
            tuple(self._maps),
        )


def _classifier(to: _LabelWriter, node: onnx.NodeProto) -> None:
    table = _strings(node, "classlabels_strings")
    if table:
        _replace(node, "classlabels_strings", _CLASSIFIERS[node.op_type], range(len(table)))
        to.tables[node.output[0]] = table


def _move(to: _LabelWriter, node: onnx.NodeProto) -> None:
    if node.input and node.input[0] in to.tables:
        to.tables[node.output[0]] = to.tables[node.input[0]]


def _constant(to: _LabelWriter, node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.t.data_type == _STRING:
            to.stored(node.output[0], attribute.t)


def _encoder(to: _LabelWriter, node: onnx.NodeProto) -> None:
    """Keys that are strings become their numbers in the data's table, values those in a new one."""
    keys, values = _strings(node, "keys_strings"), _strings(node, "values_strings")
    known = to.tables.get(node.input[0])
    if keys and known is not None:
        numbers = {word: number for number, word in enumerate(known)}
        positions = [numbers.get(word, -1 - i) for i, word in enumerate(keys)]
        _replace(node, "keys_strings", "keys_int64s", positions)
    if values and not (keys and known is None):
        usual = _text(node, "default_string", "_Unused")
        table = _table([*values, usual])
        _replace(node, "values_strings", "values_int64s", [table.index(v) for v in values])
        _replace(node, "default_string", "default_int64", table.index(usual))
        to.tables[node.output[0]] = table


_RULES: dict[tuple[str, str], Callable[[_LabelWriter, onnx.NodeProto], None]] = {
    **{(_ML, op): _classifier for op in _CLASSIFIERS},
    **{(domain, op): _move for domain in ("", _ML) for op in _MOVES},
    ("", "Constant"): _constant,
    (_ML, "ZipMap"): lambda to, node: to.unmapped(node),
    (_ML, "LabelEncoder"): _encoder,
}
"""Domain and operator -> what says it in numbers."""


def _table(words: Iterable[str]) -> Table:
    """Each word once, in order."""
    return tuple(dict.fromkeys(words))


def _attribute(node: onnx.NodeProto, name: str) -> Sequence[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [])


def _text(node: onnx.NodeProto, name: str, usual: str) -> str:
    found = (a.s.decode(errors="replace") for a in node.attribute if a.name == name)
    return next(found, usual)


def _strings(node: onnx.NodeProto, name: str) -> Table:
    found = next((a.strings for a in node.attribute if a.name == name), ())
    return tuple(word.decode(errors="replace") for word in found)


def _replace(node: onnx.NodeProto, old: str, new: str, value: int | Iterable[int]) -> None:
    """The attribute is another one, of numbers."""
    kept = [a for a in node.attribute if a.name not in (old, new)]
    del node.attribute[:]
    node.attribute.extend(kept)
    whole = value if isinstance(value, int) else list(value)
    node.attribute.append(helper.make_attribute(new, whole))
