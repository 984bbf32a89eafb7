"""Groups that stay for a whole run: the same results as launches, in any number and order."""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.executor import callees_of, forms_here
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.network.resident import WAYS, Shape, best_shape, resident_text, shape_of
from retune.core.dtypes import INT32, TensorType
from retune.device.opencl import probe_child, staying
from retune.device.opencl.resident import Resident
from retune.device.opencl.runtime import BuildFailed, Device, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.device_networks import Net
from tests.support.tests_fixtures import Golden

pytestmark = pytest.mark.device

WAY = "launch.groups_stay.atomics"
PLAIN = ("-cl-opt-disable",)
"""PoCL 3.0 takes tests of items for tests of groups where LLVM has joined barriers behind them."""
TILES = [
    Callee(kernel="rows", parameters=2, groups=(3, 2, 1), items=8, arena=64),
    Callee(kernel="alone", parameters=1, groups=(5, 1, 1), items=1),
]
KERNELS = """
static void rows_tile(__global const int* x, __global int* y, const int3 group, const int item,
                      __local uchar* arena)
{
  __local int* row = (__local int*)arena;
  const int at = 8 * (group.x + 3 * group.y);
  if (0 <= item) {
    row[item] = x[at + item];
  }
  barrier(CLK_LOCAL_MEM_FENCE);
  if (0 <= item) {
    y[at + item] += 2 * row[7 - item] + group.y;
  }
}
static void alone_group(__global int* y, const int3 group)
{
  y[group.x] += 100;
}
"""
X, Y = (0, 0), (1, 0)
STEPS = [
    CalleeLaunch(kernel="rows", args=(X, Y), waits=(), label="x into y"),
    CalleeLaunch(kernel="alone", args=(Y,), waits=(0,), label="to y"),
    CalleeLaunch(kernel="rows", args=(Y, X), waits=(1, 0), label="y into x"),
]
NUMBERS = TensorType((48,), INT32)


@pytest.fixture(scope="module")
def device() -> Device:
    """PoCL as a GPU on which groups may stay."""
    opened = open_device("pocl")
    opened.spec = replace(opened.spec, device_class="gpu", instructions=(WAY,))
    return opened


def rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y + 2 * x.reshape(6, 8)[:, ::-1].reshape(-1) + np.repeat([0, 1], 24)


def alone(y: np.ndarray) -> np.ndarray:
    return y + np.where(np.arange(48) < 5, 100, 0)


def test_the_text(golden: Golden) -> None:
    """Two groups of 32 items: each runs groups of `rows` beside others only if there is room."""
    shape = shape_of([*TILES, replace(TILES[0], items=60)], 2)
    assert resident_text(TILES, STEPS, 2, shape, WAYS["launch.groups_stay.ptx"]) == golden


@pytest.mark.parametrize("groups", [1, 2, 3, 16])
def test_any_number_of_groups_completes_every_step(device: Device, groups: int) -> None:
    kernel = Resident(device, [KERNELS], PLAIN, TILES, STEPS, 2, groups=groups)
    x, y = np.arange(48, dtype=np.int32), np.zeros(48, np.int32)
    buffers = device.upload(x), device.upload(y)
    for _ in range(3):  # counters are clear again after each launch
        device.enqueue([kernel.launch(buffers)])
        y = alone(rows(x, y))
        x = rows(y, x)
        np.testing.assert_array_equal(device.read(buffers[1], NUMBERS), y)
        np.testing.assert_array_equal(device.read(buffers[0], NUMBERS), x)


def test_a_part_of_the_steps_alone(device: Device) -> None:
    kernel = Resident(device, [KERNELS], PLAIN, TILES, STEPS, 2, groups=2)
    buffers = device.upload(np.zeros(48, np.int32)), device.upload(np.zeros(48, np.int32))
    device.enqueue([kernel.launch(buffers, first=1, last=2), kernel.launch(buffers, last=0)])
    np.testing.assert_array_equal(device.read(buffers[1], NUMBERS), alone(np.zeros(48, np.int32)))
    np.testing.assert_array_equal(device.read(buffers[0], NUMBERS), np.zeros(48, np.int32))


