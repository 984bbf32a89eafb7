"""The node tests of ONNX's own backend suite, for every op that is imported.

`EXECUTORS` are the ways to run a graph; each test runs by every one of them.
"""

import re
import warnings
from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from retune.graph.evaluate import Execute, run_graph
from retune.graph.onnx_file import OLDEST_OPSET
from retune.graph.onnx_import import import_model
from retune.graph.onnx_ops import handler_of
from tests.external.exclusions import EXCLUDED, reason_to_exclude

EXECUTORS: dict[str, Execute] = {"numpy": run_graph}
"""Name -> how to run an imported graph."""

CONSTANT_INPUTS: dict[str, tuple[int, ...]] = {
    "BatchNormalization": (),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "Dropout": (1, 2),
    "Expand": (1,),
    "Pad": (1, 2, 3),
    "Range": (0, 1, 2),
    "ReduceMax": (1,),
    "ReduceMean": (1,),
    "ReduceMin": (1,),
    "ReduceSum": (1,),
    "Reshape": (1,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "Unsqueeze": (1,),
}
"""Inputs that fix a shape: the suite feeds them at run time, networks state them as constants."""


def _opset(model: onnx.ModelProto) -> int:
    return next(e.version for e in model.opset_import if e.domain in ("", "ai.onnx"))


def _imported(model: onnx.ModelProto) -> bool:
    """True if the importer claims every op of the model."""
    domains = {entry.domain for entry in model.opset_import}
    if not domains <= {"", "ai.onnx"} or _opset(model) < OLDEST_OPSET:
        return False
    return all(handler_of(node.op_type, _opset(model)) for node in model.graph.node)


def _cases() -> list[TestCase]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the suite's own generators overflow on purpose
        return [case for case in load_model_tests(kind="node") if _imported(case.model)]


CASES = {case.name: case for case in _cases()}


def _with_constants(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> onnx.ModelProto:
    """The model with the inputs that fix shapes turned into initializers."""
    fixed = {
        node.input[index]
        for node in model.graph.node
        for index in CONSTANT_INPUTS.get(node.op_type, ())
        if index < len(node.input)
    }
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for entry, array in zip(model.graph.input, inputs, strict=True):
        if entry.name in fixed:
            changed.graph.initializer.append(numpy_helper.from_array(array, entry.name))
    return changed


RUNS = [
    (executor, name)
    for executor in EXECUTORS
    for name in sorted(CASES)
    if not reason_to_exclude(name, executor)
]


@pytest.mark.parametrize(("executor", "name"), RUNS)
def test_node(executor: str, name: str):
    case = CASES[name]
    for stored, expected in case.data_sets:
        inputs = [np.asarray(_array(item)) for item in stored]
        names = [entry.name for entry in case.model.graph.input]
        graph = import_model(
            _with_constants(case.model, inputs),
            {n: a.shape for n, a in zip(names, inputs, strict=True) if _is_open(case.model, n)},
        )
        feed = {n: a for n, a in zip(names, inputs, strict=True) if n in graph.inputs}
        results = EXECUTORS[executor](graph, feed)
        for output, reference in zip(case.model.graph.output, expected, strict=True):
            made, wanted = results[output.name], np.asarray(_array(reference))
            assert made.shape == wanted.shape
            assert made.dtype == wanted.dtype
            np.testing.assert_allclose(made, wanted, rtol=case.rtol, atol=max(case.atol, 1e-6))


def _is_open(model: onnx.ModelProto, name: str) -> bool:
    entry = next(entry for entry in model.graph.input if entry.name == name)
    return any(not dim.HasField("dim_value") for dim in entry.type.tensor_type.shape.dim)


def _array(item: object) -> object:
    return numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


@pytest.mark.parametrize("executor", EXECUTORS)
def test_the_pass_count_is_known(executor: str, capsys: pytest.CaptureFixture[str]):
    """The tests above pass or fail by themselves; this one says how many there are."""
    count = sum(1 for by, _ in RUNS if by == executor)
    with capsys.disabled():
        print(f"\nONNX node tests by {executor}: {count} run, {len(CASES) - count} excluded")
    assert count >= 500


def test_every_exclusion_excludes_something():
    idle = [e.pattern for e in EXCLUDED if not any(re.search(e.pattern, n) for n in CASES)]
    assert not idle
