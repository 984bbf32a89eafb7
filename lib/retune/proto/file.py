"""Reading an ONNX file safely: one clear error for what is damaged or leaves the model's folder.

Read `read_onnx`, `initializers` and `tensor_array`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, helper, numpy_helper

from retune.core.dims import is_fixed
from retune.core.dtypes import DTYPES, INT8, NUMPY_DTYPES, UINT8, UNKNOWN, Array, DType, TensorType
from retune.core.errors import ModelError
from retune.core.keys import FileVersion, file_version
from retune.proto.scope import bodies_of, standard

OLDEST_OPSET = 7
"""Opset 7 brought numpy's broadcasting; older models mean other things by the same names."""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Integers of fewer than eight bits."""

    name: str
    dtype: DType
    """What holds them."""
    least: int
    most: int

    @property
    def bits(self) -> int:
        """Of each."""
        return (self.most - self.least).bit_length()


NARROW: dict[int, Narrow] = {
    onnx.TensorProto.INT4: Narrow("int4", INT8, -8, 7),
    onnx.TensorProto.UINT4: Narrow("uint4", UINT8, 0, 15),
    onnx.TensorProto.INT2: Narrow("int2", INT8, -2, 1),
    onnx.TensorProto.UINT2: Narrow("uint2", UINT8, 0, 3),
}
"""By ONNX's number of the element type."""

_MAPPED_BYTES = 256 << 20
"""External files of so many bytes are mapped: memory may not hold them twice. Smaller ones are
read: a file that is written anew does not change a network in memory then."""
_MAPS: WeakValueDictionary[tuple[str, FileVersion], "np.memmap[Any, Any]"] = WeakValueDictionary()
"""By path, inode, size and time of the last change: one mapping of a file serves all tensors."""

_NO_OPSET = 1 << 31
"""onnx's own registry of operators counts versions up to here."""

_LARGEST_FILE_BYTES = (2 << 30) - 1
"""What a protobuf message can hold. Larger weights lie in files beside it."""


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model in the file, external data not yet read. Raises: ModelError."""
    if not path.is_file():
        raise ModelError(
            f"{path}: no such file; expected an ONNX file, zoo:NAME or light:NAME "
            "(`retune tasks zoo:` lists the names)"
        )
    if (size := path.stat().st_size) > _LARGEST_FILE_BYTES:
        raise ModelError(
            f"{path}: {size} bytes; expected an ONNX file, which has less than 2 GiB: larger "
            "weights lie in files beside it (save_as_external_data of onnx.save writes them)"
        )
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check its rights") from None
    except DecodeError as error:
        raise ModelError(
            f"{path}: not a readable ONNX file ({error}); expected a complete protobuf message; "
            f"got {size} bytes: the file is truncated or of another format, copy "
            "or export it again"
        ) from None
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            f"{path}: no network in the file; expected a graph with nodes and an opset; got "
            f"{len(model.graph.node)} nodes: the file is empty or truncated, export it again"
        )
    check_names(model, str(path))
    return model


def check_names(model: onnx.ModelProto, where: str) -> None:
    """All names are text, and operator sets have versions. Raises: ModelError."""
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        if not 0 <= entry.version < _NO_OPSET:
            raise ModelError(
                f"{where}: operator set {entry.version} of '{entry.domain}'; expected a version "
                "that there is; the file is damaged, copy or export it again"
            )
    for name in _names(model):
        if isinstance(name, bytes):  # what protobuf gives for text that is not UTF-8
            raise ModelError(
                f"{where}: the name {name[:40]!r} is not text; expected UTF-8; the file is "
                "damaged, copy or export it again"
            )


def parse_onnx(source: str | bytes) -> onnx.ModelProto:
    """The model in the file of that name, or in these bytes. Raises: ModelError, DecodeError."""
    return (
        onnx.ModelProto.FromString(source) if isinstance(source, bytes) else read_onnx(Path(source))
    )


def _names(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Every name that somebody may look up or print."""
    for entry in model.opset_import:
        yield entry.domain
    for function in model.functions:
        yield from (function.name, function.domain, function.overload, *function.attribute)
        yield from (*function.input, *function.output)
        yield from _names_of_nodes(function.node)
        for entry in function.opset_import:
            yield entry.domain
    yield from _names_of_graph(model.graph)


def _names_of_graph(graph: onnx.GraphProto) -> Iterator[str | bytes]:
    yield graph.name
    for tensor in graph.initializer:
        yield tensor.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for entry in (*graph.input, *graph.output):
        yield entry.name
        yield from (dim.dim_param for dim in entry.type.tensor_type.shape.dim)
    yield from _names_of_nodes(graph.node)


