"""Loops on a device: every form and number of steps computes what numpy does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.export.program import export_c
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.core.dtypes import FLOAT32, TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.scan import Scan
from retune.search.extract import extract
from tests.device import c_programs
from tests.external.on_device import pocl
from tests.support import loops

pytestmark = pytest.mark.device


def plan_of(graph: Graph) -> NetworkPlan:
    network = extract(optimise(graph))
    return build_plan(network, {}, pocl().spec, model_key="0", notes={})


def assert_runs(plan: NetworkPlan, graph: Graph) -> None:
    """Twice: a run leaves nothing behind that the next one would read."""
    module = Module(plan, pocl())
    for seed in (0, 1):
        inputs = random_inputs(graph, seed)
        found, wanted = module.run(inputs), run_graph(graph, inputs)
        for name, array in wanted.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("steps", "backward"), [(1, 0), (2, 1), (3, 0), (4, 1), (7, 0), (2000, 1)])
def test_every_number_of_steps(steps, backward):
    graph = loops.network(steps, (backward, 1 - backward))
    assert_runs(plan_of(graph), graph)


def with_large_products(plan: NetworkPlan) -> NetworkPlan:
    """The plan, whose products of matrices are said to be too large for one worker."""
    sizes = [1 << 20 if "dense" in n.kernel else n.bytes for n in plan.launches]
    pairs = zip(plan.launches, sizes, strict=True)
    return replace(plan, launches=tuple(replace(n, bytes=size) for n, size in pairs))


@pytest.mark.parametrize("steps", [3, 4, 2001])
def test_workers_share_the_steps_of_large_loops(steps):
    graph = loops.network(steps)
    plan = with_large_products(plan_of(graph))
    assert not plan.lone_loops
    assert_runs(plan, graph)


def test_loops_run_side_by_side():
    graph = loops.side_by_side(64)
    assert_runs(plan_of(graph), graph)


def test_loops_of_one_body_have_each_their_own_number_of_steps():
    build = GraphBuilder("loops")
    start, factor = build.input("start", loops.ROW), build.input("factor", loops.ROW)
    for steps in (7, 3):
        rows = build.input(f"rows{steps}", TensorType((steps, *loops.ROW.shape), FLOAT32))
        outputs = [f"{name}{steps}" for name in ("last", "before", "all")]
        scan = Scan(
            body=loops.body(), steps=steps, states=2, backward_inputs=(0,), backward_outputs=(0,)
        )
        build.add("scan", [start, start, rows, factor], scan.attrs, outputs=outputs)
    graph = build.finish(["all7", "all3"]).verify()
    assert_runs(plan_of(graph), graph)


@pytest.mark.parametrize("form", ["inline", "queued"])
def test_every_form(form: Form):
    graph = loops.network(9)
    assert_runs(replace(plan_of(graph), form=form), graph)


def test_a_body_may_read_its_rows():
    """As they are, under another shape, and in parts."""
    build = GraphBuilder("body")
    state, given = build.input("state", loops.ROW), build.input("given", loops.ROW)
    weight = build.constant("w", loops.WEIGHT)
    row = build.add("add", [build.add("dense", [state, weight]), given])
    part = build.constant("part", loops.WEIGHT[:4, :4].copy())
    turned = build.add("dense", [build.add("reshape", [row], {"shape": (4, 4)}), part])
    whole = build.add("dense", [build.add("tanh", [row]), weight])
    after = build.add("add", [whole, build.add("reshape", [turned], {"shape": (2, 8)})])
    cut = {"begins": (0, 4), "extents": (2, 4), "steps": (1, 1)}
    half = build.add("dense", [build.add("slice", [row], cut), part])
    outer = Scan(
        body=build.finish([after, row, half]),
        steps=9,
        states=1,
        backward_inputs=(0,),
        backward_outputs=(0, 1),
    )
    around = GraphBuilder("loop")
    start = around.input("start", loops.ROW)
    rows = around.input("rows", TensorType((9, *loops.ROW.shape), FLOAT32))
    around.add("scan", [start, rows], outer.attrs, outputs=["last", "all", "halves"])
    graph = around.finish(["last", "all", "halves"])
    assert_runs(plan_of(graph), graph)


def test_loops_in_loops():
    """The inner one starts each time where the outer one is."""
    build = GraphBuilder("body")
    state = build.input("state", loops.ROW)
    rows = build.input("rows", TensorType((5, *loops.ROW.shape), FLOAT32))
    inner = Scan(body=loops.body(), steps=5, states=2, backward_inputs=(0,), backward_outputs=(1,))
    names = ["after", "before", "made"]
    build.add("scan", [state, state, rows, state], inner.attrs, outputs=names)
    outer = Scan(
        body=build.finish(["after", "made"]),
        steps=4,
        states=1,
        backward_inputs=(1,),
        backward_outputs=(0,),
    )
    around = GraphBuilder("loops")
    start = around.input("start", loops.ROW)
    given = around.input("given", TensorType((4, 5, *loops.ROW.shape), FLOAT32))
    around.add("scan", [start, given], outer.attrs, outputs=["last", "all"])
    graph = around.finish(["last", "all"])
    assert_runs(plan_of(graph), graph)


@pytest.mark.parametrize(("form", "large"), [("persistent", 0), ("persistent", 1), ("queued", 0)])
def test_a_c_program_runs_them(form: Form, large: int, tmp_path: Path):
    plan = plan_of(loops.network(1201))
    plan = replace(with_large_products(plan) if large else plan, form=form)
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder)
    c_programs.agrees(Module(plan, pocl()), folder)
