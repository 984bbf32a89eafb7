"""Other programs that run the same network, behind one callable form: oracles and rivals.

Read Peer. The only importer of onnxruntime and openvino; both are optional, and imported when a
peer is opened.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np

from retune.core.dtypes import FLOAT32, FLOAT64, NUMPY_DTYPES, DType, TensorType
from retune.core.errors import InputError, ModelError
from retune.core.names import how_to_install
from retune.device.opencl.host import available_cores, read_flags
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.proto.file import NARROW, parse_onnx, read_onnx, without_shared_names
from retune.proto.labels import with_numbers

Predict = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]
"""Outputs by name for inputs by name."""

NUMPY = "numpy"
"""Name of the peer that is the numpy meaning of the ops."""

EXACT_PRODUCTS = "session.x64quantprecision"
"""onnxruntime's option: without it, sums of two products of uint8 and int8 are cut off at 16 bits
where the processor has AVX2 but no VNNI. It takes effect in the optimised form alone."""
_INEXACT_PRODUCTS = "DynamicQuantizeLSTM"
"""The operator whose products that option leaves as they are: three in a row, of a speaker's voice,
are 0.23 of the range off on AVX2, and right where their weights are halved."""
_CUTS_OFF, _EXACT = frozenset({"avx2"}), frozenset({"avx_vnni", "avx512_vnni"})
"""Flags of processors that add two products in 16 bits, and of those among them that need not."""

Shapes = Mapping[str, tuple[int, ...]]
_CHECK = "; check the model file"


def _element_types() -> Mapping[str, DType]:
    """ONNX's names of the element types that retune knows."""
    return {"float": FLOAT32, "double": FLOAT64, **{dtype: dtype for dtype in NUMPY_DTYPES}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A network in another program; calling it gives every output by name."""

    name: str
    version: str
    inputs: Mapping[str, TensorType]
    outputs: tuple[str, ...]
    predict: Predict
    note: str = ""
    """What a comparison with it leaves open, as a sentence."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        return self.predict(inputs)


def open_peer(
    name: str,
    model: Path,
    *,
    shapes: Shapes | None = None,
    threads: int | None = None,
    optimised: bool = True,
    exact: bool = False,
    own_precision: bool = False,
) -> Peer:
    """The ONNX file at `model` in the peer of that name, on `threads` cores (default: all).

    onnxruntime can run it without its `optimised` form, node by node, and with integer products
    that are `exact`; OpenVINO in its `own_precision`, which is bfloat16 on some processors.

    Raises: InputError if there is no such peer or it is not installed. ModelError if the peer
    refuses the model.
    """
    if name not in PEERS:
        raise InputError(f"peer {name!r} is not known; choose one of {', '.join(PEERS)}")
    if not model.is_file():
        raise InputError(f"{model}: expected an ONNX file; got nothing; check the path")
    threads = threads or available_cores()
    if name == "onnxruntime":
        return _open_onnxruntime(
            model, dict(shapes or {}), threads, optimised=optimised, exact=exact
        )
    if own_precision and name == "openvino":
        return _open_openvino(model, dict(shapes or {}), threads, own_precision=True)
    return PEERS[name](model, dict(shapes or {}), threads)


def open_reference(
    model: Path, graph: Callable[[], Graph], *, shapes: Shapes | None = None
) -> Peer:
    """The oracle of verification: onnxruntime; the ops' numpy meaning if it is not installed,
    cannot run the file, or is known to be wrong. The peer's note says so then."""
    if not has_onnxruntime():
        return _instead_of_onnxruntime(graph(), "is not installed")
    try:
        opened = open_peer("onnxruntime", model, shapes=shapes, exact=True)
    except ModelError as error:
        made = graph()  # what cannot be imported either is a bad file
        reason = str(error).removeprefix(f"{model}: onnxruntime ").removesuffix(_CHECK)
        return _instead_of_onnxruntime(made, reason)
    if unoptimised_is_exact(read_flags()) or not _has_inexact_products(model):
        return opened
    return _instead_of_onnxruntime(graph(), f"cuts off sums of {_INEXACT_PRODUCTS} here")


def _has_inexact_products(model: Path) -> bool:
    return any(node.op_type == _INEXACT_PRODUCTS for node in read_onnx(model).graph.node)


def _instead_of_onnxruntime(graph: Graph, reason: str) -> Peer:
    note = (
        f"onnxruntime {reason}: the outputs were compared with retune's own numpy meaning of the "
        "file, which does not find errors of the import"
    )
    return replace(numpy_peer(graph), note=note)


def numpy_peer(graph: Graph) -> Peer:
    """The graph by the numpy meaning of its ops: slow, and always there."""
    return Peer(
        name=NUMPY,
        version=np.__version__,
        inputs={name: graph.types[name] for name in graph.inputs},
        outputs=graph.outputs,
        predict=lambda inputs: run_graph(graph, inputs),
    )


def has_onnxruntime() -> bool:
    """Whether the oracle is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


def unoptimised_is_exact(flags: frozenset[str]) -> bool:
    """Whether onnxruntime's unoptimised form makes integer products that are exact on a processor
    with these flags (`EXACT_PRODUCTS`)."""
    return not flags & _CUTS_OFF or bool(flags & _EXACT)


def oracle_version() -> str:
    """Name and version of what `open_reference` opens here; nothing is imported for it."""
    if has_onnxruntime():
        return f"onnxruntime {_version('onnxruntime')}"
    return f"numpy {np.__version__}"


def peer_versions(names: Iterable[str] | None = None) -> dict[str, str]:
    """Name -> version of those peers (default: all) that are installed; none is imported."""
    wanted = PEERS if names is None else names
    return {name: _version(name) for name in wanted if importlib.util.find_spec(name) is not None}


def _version(module: str) -> str:
    """What the installer says; a module may be installed by a package of another name."""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        packages = _packages().get(module, ())
        return " ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)


@cache
def _packages() -> Mapping[str, Sequence[str]]:
    """Module -> the packages that brought it; looking takes a third of a second."""
    return importlib.metadata.packages_distributions()


def predict_with_onnxruntime(model: bytes) -> Predict:
    """A serialised model that holds all of its weights, run on what it takes of the inputs.

    Raises: ModelError if onnxruntime refuses it.
    """
    session = _session(_import("onnxruntime"), model, available_cores(), exact=True)
    taken = [str(entry.name) for entry in session.get_inputs()]
    outputs = tuple(str(entry.name) for entry in session.get_outputs())

    def predict(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        results = session.run(None, {name: inputs[name] for name in taken})
        return dict(zip(outputs, results, strict=True))

    return predict


def _session(
    runtime: ModuleType,
    model: Path | bytes,
    threads: int,
    *,
    optimised: bool = True,
    exact: bool = False,
) -> Any:
    options = runtime.SessionOptions()
    if exact:
        options.add_session_config_entry(EXACT_PRODUCTS, "1")
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what it refuses is an exception, too
    if isinstance(model, Path):
        folder = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(folder, str(model.resolve().parent))

    def opened(source: str | bytes) -> Any:
        made = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        if all(_is_of_numbers(str(entry.type)) for entry in made.get_outputs()):
            return made
        numbers = with_numbers(parse_onnx(source)).model.SerializeToString()
        return runtime.InferenceSession(numbers, options, providers=["CPUExecutionProvider"])

    if isinstance(model, bytes):
        try:
            return opened(model)
        except Exception as error:  # its exceptions share no other base
            raise _refused("onnxruntime", Path("a part of the model"), error) from error
    try:
        return opened(str(model))
    except Exception as error:
        unnamed = without_shared_names(read_onnx(model))
        if unnamed is None:
            raise _refused("onnxruntime", model, error) from error
        try:
            return opened(unnamed.SerializeToString())
        except Exception as again:
            raise _refused("onnxruntime", model, again) from again


def _is_of_numbers(kind: str) -> bool:
    """Whether values of that type, in onnxruntime's words, are arrays of numbers."""
    return kind.startswith("tensor(") and kind != "tensor(string)"


def _open_onnxruntime(
    model: Path, shapes: Shapes, threads: int, *, optimised: bool = True, exact: bool = False
) -> Peer:
    runtime = _import("onnxruntime")
    session = _session(runtime, model, threads, optimised=optimised, exact=exact)
    ends = {str(entry.type) for entry in (*session.get_inputs(), *session.get_outputs())}
    if ends & {f"tensor({narrow.name})" for narrow in NARROW.values()}:
        error = ValueError("it takes and returns no arrays of fewer than eight bits")
        raise _refused("onnxruntime", model, error)
    outputs = tuple(str(entry.name) for entry in session.get_outputs())

    def predict(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        try:
            return dict(zip(outputs, session.run(None, dict(inputs)), strict=True))
        except Exception as error:  # its exceptions share no other base
            raise InputError(
                f"{model}: onnxruntime refuses the inputs: {_first_line(error)}; give inputs that "
                "the network takes with --samples data.npz"
            ) from error

    return Peer(
        name="onnxruntime",
        version=str(runtime.__version__),
        inputs=_input_types(
            model,
            {
                str(entry.name): (
                    str(entry.type).removeprefix("tensor(").removesuffix(")"),
                    cast("Sequence[object]", entry.shape),
                )
                for entry in session.get_inputs()
            },
            shapes,
        ),
        outputs=outputs,
        predict=predict,
    )


def _open_openvino(
    model: Path, shapes: Shapes, threads: int, *, own_precision: bool = False
) -> Peer:
    runtime = _import("openvino")
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
    if not own_precision:  # which on some processors is bfloat16: not the same network
        config["INFERENCE_PRECISION_HINT"] = "f32"
    try:
        core = runtime.Core()
        read = core.read_model(str(model))
        if shapes:
            read.reshape({name: list(shape) for name, shape in shapes.items()})
        compiled = core.compile_model(read, "CPU", config)
    except RuntimeError as error:
        raise _refused("openvino", model, error) from error
    request = compiled.create_infer_request()
    outputs = tuple(str(port.get_any_name()) for port in compiled.outputs)

    def predict(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = request.infer(dict(inputs))
        return {name: np.array(results[i]) for i, name in enumerate(outputs)}

    return Peer(
        name="openvino",
        version=str(runtime.__version__),
        inputs=_input_types(
            model,
            {str(port.get_any_name()): _openvino_type(port) for port in compiled.inputs},
            shapes,
        ),
        outputs=outputs,
        predict=predict,
    )


PEERS: dict[str, Callable[[Path, Shapes, int], Peer]] = {
    "onnxruntime": _open_onnxruntime,
    "openvino": _open_openvino,
}
"""Name on the command line -> how to open a model in it."""


def _openvino_type(port: Any) -> tuple[str, Sequence[object]]:
    """ONNX's name of the element type, and the extents that are known among the dimensions."""
    dims = [dim.get_length() if dim.is_static else str(dim) for dim in port.get_partial_shape()]
    kind = np.dtype(port.get_element_type().to_dtype()).name
    return next((key for key, dtype in _element_types().items() if dtype == kind), kind), dims


def _input_types(
    model: Path, declared: Mapping[str, tuple[str, Sequence[object]]], shapes: Shapes
) -> dict[str, TensorType]:
    """The type of each input, declared by ONNX's element type and dimensions.

    Raises: InputError if `shapes` names no input. What `_input_type` raises.
    """
    strays = sorted(set(shapes) - set(declared))
    if strays:
        raise InputError(
            f"{model}: expected the input {', '.join(map(repr, strays))}; its inputs are "
            f"{', '.join(declared) or 'none'}: it is another network, or was exported anew"
        )
    return {name: _input_type(name, *kind, shapes) for name, kind in declared.items()}


def _input_type(name: str, kind: str, dims: Sequence[object], shapes: Shapes) -> TensorType:
    """The input's type, with unknown dimensions taken from `shapes`. Raises: InputError."""
    if kind not in (known_types := _element_types()):
        known = ", ".join(known_types)
        raise ModelError(f"input {name}: expected an element type among {known}; got {kind}")
    given = shapes.get(name, tuple(dims))
    if len(given) != len(dims) or not all(isinstance(dim, int) and dim >= 0 for dim in given):
        raise InputError(
            f"input {name}: expected {len(dims)} known extents; got {list(given)}; bind them with "
            f"--shape {name}=1,3,224,224"
        )
    return TensorType(cast("tuple[int, ...]", tuple(given)), known_types[kind])


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        how = how_to_install("peers") if name == "onnxruntime" else f"type: pip install {name}"
        raise InputError(f"{name} is not installed here ({error}); {how}") from error


def _refused(peer: str, model: Path, error: Exception) -> ModelError:
    first_line = _first_line(error)
    return ModelError(f"{model}: {peer} cannot load it: {first_line}{_CHECK}")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
