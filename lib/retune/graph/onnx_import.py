"""ONNX models to graphs.

`load_model` and `import_model` are the names to read first. What the ops mean is in
`onnx_ops`; reading files is in `onnx_file`. What depends only on constants and shapes is folded
while importing, so shape arithmetic never becomes a node.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import onnx

from retune.core.dtypes import DType, TensorType
from retune.core.errors import ModelError
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.onnx_file import (
    attribute_value,
    element_type,
    initializers,
    opset_of,
    read_onnx,
)
from retune.graph.onnx_ops import Emitter, OnnxNode, handler_of

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
    protos = _sorted_nodes(model.graph, name)
    _check_supported(protos, opset, name)
    build = GraphBuilder(name, fold=True)
    for weight, array in initializers(model, folder):
        build.constant(weight, array)
    for value, entry in _input_types(model.graph, dict(shapes or {}), build.constants).items():
        build.input(value, entry)
    for proto in protos:
        _import_node(proto, opset, build, folder)
    return build.finish(_outputs(model.graph, build)).verify()


def _outputs(graph: onnx.GraphProto, build: GraphBuilder) -> list[str]:
    """The outputs' names: each once, each made by a node or an initializer. Raises: ModelError."""
    outputs = [entry.name for entry in graph.output]
    missing = [value for value in outputs if value not in build.types]
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
    return outputs


def _import_node(proto: onnx.NodeProto, opset: int, build: GraphBuilder, folder: Path) -> None:
    where = f"{build.name}: node '{_label(proto)}' ({proto.op_type})"
    node = OnnxNode(
        op_type=proto.op_type,
        name=_label(proto),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        attrs={a.name: attribute_value(a, folder, where) for a in proto.attribute},
        opset=opset,
    )
    handler = handler_of(node.op_type, opset)
    assert handler is not None
    try:
        handler(node, Emitter(build, node))
    except ModelError as error:
        raise ModelError(f"{where}: {error}") from error
    except (IndexError, ValueError, KeyError) as error:
        raise ModelError(
            f"{where}: malformed ({error}); expected inputs and attributes as ONNX opset {opset} "
            f"defines them; got inputs {list(node.inputs)} and attributes {sorted(node.attrs)}; "
            "check the model with onnx.checker"
        ) from error


def _label(proto: onnx.NodeProto) -> str:
    return proto.name or next((output for output in proto.output if output), proto.op_type)


def _sorted_nodes(graph: onnx.GraphProto, where: str) -> list[onnx.NodeProto]:
    """The nodes, producers first, in the file's order where that is possible."""
    makers: dict[str, int] = {}
    outer = {entry.name for entry in (*graph.input, *graph.initializer)}
    for position, proto in enumerate(graph.node):
        for value in filter(None, proto.output):
            if value in makers or value in outer:
                raise ModelError(
                    f"{where}: value '{value}' is made more than once; expected each value to "
                    "have one producer; rename one of them"
                )
            makers[value] = position
    nodes = list(graph.node)
    order: list[int] = []
    state: dict[int, int] = {}  # 1: being visited, 2: done
    for start in range(len(nodes)):
        stack = [start]
        while stack:
            position = stack[-1]
            if state.get(position, 0) == 2:
                stack.pop()
                continue
            state[position] = 1
            waiting = _unmet(nodes[position], makers, outer, state, where)
            if waiting is None:
                state[position] = 2
                order.append(position)
                stack.pop()
            elif state.get(waiting) == 1:
                raise _cycle([nodes[p] for p in stack[stack.index(waiting) :]], where)
            else:
                stack.append(waiting)
    return [nodes[position] for position in order]


def _unmet(
    proto: onnx.NodeProto,
    makers: Mapping[str, int],
    outer: set[str],
    state: Mapping[int, int],
    where: str,
) -> int | None:
    for value in filter(None, proto.input):
        if value in outer:
            continue
        if value not in makers:
            raise ModelError(
                f"{where}: node '{_label(proto)}' ({proto.op_type}) reads '{value}', which is not "
                "an input, an initializer or another node's output; the file is damaged or cut "
                "out of a larger network, export it again"
            )
        if state.get(makers[value], 0) != 2:
            return makers[value]
    return None


def _cycle(protos: Iterable[onnx.NodeProto], where: str) -> ModelError:
    names = [f"'{_label(proto)}'" for proto in protos]
    return ModelError(
        f"{where}: the nodes {' -> '.join([*names, names[0]])} form a cycle; expected an acyclic "
        "network; unroll the loop when exporting"
    )


def _check_supported(protos: Iterable[onnx.NodeProto], opset: int, where: str) -> None:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for proto in protos:
        standard = proto.domain in ("", "ai.onnx")
        if standard and handler_of(proto.op_type, opset) is not None:
            continue
        op_type = proto.op_type if standard else f"{proto.domain}::{proto.op_type}"
        counts[op_type] += 1
        first.setdefault(op_type, _label(proto))
    if not counts:
        return
    rows = [f"  {op}: {n} x, first '{first[op]}'" for op, n in sorted(counts.items())]
    raise ModelError(
        f"{where}: {len(counts)} ops of opset {opset} are not supported "
        f"({counts.total()} nodes); replace them in the model, or cut it before them:\n"
        + "\n".join(rows)
    )


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
