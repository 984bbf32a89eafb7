"""Reading an ONNX file safely: one clear error for what is damaged or leaves the model's folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import external_data_helper, helper, numpy_helper

from retune.core.dtypes import DTYPES, itemsize
from retune.core.errors import ModelError
from retune.graph.ops import Array

OLDEST_OPSET = 7
"""Opset 7 brought numpy's broadcasting; older models mean other things by the same names."""


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model in the file, external data not yet read. Raises: ModelError."""
    if not path.is_file():
        raise ModelError(
            f"{path}: no such file; expected an ONNX file, zoo:NAME or light:NAME "
            "(`retune tasks zoo:` lists the names)"
        )
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check its rights") from None
    except DecodeError as error:
        raise ModelError(
            f"{path}: not a readable ONNX file ({error}); expected a complete protobuf message; "
            f"got {path.stat().st_size} bytes: the file is truncated or of another format, copy "
            "or export it again"
        ) from None
    if not model.graph.node or not model.opset_import:
        raise ModelError(
            f"{path}: no network in the file; expected a graph with nodes and an opset; got "
            f"{len(model.graph.node)} nodes: the file is empty or truncated, export it again"
        )
    return model


def opset_of(model: onnx.ModelProto, where: str) -> int:
    """The version of the default operator set. Raises: ModelError if it is too old."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if not versions:
        raise ModelError(f"{where}: no version of the default operator set; export it again")
    if versions[0] < OLDEST_OPSET:
        raise ModelError(
            f"{where}: operator set {versions[0]}; expected {OLDEST_OPSET} or newer; convert the "
            "model with onnx.version_converter, or export it again"
        )
    return versions[0]


def initializers(model: onnx.ModelProto, folder: Path) -> Iterator[tuple[str, Array]]:
    """Each stored weight by name; external ones are read from inside the folder.

    Raises: ModelError for sparse weights, unknown element types and unsafe or short files.
    """
    if model.graph.sparse_initializer:
        name = model.graph.sparse_initializer[0].values.name
        raise ModelError(f"initializer '{name}' is sparse; expected dense tensors")
    for tensor in model.graph.initializer:
        yield tensor.name, tensor_array(tensor, folder, f"initializer '{tensor.name}'")


def tensor_array(tensor: onnx.TensorProto, folder: Path, where: str) -> Array:
    """The tensor's contents in its own shape and type; `folder` holds what lies outside the file.

    Raises: ModelError naming `where` for data that are damaged, unsafe to open, or of unknown type.
    """
    dtype = element_type(tensor.data_type, where)
    if external_data_helper.uses_external_data(tensor):
        return _external_array(tensor, folder, where, dtype)
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except ValueError as error:
        raise ModelError(
            f"{where}: its data does not fill the shape {list(tensor.dims)} ({error}); "
            "the file is damaged, export it again"
        ) from None


def element_type(number: int, where: str) -> str:
    """Our name of an ONNX element type. Raises: ModelError if there is none."""
    try:
        name = str(np.dtype(helper.tensor_dtype_to_np_dtype(number)))
    except (KeyError, TypeError, ValueError):
        name = f"number {number}"
    if name not in DTYPES:
        raise ModelError(
            f"{where}: element type {name} is not supported; expected one of {', '.join(DTYPES)}; "
            "convert the model"
        )
    return name


def external_path(tensor: onnx.TensorProto, folder: Path, where: str) -> Path:
    """The file that holds an external tensor, links resolved: always inside the folder.

    Raises: ModelError when the location leaves the folder or names no file.
    """
    location = external_data_helper.ExternalDataInfo(tensor).location
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


def _external_array(tensor: onnx.TensorProto, folder: Path, where: str, dtype: str) -> Array:
    path = external_path(tensor, folder, where)
    info = external_data_helper.ExternalDataInfo(tensor)
    offset = int(info.offset or 0)
    needed = int(np.prod(tensor.dims, dtype=np.int64)) * itemsize(dtype)
    stored = path.stat().st_size
    length = int(info.length or needed)
    if offset < 0 or length != needed or offset + needed > stored:
        raise ModelError(
            f"{where}: expected {needed} bytes from offset {offset} of {path}; got a length of "
            f"{length} in a file of {stored} bytes; the data file is truncated or of another model"
        )
    with path.open("rb") as stream:
        stream.seek(offset)
        data = stream.read(needed)
    return np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(tuple(tensor.dims))


def attribute_value(attribute: onnx.AttributeProto, folder: Path, where: str) -> Any:
    """An attribute as a plain value: text decoded, tensors as arrays, subgraphs as protos."""
    value = helper.get_attribute_value(attribute)
    match value:
        case bytes():
            return value.decode(errors="replace")
        case onnx.TensorProto():
            return tensor_array(value, folder, f"{where}, attribute '{attribute.name}'")
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
    model = read_onnx(path)
    found = {
        external_path(tensor, path.parent, f"{path}: initializer '{tensor.name}'"): None
        for tensor in model.graph.initializer
        if external_data_helper.uses_external_data(tensor)
    }
    return tuple(found)
