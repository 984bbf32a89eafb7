"""Networks compiled once for a range of batches, against onnxruntime at each of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from retune.bundle.build import build_finalists, build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.variants import join_plans
from retune.bundle.verify.in_network import open_finalists
from retune.core.dims import Condition, Size, SizeValues, assuming, dim_of, sizes_of
from retune.core.errors import InputError
from retune.core.ranges import TunedSizes
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import import_model
from retune.frontend.zoo.writer import open_axes
from retune.graph.passes.pipeline import optimise
from retune.pipeline.sizes import covering
from retune.search.extract import extract
from tests.support.size_values import holding
from tests.support.sized_networks import UNESTIMATED, model_of
from tests.unit.graph.test_sizes import OPERATORS, STATED, N

pytestmark = pytest.mark.device

BATCH = Size("n", 1, 8)


def compiled(
    model: onnx.ModelProto, device: Device, tuned: Sequence[int], size: Size = BATCH
) -> NetworkPlan:
    """The network for any batch, with default schedules for these."""

    def trace(
        values: SizeValues, _: int, region: Sequence[Condition], __: object
    ) -> tuple[NetworkPlan, Sequence[Condition]]:
        with assuming(values, region) as assumed:
            graph = import_model(model, {size.name: (dim_of(size),)})
            network = extract(optimise(graph, "NHWC"), max_error=0.0)
            plan = build_plan(network, {}, device.spec, model_key="0", notes={})
        return plan, assumed.conditions

    sizes = [TunedSizes(values=((size.name, n),), weight=1.0) for n in tuned]
    found = covering([size], sizes, trace, lambda *_: UNESTIMATED)
    return join_plans([each.program for each in found], [each.conditions for each in found])


def opened(model: onnx.ModelProto, form: Form, plan: NetworkPlan) -> Module:
    device = open_device("pocl")
    if form == "queued":
        device.__dict__["has_atomics"] = False  # what workers need
    module = Module(replace(plan, form=form), device)
    assert module.form == form
    return module


def assert_right(
    module: Module, model: onnx.ModelProto, every: Sequence[SizeValues] | None = None
) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    names = [entry.name for entry in session.get_outputs()]
    for values in holding((), (BATCH,)) if every is None else every:
        feeds = module.random_inputs(3, values)
        found = module.run(feeds)
        for name, array in zip(names, session.run(names, feeds), strict=True):
            wanted = np.asarray(array)
            assert found[name].shape == wanted.shape
            spread = float(np.abs(wanted).max(initial=1e-3))
            np.testing.assert_allclose(found[name], wanted, rtol=1e-3, atol=1e-4 * spread)


def test_a_perceptron_in_every_form(tmp_path: Path) -> None:
    """Its variants are on disk; weights that both read alike are there once."""
    model = open_axes(onnx.load(str(resolve_model("zoo:mlp", tmp_path))), {0: "n"})
    plan = compiled(model, open_device("pocl"), [1, 8])
    assert len(plan.variants) >= 2
    stored = read_bundle(write_bundle(plan, tmp_path / "module"))
    forms: tuple[Form, ...] = ("persistent", "inline", "queued")
    for form in forms:
        assert_right(opened(model, form, stored), model)


def test_finalists_are_compared_at_sizes_that_are_chosen(tmp_path: Path) -> None:
    """With extents that are fixed then, in the kernels of all sizes."""
    model = open_axes(onnx.load(str(resolve_model("zoo:mlp", tmp_path))), {0: "n"})
    device = open_device("pocl")
    with assuming({BATCH.name: 8}):
        graph = import_model(model, {BATCH.name: (dim_of(BATCH),)})
        network = extract(optimise(graph, "NHWC"), max_error=0.0)
        plan = build_finalists(network, {}, device.spec, model_key="0", notes={})
    runner = open_finalists(plan.at({BATCH.name: 6}), device)
    assert (runner.times(np.zeros((2, len(plan.slots)), np.int64)) > 0).all()
    module = Module(plan.plan, device)
    expected = module.run(module.random_inputs(0, {BATCH.name: 6}))
    for name, array in runner.outputs().items():
        np.testing.assert_array_equal(array, expected[name])


def test_sizes_that_are_elements_of_an_input() -> None:
    """A slice ends where an input says: the input is read before anything runs."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[n, 9] x, int64[1] ends) => (float[n, k] y) {
      zero = Constant <value_ints = [0]> () one = Constant <value_ints = [1]> ()
      s = Slice(x, zero, ends, one) y = Relu(s) }"""
    model, end = parser.parse_model(text), Size("end", 2, 8)
    device = open_device("pocl")
    with assuming({BATCH.name: 8, "end": 6}) as assumed:
        values = {"ends": (dim_of(end),)}
        graph = import_model(model, {BATCH.name: (dim_of(BATCH),)}, values=values)
        network = extract(optimise(graph, "NHWC"), max_error=0.0)
        plan = build_plan(network, {}, device.spec, model_key="0", notes={})
    assert [(each.input, each.axis) for each in plan.sizes] == [("x", 0), ("ends", None)]
    module = Module(join_plans([plan], [assumed.conditions]), device)
    for sizes in ({BATCH.name: 8, "end": 8}, {BATCH.name: 5, "end": 3}):
        feeds = module.random_inputs(1, sizes)
        assert feeds["ends"].tolist() == [sizes["end"]]
        np.testing.assert_array_equal(
            module.run(feeds)["y"], np.maximum(feeds["x"][:, : sizes["end"]], 0)
        )
    with pytest.raises(InputError, match=r"input ends: expected 2 to 8; got 9; .* --value"):
        module.run({**module.random_inputs(), "ends": np.array([9])})


@pytest.mark.slow
def test_a_small_cnn_in_every_form(tmp_path: Path) -> None:
    model = open_axes(onnx.load(str(resolve_model("zoo:kws", tmp_path))), {0: "n"})
    plan = compiled(model, open_device("pocl"), [8])
    forms: tuple[Form, ...] = ("persistent", "inline", "queued")
    for form in forms:
        assert_right(opened(model, form, plan), model)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OPERATORS, *STATED])
def test_an_operator_at_sizes_that_its_kernels_serve(name: str) -> None:
    """One trace: of the sizes beside it those that meet its conditions, one at least."""
    text, stated = STATED[name] if name in STATED else (OPERATORS[name], {})
    model, device = model_of(text), open_device("pocl")
    sizes = [N, *sorted(sizes_of(e for dims in stated.values() for e in dims), key=str)]
    first = {size.name: size.values[len(size.values) // 2] for size in sizes}
    with assuming(first) as assumed:
        graph = import_model(model, {N.name: (dim_of(N),)}, values=stated)
        network = extract(optimise(graph, "NHWC"), max_error=0.0)
        plan = build_plan(network, {}, device.spec, model_key="0", notes={})
    module = Module(join_plans([plan], [assumed.conditions]), device)
    assert_right(module, model, [first, *module.plan.corners])


SCANNED = """(float[4] h, float[n, 4] x) => (float[4] last, float[n, 4] y) {
  last, y = Scan <num_scan_inputs = 1, body = step (float[4] a, float[4] b)
    => (float[4] c, float[4] d) { sum = Add(a, b) c = Tanh(sum) d = Mul(c, b) }> (h, x) }"""
LISTED = """(float[n, 6] x) => (float[m] z) {
  r = Relu(x) minus = Constant <value_ints = [-1]> () row = Reshape(r, minus)
  y = Unique <sorted = 1> (row) z = Relu(y) }"""


@pytest.mark.slow
def test_a_loop_has_a_program_for_each_number_of_steps() -> None:
    size, model = Size("n", 4, 5), model_of(SCANNED)
    plan = compiled(model, open_device("pocl"), [5], size)
    assert [list(map(str, each.conditions)) for each in plan.variants] == [["n == 5"], ["n == 4"]]
    assert_right(opened(model, "persistent", plan), model, list(holding((), (size,))))


def test_a_host_step_takes_as_many_elements_as_come() -> None:
    model = model_of(LISTED)
    plan = compiled(model, open_device("pocl"), [8])
    assert plan.hosts
    assert_right(opened(model, "persistent", plan), model, [{BATCH.name: n} for n in (1, 5, 8)])
