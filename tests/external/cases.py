"""ONNX's own backend suite: its node tests for every op that is imported, as cases to run."""

import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from retune.core.replacing import replacing
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops import NotConstant, handler_of
from retune.graph.graph import Graph
from retune.proto.file import NARROW, OLDEST_OPSET
from tests.support.shared import SHARED

Execute = Callable[[Graph, Mapping[str, np.ndarray]], dict[str, np.ndarray]]
"""Something that runs a graph: by its numpy meaning, or on a device."""
DOMAINS = {"", "ai.onnx"}
BYTES = {narrow.name: narrow.dtype.numpy for narrow in NARROW.values()}
NARROW_RTOL = {"float16": 2e-3, "bfloat16": 2.0**-6}
"""Two units in the last place, of 11 and 8 bits: rounding after each step is not rounding once."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs and outputs, and how far these may be from it."""

    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float


def _opset(model: onnx.ModelProto) -> int:
    return next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))


def _imported(model: onnx.ModelProto) -> bool:
    """True if the model is written in operator sets that are imported."""
    domains = {entry.domain for entry in model.opset_import}
    return domains <= DOMAINS and _opset(model) >= OLDEST_OPSET


def _load() -> dict[str, Case]:
    """The cases, kept for later processes: their generators take eight seconds to run."""
    kept = SHARED / f"onnx-{onnx.__version__}-numpy-{np.__version__}-cases.pickle"
    if not kept.exists():
        with replacing(kept) as stream:
            stream.write(pickle.dumps(list(_generated())))
    cases = pickle.loads(kept.read_bytes())  # noqa: S301  these tests wrote it
    return {name: Case(*rest) for name, *rest in cases}


def _generated() -> Iterator[tuple[Any, ...]]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the suite's own generators overflow on purpose
        found = load_model_tests(kind="node")
    for case in sorted(found, key=lambda c: c.name):
        if case.model is not None and _imported(case.model):
            yield case.name, case.model, case.data_sets or (), case.rtol, case.atol


CASES = _load()
"""Name -> case. `_expanded` cases state an op as a function of smaller ones."""


def has_own_ops(name: str) -> bool:
    """True if each op of the case is one that the importer knows itself, not by its function."""
    model = CASES[name].model
    handled = (handler_of(node.op_type, _opset(model)) for node in model.graph.node)
    return "_expanded" not in name and None not in handled


def check(name: str, execute: Execute) -> None:
    """Every data set of the case gives the suite's outputs, shapes and types."""
    case = CASES[name]
    for stored, expected in case.data_sets:
        names = [entry.name for entry in case.model.graph.input]
        given = {n: widened(value_of(v)) for n, v in zip(names, stored, strict=True)}
        graph = _import(case.model, given)
        results = execute(graph, {n: given[n] for n in graph.inputs})
        for output, reference in zip(case.model.graph.output, expected, strict=True):
            made, wanted = results[output.name], widened(np.asarray(value_of(reference)))
            assert made.shape == wanted.shape
            assert made.dtype == wanted.dtype
            rtol = max(case.rtol, NARROW_RTOL.get(str(wanted.dtype), 0))
            np.testing.assert_allclose(made, wanted, rtol=rtol, atol=max(case.atol, 1e-6))


def widened(value: Any) -> Any:
    """Integers of two and four bits in bytes, as networks take and return them; others as they
    are."""
    kind = str(getattr(value, "dtype", ""))
    return value.astype(BYTES[kind]) if kind in BYTES else value


def _import(model: onnx.ModelProto, given: Mapping[str, Any]) -> Graph:
    """The model's graph, open dimensions bound to what the inputs have.

    The suite feeds at run time what fixes shapes; networks state it. It becomes an initializer
    where the import says that it has to be known.
    """
    open_inputs = {
        entry.name
        for entry in model.graph.input
        if any(not dim.HasField("dim_value") for dim in entry.type.tensor_type.shape.dim)
    }
    stated = onnx.ModelProto()
    stated.CopyFrom(model)
    left = dict(given)
    while True:
        shapes = {name: value.shape for name, value in left.items() if name in open_inputs}
        try:
            return import_model(stated, shapes)
        except NotConstant as error:
            asked = [name for name in left if f"(input '{name}')" in str(error)]
            fixed = asked or [name for name, value in left.items() if _fixes_shapes(value)]
            if not fixed:
                raise
        for name in fixed:
            stated.graph.initializer.append(numpy_helper.from_array(left.pop(name), name))


def _fixes_shapes(array: np.ndarray) -> bool:
    return array.ndim <= 1 and array.dtype.kind in "iub"


def value_of(item: Any) -> Any:
    """An array; a sequence or an empty optional as it is."""
    if isinstance(item, onnx.TensorProto):
        return np.asarray(numpy_helper.to_array(item))
    return np.asarray(item) if isinstance(item, np.ndarray | np.generic) else item
