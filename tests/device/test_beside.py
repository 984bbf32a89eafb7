"""A gated layer of one row: on GPUs one kernel makes both of its products."""

from typing import Any

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.dtypes import TensorType
from retune.core.target import GENERIC_GPU
from retune.device.opencl.runtime import Device, open_device
from retune.graph.fuse import partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.search.extract import extract
from retune.search.task import Task
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from tests.support.fuse import run_groups
from tests.support.oracle import assert_items_agree, assert_sketches_agree

pytestmark = pytest.mark.device

ON_GPUS = Precision(beside=True)


def weights(build: GraphBuilder, op: str, name: str, columns: int, depth: int) -> list[str]:
    """The constants of a product."""
    rng = np.random.default_rng(len(name))
    if op == "dense":
        matrix = rng.standard_normal((columns, depth), np.float32)
        return [build.constant(name, matrix)]
    words = rng.integers(-(1 << 31), 1 << 31, (columns, depth // 32, 4)).astype(np.int32)
    scales = rng.uniform(0.01, 0.03, (columns, depth // 32)).astype(np.float32)
    return [build.constant(f"{name}.words", words), build.constant(f"{name}.scales", scales)]


def gated(op: str, *, rows: int = 1, more: bool = False, source: str = "x") -> Graph:
    """act(x v) * (x w); if `more`, another reads the second product, too."""
    build, depth = GraphBuilder("gated"), 256
    attrs: dict[str, Any] = {"bits": 4} if op == "dense_blocks" else {}
    build.input("x", TensorType((rows, depth)))
    build.input("z", TensorType((rows, depth)))
    gate = build.add(op, ["x", *weights(build, op, "gate", 24, depth)], attrs)
    bent = build.add("multiply", [gate, build.add("tanh", [gate])])
    up = build.add(op, [source, *weights(build, op, "up", 24, depth)], attrs)
    made = build.add("multiply", [bent, up], outputs=["made"])
    return build.finish([made, *([build.add("exp", [up])] if more else [])])


def ops_of_groups(graph: Graph) -> list[list[str]]:
    return [[node.op for node in group.nodes] for group in partition(graph)]


def the_task(op: str) -> Task:
    network = extract(optimise(gated(op), precision=ON_GPUS))
    (task,) = network.tasks.values()
    return task


@pytest.mark.parametrize("op", ["dense", "dense_blocks"])
def test_both_products_are_a_group(op: str):
    graph = optimise(gated(op), precision=ON_GPUS)
    assert ops_of_groups(graph) == [[op, "tanh", "multiply", op, "multiply"]]
    row = {n: np.random.default_rng(1).standard_normal((1, 256), np.float32) for n in ("x", "z")}
    expected = run_groups(optimise(gated(op)), row)["made"]
    np.testing.assert_array_equal(run_groups(graph, row)["made"], expected)


@pytest.mark.parametrize(
    "graph",
    [gated("dense", rows=2), gated("dense", more=True), gated("dense", source="z")],
    ids=["two rows", "read twice", "other rows"],
)
def test_others_are_groups_of_their_own(graph: Graph):
    found = ops_of_groups(optimise(graph, precision=ON_GPUS))
    assert found == ops_of_groups(optimise(graph))
    assert all(ops.count("dense") <= 1 for ops in found)


def test_on_processors_both_have_kernels_of_their_own():
    assert len(ops_of_groups(optimise(gated("dense_blocks")))) == 2


@pytest.mark.parametrize("op", ["dense", "dense_blocks"])
def test_they_are_one_kernel_that_reads_all_weights_before_it_waits(op: str):
    task = the_task(op)
    space = task.space(GENERIC_GPU)
    program = space.instantiate(default_candidate(space, GENERIC_GPU))
    (kernel,) = lower(program, target_of(GENERIC_GPU)).kernels
    assert "weight" not in kernel.text[kernel.text.index("barrier(") :]
    assert_items_agree(task.dag, program)


@pytest.mark.parametrize("op", ["dense", "dense_blocks"])
def test_every_sketch(op: str):
    device: Device = open_device("pocl")
    task = the_task(op)
    assert_sketches_agree(device, task.dag, task.space(GENERIC_GPU).sketches)