def _names_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str | bytes]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from (*node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
        for body in bodies_of(node):
            yield from _names_of_graph(body)


def without_shared_names(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """The model without its nodes' names, if several nodes share one, which onnxruntime refuses."""
    names = [node.name for node in model.graph.node if node.name]
    if len(set(names)) == len(names):
        return None
    unnamed = onnx.ModelProto()
    unnamed.CopyFrom(model)
    for node in unnamed.graph.node:
        node.ClearField("name")
    return unnamed


def opset_of(model: onnx.ModelProto, where: str) -> int:
    """The version of the default operator set. Raises: ModelError if it is too old."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions and all(standard(node.domain) for node in model.graph.node):
        return OLDEST_OPSET  # nothing is of that set
    if not versions:
        raise ModelError(f"{where}: no version of the default operator set; export it again")
    if versions[0] < OLDEST_OPSET:
        raise ModelError(
            f"{where}: operator set {versions[0]}; expected {OLDEST_OPSET} or newer; convert the "
            "model with onnx.version_converter, or export it again"
        )
    return versions[0]


def initializers(
    graph: onnx.GraphProto, folder: Path, wanted: Callable[[str], bool]
) -> Iterator[tuple[str, Array]]:
    """Each stored weight that is wanted, by name; `folder` holds what lies outside the file.

    Raises: ModelError for unknown element types and for unsafe, short or damaged data.
    """
    for tensor in graph.initializer:
        if wanted(tensor.name):
            yield tensor.name, tensor_array(tensor, folder, f"initializer '{tensor.name}'")
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        if wanted(name):
            yield name, sparse_array(sparse, folder, f"sparse initializer '{name}'")


def initializer_names(graph: onnx.GraphProto) -> set[str]:
    """The names of all stored weights; an input of such a name is none of the network."""
    names = {tensor.name for tensor in graph.initializer}
    return names | {sparse.values.name for sparse in graph.sparse_initializer}


def tensor_array(tensor: onnx.TensorProto, folder: Path, where: str) -> Array:
    """The tensor's contents in its own shape and type; `folder` holds what lies outside the file.

    Integers of fewer than eight bits come as those of eight.
    Raises: ModelError naming `where` for data that are damaged, unsafe to open, or of unknown type.
    """
    if tensor.data_type in NARROW:
        return _narrow_array(tensor, folder, where)
    dtype = element_type(tensor.data_type, where)
    if external_data_helper.uses_external_data(tensor):
        return _external_array(tensor, folder, where, dtype.numpy)
    return _own_array(tensor, where)


def _own_array(tensor: onnx.TensorProto, where: str) -> Array:
    """What the tensor itself holds."""
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except ValueError as error:
        raise ModelError(
            f"{where}: its data does not fill the shape {list(tensor.dims)} ({error}); "
            "the file is damaged, export it again"
        ) from None


def _narrow_array(tensor: onnx.TensorProto, folder: Path, where: str) -> Array:
    """Integers of fewer than eight bits, several of which share a byte."""
    found = NARROW[tensor.data_type]
    if external_data_helper.uses_external_data(tensor):
        needed = -(-prod(tensor.dims) * found.bits // 8)
        raw = _external_array(tensor, folder, where, np.dtype(np.uint8), (needed,)).tobytes()
        name, kind, dims = tensor.name, tensor.data_type, tensor.dims
        tensor = onnx.TensorProto(name=name, data_type=kind, dims=dims, raw_data=raw)
    return _own_array(tensor, where).astype(found.dtype)


def sparse_array(sparse: onnx.SparseTensorProto, folder: Path, where: str) -> Array:
    """The tensor with all its zeros. Raises: ModelError as `tensor_array` does."""
    values = tensor_array(sparse.values, folder, where)
    indices = tensor_array(sparse.indices, folder, where)
    shape = tuple(sparse.dims)
    try:
        if indices.ndim > 1:
            indices = np.ravel_multi_index(tuple(indices.T), shape)
        if indices.size and not 0 <= indices.min() <= indices.max() < prod(shape):
            raise ValueError("an index is outside")
        dense = np.zeros(prod(shape), values.dtype)
        dense[indices] = values
    except (ValueError, IndexError, TypeError) as error:
        raise ModelError(
            f"{where}: {values.shape} values at indices {list(sparse.indices.dims)} do not fit "
            f"into the shape {list(shape)} ({error}); the file is damaged, export it again"
        ) from None
    return dense.reshape(shape)


def element_type(number: int, where: str) -> DType:
    """Our type of an ONNX element type. Raises: ModelError if there is none."""
    found = known_element_type(number)
    if found is None:
        stated = number in onnx.TensorProto.DataType.values()
        known = onnx.TensorProto.DataType.Name(number).lower() if stated else f"number {number}"
        raise ModelError(
            f"{where}: element type {known} is not supported; expected one of {', '.join(DTYPES)}; "
            "convert the model"
        )
    return found


def known_element_type(number: int) -> DType | None:
    """Our type of an ONNX element type, by the type of arrays that it has; None if none."""
    try:
        name = np.dtype(helper.tensor_dtype_to_np_dtype(number)).name
    except (KeyError, TypeError, ValueError):
        return None
    return DType(name) if name in NUMPY_DTYPES else None


def external_path(tensor: onnx.TensorProto, folder: Path, where: str) -> Path:
    """The file that holds an external tensor, links resolved: always inside the folder.

    Raises: ModelError when the location leaves the folder or names no file.
    """
    location = _external_info(tensor, where).location
    root = folder.resolve()
    path = (root / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(root):
        raise ModelError(
            f"{where}: external data '{location}' leaves the model's folder {root}; expected a "
            "file inside it; copy the data beside the model and save it with a relative location"
        )
    if not path.is_file():
        raise ModelError(f"{where}: external data file {path} is missing; copy it beside the model")
    return path


def _external_info(tensor: onnx.TensorProto, where: str) -> Any:
    try:
        return external_data_helper.ExternalDataInfo(tensor)
    except ValueError as error:
        raise ModelError(
            f"{where}: its location in an external file is malformed ({error}); the file is "
            "damaged, export it again"
        ) from None


def _external_array(
    tensor: onnx.TensorProto,
    folder: Path,
    where: str,
    dtype: np.dtype[Any],
    stored_shape: tuple[int, ...] | None = None,
) -> Array:
    """Data in a large file are views of the mapped file, read when the array is used."""
    shape = tuple(tensor.dims) if stored_shape is None else stored_shape
    path = external_path(tensor, folder, where)
    info = _external_info(tensor, where)
    offset = int(info.offset or 0)
    needed = prod(shape) * dtype.itemsize
    stored = path.stat().st_size
    length = int(info.length or needed)
    if offset < 0 or length != needed or offset + needed > stored:
        raise ModelError(
            f"{where}: expected {needed} bytes from offset {offset} of {path}; got a length of "
            f"{length} in a file of {stored} bytes; the data file is truncated or of another model"
        )
    if stored >= _MAPPED_BYTES:
        raw = np.asarray(_mapped(path)[offset : offset + needed])
    else:
        raw = np.fromfile(path, np.uint8, needed, offset=offset)
    values = raw.view(dtype.newbyteorder("<")).reshape(shape)
    return np.require(values, requirements="A")


def _mapped(path: Path) -> "np.memmap[Any, Any]":
    """The bytes of the file. Each mapping holds a file descriptor, of which there are few."""
    key = str(path), file_version(path)
    found = _MAPS.get(key)
    if found is None:
        found = _MAPS[key] = np.memmap(path, np.uint8, "r")
    return found


def stated_tensor(entry: onnx.ValueInfoProto, where: str) -> TensorType | None:
    """The type that is written there, its open dimensions UNKNOWN; None without a rank.

    Raises: ModelError naming `where` for an element type that is none of ours.
    """
    tensor = entry.type.tensor_type
    if not entry.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    dims = [d.dim_value if d.HasField("dim_value") else UNKNOWN for d in tensor.shape.dim]
    return TensorType(tuple(dims), element_type(tensor.elem_type, where))


def value_info(name: str, kind: TensorType) -> onnx.ValueInfoProto:
    """A value of that type as a file states it; UNKNOWN dimensions are left open, and what depends
    on sizes has its text as its symbol."""
    element = helper.np_dtype_to_tensor_dtype(kind.dtype.numpy)
    shape = [(None if e == UNKNOWN else e) if is_fixed(e) else str(e) for e in kind.shape]
    return helper.make_tensor_value_info(name, element, shape)


def integer_attribute(node: onnx.NodeProto, name: str, usual: int) -> int:
    """The integer that a node states under that name."""
    return next((a.i for a in node.attribute if a.name == name), usual)


def attribute_value(attribute: onnx.AttributeProto, folder: Path, where: str) -> Any:
    """An attribute as a plain value: text decoded, tensors as arrays, subgraphs as protos."""
    value = helper.get_attribute_value(attribute)
    inside = f"{where}, attribute '{attribute.name}'"
    match value:
        case bytes():
            return value.decode(errors="replace")
        case onnx.TensorProto():
            return tensor_array(value, folder, inside)
        case onnx.SparseTensorProto():
            return sparse_array(value, folder, inside)
        case list():
            return [
                item.decode(errors="replace") if isinstance(item, bytes) else item for item in value
            ]
        case _:
            return value


def external_files(path: Path) -> tuple[Path, ...]:
    """The files beside the model that hold its weights, each once.

    Raises: ModelError for a file that is not a model, or a location outside its folder.
    """
    found = {
        external_path(tensor, path.parent, f"{path}: tensor '{tensor.name}'"): None
        for tensor in tensors_of(read_onnx(path))
        if external_data_helper.uses_external_data(tensor)
    }
    return tuple(found)


def tensors_of(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that the model holds, those of its functions too."""
    yield from _tensors(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def element_types(model: onnx.ModelProto) -> frozenset[DType]:
    """The element types of the model's tensors and inputs, and those that its nodes name."""
    numbers = {tensor.data_type for tensor in tensors_of(model)}
    numbers |= {entry.type.tensor_type.elem_type for entry in model.graph.input}
    nodes = [*model.graph.node, *(node for f in model.functions for node in f.node)]
    while nodes:
        node = nodes.pop()
        numbers |= {a.i for a in node.attribute if a.name in ("to", "dtype")}
        nodes += (inner for body in bodies_of(node) for inner in body.node)
    return frozenset(found for number in numbers if (found := known_element_type(number)))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Every tensor that the graph stores, wherever it stands."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in bodies_of(node):
            yield from _tensors(inner)
