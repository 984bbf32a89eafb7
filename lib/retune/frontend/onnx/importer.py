"""ONNX models to graphs.

`load_file` and `import_model` are the names to read first. What the ops mean is in `ops`, the
ways from a node to the graph are in `body`; reading files is in `proto.file`. What depends only
on constants and shapes is folded while importing, so shape arithmetic never becomes a node.
"""

from collections.abc import Collection
from pathlib import Path

import onnx

from retune.core.dims import apart, note
from retune.core.errors import ModelError
from retune.frontend.onnx.body import BodyImporter
from retune.frontend.onnx.functions import functions_of
from retune.frontend.onnx.inputs import Shapes, check_outputs, check_values, input_types
from retune.frontend.onnx.order import needed_nodes, read_of, sorted_nodes
from retune.frontend.quantized.blocked import in_blocks
from retune.frontend.quantized.narrow import widened
from retune.frontend.quantized.pairs import take_pairs
from retune.frontend.quantized.qoperator import in_pairs
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.quantize.given import realize_given
from retune.proto.file import initializer_names, initializers, opset_of, read_onnx
from retune.proto.labels import with_numbers
from retune.proto.scope import NameScope, opsets_of

_MOST_TRIES = 16
"""Imports of a network whose nodes turn out to depend on counts, one after the other."""


def load_file(
    path: Path,
    shapes: Shapes | None = None,
    values: Shapes | None = None,
    *,
    counts: bool = False,
) -> Graph:
    """The network in an ONNX file as a verified graph, see `import_model`. Raises: ModelError."""
    model = read_onnx(path)
    return import_model(
        model, shapes, values=values, folder=path.parent, name=path.stem, counts=counts
    )


def import_model(
    model: onnx.ModelProto,
    shapes: Shapes | None = None,
    *,
    values: Shapes | None = None,
    folder: Path = Path(),
    name: str = "",
    counts: bool = False,
) -> Graph:
    """The ONNX model as a verified graph; external weights are read from inside `folder`.

    `shapes` may have Dims, and `values` are what the elements of inputs are, numbers or Dims: where
    slices start, how large an image becomes, how many elements are the largest. With `counts`,
    extents that depend on data are sizes as well, as far as they are bounded (`onnx.counts`);
    otherwise whatever reads such a value runs on the host.

    A model that is quantized already, with pairs of QuantizeLinear and DequantizeLinear or with
    operators on integers, computes with its integers; weights in blocks stay packed. Raises:
    ModelError that names the node, what was expected, what was found and the remedy.
    """
    model = in_blocks(widened(with_numbers(model).model), folder)
    pairs = take_pairs(in_pairs(model, folder), folder)
    if pairs is not None:
        floats = _import(pairs.model, shapes, values or {}, folder, name, counts)
        lost = pairs.params.keys() - floats.types.keys()
        made = None if lost else realize_given(floats, pairs.given)
        if made is not None:
            return made
    return _import(model, shapes, values or {}, folder, name, counts)


def _import(
    model: onnx.ModelProto,
    shapes: Shapes | None,
    values: Shapes,
    folder: Path,
    name: str,
    counts: bool,
) -> Graph:
    """The model as it stands; nodes that turn out to depend on a count run on the host."""
    on_host: set[str] = set()
    for _ in range(_MOST_TRIES if counts else 0):
        with apart() as assumed:
            graph, undecided = _import_once(model, shapes, values, folder, name, on_host)
        if undecided <= on_host:
            note(assumed.conditions)
            return graph
        on_host |= undecided
    return _import_once(model, shapes, values, folder, name, None)[0]


def _import_once(
    model: onnx.ModelProto,
    shapes: Shapes | None,
    values: Shapes,
    folder: Path,
    name: str,
    on_host: Collection[str] | None,
) -> tuple[Graph, set[str]]:
    """The model, and the names of nodes whose import depends on a count.

    Nodes `on_host` run there; None: no extent is a count.
    """
    name = name or model.graph.name or "network"
    opset = opset_of(model, name)
    nodes = needed_nodes(model.graph, sorted_nodes(model.graph, name))
    made = {value for node in nodes for value in node.output}
    build = GraphBuilder(name, fold=True, reserved=made)
    scope = NameScope(opsets=opsets_of(model))
    stored = initializer_names(model.graph)
    types = input_types(model.graph, shapes or {}, stored)
    check_values(types, values)
    for value, entry in types.items():
        scope.names[value] = build.input(value, entry, values.get(value, ()))
    check_outputs(model.graph)
    read = read_of(model.graph, nodes)
    for weight, array in initializers(model.graph, folder, read.__contains__):
        scope.names[weight] = build.constant(weight, array)
    functions = functions_of(model)
    importer = BodyImporter(
        build, functions, scope, folder, counts=on_host is not None, on_host=on_host or ()
    )
    importer.run(nodes, scope)
    importer.refuse(opset)
    outputs = _outputs(model.graph, build, importer, scope)
    importer.host.finish(model.graph.output)
    return build.finish(outputs).verify(), importer.undecided


def _outputs(
    graph: onnx.GraphProto, build: GraphBuilder, importer: BodyImporter, scope: NameScope
) -> list[str]:
    """The outputs' names, each once; those of inputs hand them through. Raises: ModelError."""
    outputs = list(dict.fromkeys(entry.name for entry in graph.output))
    known = build.types.keys() | importer.host.kept_values
    values = {name: scope.value(name) for name in outputs}
    missing = [name for name, value in values.items() if value is None]
    if missing or not outputs:
        raise ModelError(
            f"{build.name}: nothing computes the output '{', '.join(missing) or '(none)'}'; the "
            "file is incomplete, export it again"
        )
    for name, value in values.items():
        if value not in known:
            raise ModelError(
                f"{build.name}: output '{name}' is a sequence or an optional; expected a tensor; "
                "put SequenceAt or ConcatFromSequence before it"
            )
        if value != name and name not in build.types:
            importer.name_output(name, value)
    return outputs