def test_groups_lie_side_by_side_only_where_there_are_too_few() -> None:
    small = Callee(kernel="a", parameters=1, groups=(10, 1, 1), items=20, arena=100)
    large = Callee(kernel="b", parameters=1, groups=(1, 1, 1), items=100, arena=250)
    few, many = (shape_of([small, large], groups) for groups in (2, 10))
    assert (few.items, few.arena) == (128, 250)
    assert (few.beside(small), few.tickets(small)) == (2, 5), "two arenas of 100 bytes fit"
    assert (many.beside(small), many.tickets(small)) == (1, 10)


def test_groups_that_stream_are_as_large_as_it_takes_to_run_all_tiles_at_once() -> None:
    small = Callee(kernel="a", parameters=1, groups=(10, 1, 1), items=64, arena=100, streams=True)
    large = Callee(kernel="b", parameters=1, groups=(2, 1, 1), items=100, arena=250, streams=True)
    shape = shape_of([small, large], 2, most_items=1024, local=4096)
    assert (shape.items, shape.arena) == (5 * 64, 5 * 100)
    assert (shape.beside(small), shape.beside(large)) == (5, 1)
    assert shape_of([small, large], 2, most_items=256, local=300).arena == 300
    few = replace(small, groups=(4, 1, 1))
    assert shape_of([few, large], 2, most_items=1024, local=4096).items == 128, "one round as it is"
    calculating = replace(large, streams=False)
    assert shape_of([small, calculating], 2, most_items=1024, local=4096).items == 128


def test_all_groups_run_at_once() -> None:
    """One of what streams on each unit, and two of others if it has room for so many items."""
    one = Callee(kernel="a", parameters=1, groups=(8, 1, 1), items=96, arena=0, streams=True)
    assert best_shape([one], 2, 384, 0) == Shape(groups=2, items=384, arena=64)
    other = replace(one, streams=False)
    assert best_shape([other], 2, 384, 0) == Shape(groups=4, items=96, arena=64)
    large = replace(other, items=256)
    assert best_shape([large], 2, 384, 0) == Shape(groups=2, items=256, arena=64)


def test_products_of_one_row_stream(device: Device) -> None:
    n = Net("streaming")
    row = n("MatMul", n.input(1, 256), n.weight(256, 512))
    image = n.conv(n.input(1, 256, 32, 32), 256, 256, (1, 1))
    network = extract(optimise(import_model(n.model(row, image))))
    made = build_plan(network, {}, device.spec, model_key="", notes={})
    found = {callee.kernel: callee.streams for callee in callees_of(made)}
    assert {streams for kernel, streams in found.items() if "dense" in kernel} == {True}
    assert not all(found.values()), "a convolution calculates more"


@pytest.fixture(scope="module")
def graph() -> Graph:
    n = Net("staying")
    x = n("Relu", n.conv(n.input(1, 8, 12, 12), 8, 16))
    y = n("Concat", n.conv(x, 16, 8), x, axis=1)
    z = n.conv(n("GlobalAveragePool", x), 16, 1, (1, 1))
    return import_model(n.model(n("Softmax", n("GlobalAveragePool", y), axis=1), z))


@pytest.fixture(scope="module")
def plan(graph: Graph, device: Device) -> NetworkPlan:
    network = extract(optimise(graph, "NHWC"), max_error=0.0)
    made = build_plan(network, {}, device.spec, model_key="", notes={})
    return replace(made, options=(*made.options, *PLAIN))


def test_every_function_that_groups_call_is_there(plan: NetworkPlan) -> None:
    """Also that of a group of one item that has local memory, and so is a tile."""
    alone = [k for k, launch in plan.runs if prod(launch.local_size) == 1 and not k.single_item]
    assert alone, "no kernel of the network is one; give it another layer"
    tiles = callees_of(plan)
    text = resident_text(tiles, [], 1, shape_of(tiles, 2), WAYS[WAY])
    called = set(re.findall(r"(\w+_(?:group|tile))\(", text))
    assert len(called) == len(tiles)
    assert all(f"void {name}(" in plan.text for name in called)


