"""Operators in host steps, against onnxruntime in all operator sets, and by ONNX's node tests.

The gate runs some of each, chosen by a seed; the slow suite runs all of them.
"""

import numpy as np
import pytest
from onnx import defs

from retune.core.dtypes import NUMPY_DTYPES, UNKNOWN, DType, TensorType
from retune.frontend.host.ops import host_function, host_ops
from retune.frontend.host.step import host_attrs, step_of
from retune.frontend.onnx.ops.registry import names
from tests.external.cases import CASES as NODE_TESTS
from tests.external.cases import NARROW_RTOL, value_of
from tests.external.exclusions import exclusion_of
from tests.support.host_cases import CASES, ELSEWHERE
from tests.support.host_sweep import Case, run

CHOSEN = 40
"""Cases of each sweep that the gate runs."""


def test_some_operators_of_each_operator_set(seed: int, rng: np.random.Generator):
    chosen = [CASES[i] for i in rng.choice(len(CASES), CHOSEN, replace=False)]
    print(f"RETUNE_SEED={seed} chooses {', '.join(map(str, chosen))}")
    for case in chosen:
        run(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_operator_in_an_operator_set(case: Case):
    run(case)


def test_every_operator_of_the_host_is_in_a_sweep():
    swept = {case.op for case in CASES} | ELSEWHERE.keys() | {"Identity"}
    assert {name for name in host_ops() if "::" not in name} <= swept  # others have own cases
    tested = {node.op_type for name in RUN for node in NODE_TESTS[name].model.graph.node}
    assert {name for name in names() if defs.has(name)} <= swept | tested


def test_every_operator_of_the_host_says_what_it_does():
    """`retune ops` prints it."""
    for name, versions in host_ops().items():
        for opset in versions:
            function = host_function(name, opset)
            assert function is not None and function.__doc__, f"{name} of opset {opset}"


def _types(outputs: list[np.ndarray]) -> list[TensorType]:
    return [TensorType((UNKNOWN,) * a.ndim, DType(str(a.dtype))) for a in outputs]


def _runs(name: str) -> bool:
    """True if the case has only tensors that a step can hold as its inputs and outputs."""
    stored, expected = NODE_TESTS[name].data_sets[0]
    values = [value_of(item) for item in (*stored, *expected)]
    return all(isinstance(v, np.ndarray) and v.dtype.name in NUMPY_DTYPES for v in values)


RUN = [name for name in NODE_TESTS if not exclusion_of(name) and _runs(name)]


def check_node_test(name: str) -> None:
    """The case's host step gives the suite's outputs."""
    case = NODE_TESTS[name]
    for stored, expected in case.data_sets:
        wanted = [np.asarray(value_of(item)) for item in expected]
        step = step_of(host_attrs(case.model, _types(wanted)))
        for ours, theirs in zip(step.run([value_of(item) for item in stored]), wanted, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
            rtol = max(case.rtol, NARROW_RTOL.get(str(theirs.dtype), 0))
            np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=max(case.atol, 1e-6))


def test_some_node_tests_in_host_steps(seed: int, rng: np.random.Generator):
    chosen = [RUN[i] for i in rng.choice(len(RUN), CHOSEN, replace=False)]
    print(f"RETUNE_SEED={seed} chooses {', '.join(chosen)}")
    for name in chosen:
        check_node_test(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_a_node_test_in_a_host_step(name: str):
    check_node_test(name)
