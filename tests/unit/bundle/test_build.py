"""Plans that are built from networks keep every invariant, whatever their interface is."""

from dataclasses import replace

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.plan import NetworkPlan
from retune.core.dtypes import DType, TensorType
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract


def plan_of(graph: Graph, optimised: bool = True) -> NetworkPlan:
    network = extract(optimise(graph) if optimised else graph)
    plan = build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
    verify_plan(plan)
    return plan


def inputs(*shapes: tuple[int, ...], dtype: DType = "float32") -> GraphBuilder:
    build = GraphBuilder("net")
    for position, shape in enumerate(shapes):
        build.input(f"x{position}", TensorType(shape, dtype))
    return build


def test_an_input_that_nobody_reads_is_part_of_the_interface():
    build = inputs((2, 3), (4,))
    plan = plan_of(build.finish([build.add("relu", ["x0"])]))
    assert plan.inputs == ("x0", "x1")


@pytest.mark.parametrize("optimised", [True, False])
def test_outputs_that_are_constants(optimised: bool):
    build = inputs((2, 3))
    stored = build.constant("stored", np.arange(6, dtype=np.float32).reshape(2, 3))
    total = build.add("add", ["x0", stored], outputs=["total"])
    plan = plan_of(build.finish([total, stored]), optimised)
    assert plan.outputs == ("total", "stored")
    assert plan.buffer("stored").role == "output"


def test_outputs_in_the_memory_of_inputs():
    build = inputs((2, 3))
    same = build.add("identity", ["x0"], outputs=["same"])
    flat = build.add("reshape", ["x0"], {"shape": (6,)}, outputs=["flat"])
    plan = plan_of(build.finish([same, flat]))
    assert plan.outputs == ("same", "flat")


def test_outputs_that_are_reshapes_of_outputs():
    build = inputs((2, 3))
    made = build.add("relu", ["x0"], outputs=["made"])
    flat = build.add("reshape", [made], {"shape": (6,)}, outputs=["flat"])
    assert plan_of(build.finish([made, flat])).outputs == ("made", "flat")


def test_scalars():
    build = inputs(())
    plan = plan_of(build.finish([build.add("exp", ["x0"])]))
    assert plan.buffer("x0").elements == 1


def test_values_without_elements_need_no_kernel():
    build = inputs((0, 3))
    nothing = build.add("relu", ["x0"], outputs=["nothing"])
    attrs = {"axes": (0,), "keepdims": False}
    zeros = build.add("reduce_sum", ["x0"], attrs, outputs=["zeros"])
    plan = plan_of(build.finish([nothing, zeros]))
    assert plan.buffer("nothing").elements == 0
    assert len(plan.launches) <= 1


def test_equal_groups_share_a_kernel():
    build = inputs((4, 4))
    once = build.add("relu", ["x0"], outputs=["once"])
    square = build.add("matmul", [once, once])
    again = build.add("matmul", [square, square])
    plan = plan_of(build.finish([again]))
    matmuls = [launch for launch in plan.launches if launch.label.startswith("matmul")]
    assert len(matmuls) == 2 * len({launch.kernel for launch in matmuls})


def test_a_type_that_the_device_has_no_arithmetic_for():
    build = inputs((2, 3), dtype="float64")
    network = extract(optimise(build.finish([build.add("relu", ["x0"])])))
    with pytest.raises(InputError, match=r"'x0' is float64.*convert the model to float32"):
        build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
    able = replace(GENERIC_CPU, extensions=("cl_khr_fp64",))
    verify_plan(build_plan(network, {}, able, model_key="", notes={}))


def test_float16_is_read_and_written_on_every_device():
    build = inputs((2, 3), dtype="float16")
    plan = plan_of(build.finish([build.add("relu", ["x0"])]))
    assert [plan.buffer(name).dtype for name in (*plan.inputs, *plan.outputs)] == ["float16"] * 2
    (kernel,) = plan.kernels
    text = kernel.text
    assert "vload_half" in text and "vstore_half" in text


def test_scratch_and_packed_weights_take_no_values_name():
    """A network may call its values as this program calls memory of its own."""
    build = inputs((1, 8, 4, 4))
    build.constant("w", np.ones((8, 8, 3, 3), np.float32))
    conv = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    first = build.add("conv2d", ["x0", "w"], {**conv, "layout": "NCHW"})
    plan = plan_of(build.finish([first]))
    own = {entry.name for entry in plan.buffers} - {"x0", "w", first}
    assert own
    value = "x0"
    build = inputs((1, 8, 4, 4))
    build.constant("w", np.ones((8, 8, 3, 3), np.float32))
    for name in sorted(own):
        value = build.add("relu", [value], outputs=[name])
    second = build.add("conv2d", [value, "w"], {**conv, "layout": "NCHW"}, outputs=["y"])
    again = plan_of(build.finish([second, *sorted(own)]))
    assert {entry.name for entry in again.buffers if entry.role == "output"} == {*own, "y"}


def test_equal_weights_are_stored_once():
    """As they are or packed; those of another shape or type are others."""
    build = inputs((1, 64))
    values = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    last = "x0"
    for number in range(3):
        weight = build.constant(f"w{number}", values.copy())
        bias = build.constant(f"b{number}", np.full(64, 0.5, np.float32))
        last = build.add("relu", [build.add("add", [build.add("dense", [last, weight]), bias])])
    flat = build.constant("flat", np.full((1, 64), 0.5, np.float32))
    plan = plan_of(build.finish([build.add("multiply", [last, flat])]), optimised=False)
    shapes = sorted(array.size for array in plan.weights.values())
    assert shapes == [64, 64, 64 * 64]