def test_a_persistent_network_gives_what_its_launches_give(
    graph: Graph, plan: NetworkPlan, device: Device
) -> None:
    """Bit for bit, several times over, and after parts of it were run for their times."""
    assert (plan.form, forms_here(plan, device)) == ("queued", ("queued", "persistent"))
    inputs = random_inputs(graph)
    expected = Module(plan, device).run(inputs)
    staying = Module(replace(plan, form="persistent"), device)
    assert staying.form == "persistent"
    for _ in range(3):
        _assert_equal(staying.run(inputs), expected)
    for first in range(len(plan.launches)):
        staying.runner(first, first + 1, rounds=2)()
    _assert_equal(staying.run(inputs), expected)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_allclose(expected[name], array, rtol=1e-4, atol=1e-5)


def test_what_is_asked_for_early_is_what_is_read(device: Device) -> None:
    """A row by a matrix, and by one in blocks of 4 bits."""
    build, rng = GraphBuilder("early"), np.random.default_rng(0)
    build.input("x", TensorType((1, 2048)))
    matrix = build.constant("matrix", rng.standard_normal((256, 2048), np.float32))
    words = build.constant("words", rng.integers(-(1 << 31), 1 << 31, (64, 8, 4)).astype(np.int32))
    scales = build.constant("scales", rng.uniform(0.01, 0.03, (64, 8)).astype(np.float32))
    row = build.add("dense", ["x", matrix])
    graph = build.finish([build.add("dense_blocks", [row, words, scales], {"bits": 4})])
    network = extract(optimise(graph))
    made = build_plan(network, {}, device.spec, model_key="", notes={})
    _, *tiles = made.text.split("TILE_FUNCTION\nstatic void dense")
    assert [text.count("READS_ASKED();") > 0 for text in tiles] == [True, True]
    made = replace(made, options=(*made.options, *PLAIN))
    inputs = random_inputs(graph)
    found = Module(replace(made, form="persistent"), device).run(inputs)
    for name, array in run_graph(graph, inputs).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6 * np.ptp(array))


def test_the_best_form_is_one_of_both(plan: NetworkPlan, device: Device) -> None:
    assert best_form(plan, device).form in ("queued", "persistent")


def test_a_device_that_refuses_the_kernel_gets_launches(
    plan: NetworkPlan, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> Resident:
        raise BuildFailed("too many registers")

    monkeypatch.setattr("retune.bundle.runtime.executor.Resident", refused)
    assert best_form(plan, device).form == "queued"


def test_without_such_groups_there_are_only_launches(plan: NetworkPlan, device: Device) -> None:
    other = open_device("pocl")
    other.spec = replace(device.spec, instructions=())
    assert forms_here(plan, other) == ("queued",)
    bare = tuple(replace(kernel, arena_bytes=None) for kernel in plan.kernels)
    assert forms_here(replace(plan, kernels=bare), device) == ("queued",)


def test_a_device_is_asked_by_trying(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert staying.groups_stay(device, WAY, PLAIN)
    late = staying.KERNELS.replace("3 * row", "2 * row")
    monkeypatch.setattr(staying, "KERNELS", late)
    assert not staying.groups_stay(device, WAY, PLAIN)
    assert WAYS.keys().isdisjoint(open_device("pocl").spec.instructions)


def test_atomics_that_a_device_does_not_state_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = open_device("pocl")
    monkeypatch.setitem(other.__dict__, "has_atomics", False)
    assert not staying.groups_stay(other, WAY, PLAIN)


def test_what_does_not_build_does_not_work(device: Device) -> None:
    tried: Sequence[str] = [name for name in WAYS if name != WAY]
    for name in tried:  # PTX, on a processor
        assert not probe_child._works(name, lambda name=name: staying.groups_stay(device, name))


def _assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
