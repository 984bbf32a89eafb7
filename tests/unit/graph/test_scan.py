"""Loops: what they mean, what they refuse, and how a step of one is stated for a device."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from retune.core.dtypes import FLOAT32, TensorType
from retune.core.errors import ModelError
from retune.core.layouts import LayoutAssignment
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.scan import Scan, StoredRow, step_graph
from retune.search.extract import extract
from retune.search.layout.assignment import with_layouts
from tests.support import loops


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("backward", [*product([0, 1], repeat=2)])
def test_a_body_is_applied_to_slice_after_slice(steps, backward):
    graph = loops.network(steps, backward)
    inputs = random_inputs(graph)
    wanted = loops.expected(inputs, backward)
    for form in (graph, optimise(graph), optimise(graph, "NCHW")):
        found = run_graph(form, inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_a_step_reads_its_slice_and_counts():
    loop = Scan(body=loops.body(), steps=7, states=2, backward_inputs=(1,), backward_outputs=(0,))
    step = step_graph(loop)
    assert step.counters == {"step.forward": 0, "step.backward": 6}
    assert list(step.rows.values()) == [StoredRow(counter="step.forward", count=7)]
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((7, 2, 8), np.float32)
    state, other, factor = rng.standard_normal((3, 2, 8), np.float32)
    given = (np.int32(2), np.int32(4), state, other, rows, factor)
    inputs = {n: np.asarray(a) for n, a in zip(step.graph.inputs, given, strict=True)}
    forward, backward, after, before, made = run_graph(step.graph, inputs).values()
    wanted = np.tanh(state @ loops.WEIGHT.T + rows[4])
    assert (int(forward), int(backward)) == (3, 3)
    for found, array in ((after, wanted), (before, state), (made, wanted * other * factor)):
        np.testing.assert_allclose(found, array, rtol=1e-5, atol=1e-6)


def test_a_step_makes_each_output_by_a_kernel_of_its_own():
    """Outputs lie where the loop keeps them: none is an input, a view, or another output."""
    build = GraphBuilder("body")
    state, row = build.input("state", loops.ROW), build.input("row", loops.ROW)
    turned = build.add("transpose", [row], {"perm": (1, 0)})
    body = build.finish([row, turned, turned, state])
    step = step_graph(
        Scan(body=body, steps=3, states=1, backward_inputs=(0,), backward_outputs=(0, 0, 0))
    )
    assert len(set(step.graph.outputs)) == 5
    makers = [step.graph.producer(value) for value in step.graph.outputs]
    assert [maker.op for maker in makers if maker] == ["add", *["identity"] * 4]


def test_tasks_count_as_often_as_they_run():
    network = extract(optimise(loops.network(6)))
    weights = {task.op: task.weight for task in network.tasks.values() if task.op == "dense"}
    assert weights == {"dense": 6}
    assert [group.group.kind for group in network.groups] == ["scan", "elementwise"]


def test_layouts_keep_loops():
    """An assignment that changes nothing around them, too."""
    network = extract(optimise(loops.network(6)))
    assert with_layouts(network, LayoutAssignment()).loops.keys() == {"scan_0"}


def test_a_graph_is_as_large_for_any_number_of_steps():
    few, many = (extract(optimise(loops.network(steps))) for steps in (5, 5000))
    assert len(few.tasks) == len(many.tasks)
    assert len(str(few.graph)) - len(str(many.graph)) < 100


@pytest.mark.parametrize(
    ("change", "said"),
    [({"steps": 4}, "loop of 4 steps"), ({"states": 3, "backward_outputs": ()}, "unchanged types")],
)
def test_what_does_not_fit_is_said(change, said):
    scan = Scan(body=loops.body(), steps=5, states=2, backward_inputs=(0,), backward_outputs=(0,))
    build = GraphBuilder("loop")
    rows = build.input("rows", TensorType((5, 2, 8), FLOAT32))
    state = build.input("state", loops.ROW)
    with pytest.raises(ModelError, match=said):
        build.add("scan", [state, state, rows, state], replace(scan, **change).attrs)
