"""ONNX models to graphs.

`load_file` and `import_model` are the names to read first. What the ops mean is in `onnx_ops`, the
ways from a node to the graph are in `onnx_body`; reading files is in `onnx_file`. What depends only
on constants and shapes is folded while importing, so shape arithmetic never becomes a node.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import onnx

from retune.core.dtypes import DType, TensorType
from retune.core.errors import ModelError
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.onnx_body import BodyImporter
from retune.graph.onnx_file import element_type, initializers, opset_of, read_onnx
from retune.graph.onnx_functions import functions_of
from retune.graph.onnx_order import sorted_nodes
from retune.graph.onnx_scope import Scope, opsets_of

Shapes = Mapping[str, Sequence[int]]
"""Input name -> shape, for the dimensions that a model leaves open."""


def load_file(path: Path, shapes: Shapes | None = None) -> Graph:
    """The network in an ONNX file as a verified graph. Raises: ModelError."""
    return import_model(read_onnx(path), shapes, folder=path.parent, name=path.stem)


def import_model(
    model: onnx.ModelProto,
    shapes: Shapes | None = None,
    *,
    folder: Path = Path(),
    name: str = "",
) -> Graph:
    """The ONNX model as a verified graph; external weights are read from inside `folder`.

    Raises: ModelError that names the place, what was expected, what was found and the remedy.
    """
    name = name or model.graph.name or "network"
    opset = opset_of(model, name)
    nodes = sorted_nodes(model.graph, name)
    made = {value for node in nodes for value in node.output}
    build = GraphBuilder(name, fold=True, reserved=made)
    scope = Scope(opsets=opsets_of(model))
    for weight, array in initializers(model, folder):
        scope.names[weight] = build.constant(weight, array)
    for value, entry in _input_types(model.graph, dict(shapes or {}), build.constants).items():
        scope.names[value] = build.input(value, entry)
    importer = BodyImporter(build, functions_of(model), scope, folder)
    importer.run(nodes, scope)
    importer.refuse(opset)
    outputs = _outputs(model.graph, build, importer, scope)
    importer.host.finish(model.graph.output)
    return build.finish(outputs).verify()


def _outputs(
    graph: onnx.GraphProto, build: GraphBuilder, importer: BodyImporter, scope: Scope
) -> list[str]:
    """The outputs' names, each now a value of its own. Raises: ModelError."""
    outputs = [entry.name for entry in graph.output]
    known = build.types.keys() | importer.host.kept_values
    values = {name: scope.value(name) for name in outputs}
    missing = [name for name, value in values.items() if value is None]
    if missing or not outputs:
        raise ModelError(
            f"{build.name}: nothing computes the output '{', '.join(missing) or '(none)'}'; the "
            "file is incomplete, export it again"
        )
    inputs = {entry.name for entry in graph.input} - build.constants.keys()
    strays = [v for i, v in enumerate(outputs) if v in inputs or v in outputs[:i]]
    if strays:
        kind = "an input too" if strays[0] in inputs else "listed twice"
        raise ModelError(
            f"{build.name}: output '{strays[0]}' is {kind}; expected each output to be a value of "
            "its own; put an Identity node before it"
        )
    for name, value in values.items():
        if value not in known:
            raise ModelError(
                f"{build.name}: output '{name}' is a sequence or an optional; expected a tensor; "
                "put SequenceAt or ConcatFromSequence before it"
            )
        if value != name:
            importer.name_output(name, value)
    return outputs


def _input_types(
    graph: onnx.GraphProto, shapes: dict[str, Sequence[int]], constants: Mapping[str, object]
) -> dict[str, TensorType]:
    """The type of each input that is not an initializer, open dimensions bound by `shapes`."""
    entries = [entry for entry in graph.input if entry.name not in constants]
    unknown = sorted(set(shapes) - {entry.name for entry in entries})
    if unknown:
        raise ModelError(
            f"a shape is given for '{', '.join(unknown)}', which is no input of the network; "
            f"its inputs are {', '.join(entry.name for entry in entries) or 'none'}"
        )
    bound: dict[str, int] = {}
    for entry in entries:
        if entry.name in shapes:
            _bind(entry, tuple(shapes[entry.name]), bound)
    types: dict[str, TensorType] = {}
    for entry in entries:
        if not entry.type.HasField("tensor_type"):
            raise ModelError(f"input '{entry.name}': expected a tensor; sequences and maps are not")
        dtype = element_type(entry.type.tensor_type.elem_type, f"input '{entry.name}'")
        given = shapes.get(entry.name)
        shape = tuple(given) if given is not None else _fixed_shape(entry, bound)
        types[entry.name] = TensorType(shape, cast("DType", dtype))
    return types


def _dims(entry: onnx.ValueInfoProto) -> list[int | str]:
    """Each dimension as its extent, or as its symbol ('?' without one, or if negative)."""
    return [
        dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param or "?"
        for dim in entry.type.tensor_type.shape.dim
    ]


def _bind(entry: onnx.ValueInfoProto, given: tuple[int, ...], bound: dict[str, int]) -> None:
    """Adds what the given shape says of the input's symbols. Raises: ModelError."""
    dims: list[int | str] = _dims(entry)
    if not entry.type.tensor_type.HasField("shape"):
        dims = ["?"] * len(given)
    fits = len(dims) == len(given) and min(given, default=1) > 0
    for dim, extent in zip(dims, given, strict=False):
        if isinstance(dim, int):
            fits = fits and dim == extent
        elif dim != "?":
            fits = fits and bound.setdefault(dim, extent) == extent
    if not fits:
        wanted = ",".join(map(str, dims))
        said = ", ".join(f"{dim} is {bound[dim]}" for dim in dims if dim in bound)
        raise ModelError(
            f"input '{entry.name}': the shape given is {','.join(map(str, given))}; the model "
            f"fixes {wanted}{f', where {said}' if said else ''}; give positive extents that "
            "agree with it"
        )


def _fixed_shape(entry: onnx.ValueInfoProto, bound: Mapping[str, int]) -> tuple[int, ...]:
    dims = _dims(entry)
    shape = [dim if isinstance(dim, int) else bound.get(dim, dim) for dim in dims]
    open_dims = [dim for dim in shape if isinstance(dim, str)]
    if open_dims or not entry.type.tensor_type.HasField("shape"):
        stated = ",".join(map(str, dims)) or "no shape"
        example = ",".join("1" if isinstance(d, str) else str(d) for d in shape) or "1,3,224,224"
        raise ModelError(
            f"input '{entry.name}' has the open dimension {', '.join(open_dims) or '?'} "
            f"(its shape is {stated}); expected extents; bind them with "
            f"--shape {entry.name}={example}"
        )
    return tuple(int(dim) for dim in shape)
