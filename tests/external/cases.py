"""ONNX's own backend suite: its node tests for every op that is imported, as cases to run."""

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from retune.graph.evaluate import Execute
from retune.graph.graph import Graph
from retune.graph.onnx_file import OLDEST_OPSET
from retune.graph.onnx_import import import_model
from retune.graph.onnx_ops import NotConstant

DOMAINS = {"", "ai.onnx"}


def _opset(model: onnx.ModelProto) -> int:
    return next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))


def _imported(model: onnx.ModelProto) -> bool:
    """True if the model is written in operator sets that are imported."""
    domains = {entry.domain for entry in model.opset_import}
    return domains <= DOMAINS and _opset(model) >= OLDEST_OPSET


def _load() -> dict[str, TestCase]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the suite's own generators overflow on purpose
        found = load_model_tests(kind="node")
    return {
        case.name: case for case in sorted(found, key=lambda c: c.name) if _imported(case.model)
    }


CASES = _load()
"""Name -> case. `_expanded` cases state an op as a function of smaller ones."""


def check(name: str, execute: Execute) -> None:
    """Every data set of the case gives the suite's outputs, shapes and types."""
    case = CASES[name]
    for stored, expected in case.data_sets:
        inputs = [_array(item) for item in stored]
        graph = _import(case.model, inputs)
        names = [entry.name for entry in case.model.graph.input]
        given = dict(zip(names, inputs, strict=True))
        results = execute(graph, {n: given[n] for n in graph.inputs})
        for output, reference in zip(case.model.graph.output, expected, strict=True):
            made, wanted = results[output.name], _array(reference)
            assert made.shape == wanted.shape
            assert made.dtype == wanted.dtype
            np.testing.assert_allclose(made, wanted, rtol=case.rtol, atol=max(case.atol, 1e-6))


def _import(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> Graph:
    """The model's graph, open dimensions bound to what the inputs have.

    The suite feeds at run time what fixes shapes; networks state it. It becomes an initializer
    where the import says that it has to be known.
    """
    shapes = {
        entry.name: array.shape
        for entry, array in zip(model.graph.input, inputs, strict=True)
        if any(not dim.HasField("dim_value") for dim in entry.type.tensor_type.shape.dim)
    }
    try:
        return import_model(model, shapes)
    except NotConstant as error:
        needed = str(error)
    names = [entry.name for entry in model.graph.input]
    asked = [name for name in names if f"(input '{name}')" in needed]
    fixed = asked or [n for n, array in zip(names, inputs, strict=True) if _fixes_shapes(array)]
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for name, array in zip(names, inputs, strict=True):
        if name in fixed:
            changed.graph.initializer.append(numpy_helper.from_array(array, name))
    left = [array for name, array in zip(names, inputs, strict=True) if name not in fixed]
    return _import(changed, inputs) if left else import_model(changed)


def _fixes_shapes(array: np.ndarray) -> bool:
    return array.ndim <= 1 and array.dtype.kind in "iub"


def _array(item: object) -> np.ndarray:
    return np.asarray(numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item)
