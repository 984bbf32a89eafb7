"""Bundles with states are compared on states that calls leave, and what is wrong is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.session import Session
from retune.bundle.variants import join_plans
from retune.bundle.verify.examination import Comparison, Original, Verdict
from retune.bundle.verify.examiner_child import verdict_on
from retune.bundle.verify.oracles import oracle_of
from retune.bundle.verify.sequences import with_states
from retune.core.dims import Size, assuming, dim_of
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.states import with_states as stateful
from retune.search.extract import extract
from tests.support.cached import WORDS, cached_decoder
from tests.support.decoder import decoder

pytestmark = pytest.mark.device

SIZES = (Size("sequence", 2, 4), Size("past", 0, 11))
NOW = {"sequence": 2, "past": 7}
ROWS = 4
"""Accuracy level of products whose rows are rounded to int8."""
Fault = Callable[[NetworkPlan], NetworkPlan]


@pytest.fixture(scope="module")
def opencl() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that rounds rows, with zero points in floats: onnxruntime rounds none of these."""
    path = tmp_path_factory.mktemp("decoder") / "model.onnx"
    made = decoder(ROWS)
    for node in made.graph.node:
        if node.op_type == "MatMulNBits":
            (scales,) = (w for w in made.graph.initializer if w.name == node.input[2])
            shape = numpy_helper.to_array(scales).shape
            zeros = np.random.default_rng(1).uniform(6, 9, shape).astype(np.float32)
            made.graph.initializer.append(numpy_helper.from_array(zeros, f"{node.name}.z"))
            node.input.append(f"{node.name}.z")
    onnx.save(made, path)
    return path


@pytest.fixture(scope="module")
def plan(model: Path, opencl: Device) -> NetworkPlan:
    shapes = {size.name: (dim_of(size),) for size in SIZES} | {"batch": (1,)}
    with assuming(NOW) as assumed:
        graph = stateful(load_file(model, shapes), ())
        made = build_plan(extract(optimise(graph)), {}, opencl.spec, model_key="rows", notes={})
    assert not assumed.conditions and "rows" in made.notes
    return join_plans([made], [()])


def _original(plan: NetworkPlan, model: Path, sizes: Mapping[str, int]) -> Original:
    own = plan.at(sizes)
    return Original(onnx=model, shapes=own.input_shapes, values=own.values)


def _verdict(module: Module, plan: NetworkPlan, model: Path, sizes: Mapping[str, int]) -> Verdict:
    comparison = Comparison(network=_original(plan, model, sizes), sizes=sizes)
    return verdict_on(module, module.device.spec, comparison)


def test_a_decoder_that_rounds_rows_agrees_part_by_part(
    plan: NetworkPlan, model: Path, opencl: Device
) -> None:
    module = Module(plan, opencl)
    for sizes in (NOW, {"sequence": 2, "past": 0}, {"sequence": 4, "past": 11}):
        found = _verdict(module, plan, model, sizes).found
        assert found.passed and found.max_rel_range < 1e-5, found
        assert found.rounding is None


def _with(plan: NetworkPlan, name: str, change: Callable[[np.ndarray], None]) -> NetworkPlan:
    (key,) = (key for key in plan.weights if key.startswith(name))
    array = np.array(plan.weights[key])
    change(array.reshape(-1))
    return replace(plan, weights={**plan.weights, key: array})


def _wrong_word(words: np.ndarray) -> None:
    words[5] ^= 0x77777777


def _swapped(scales: np.ndarray) -> None:
    first, last = scales.argmin(), scales.argmax()
    scales[[first, last]] = scales[[last, first]]


@pytest.mark.parametrize("name", ["q.0.q", "down.0.q", "o.1.q", "down.1.q", "logits.q"])
def test_a_wrong_row_is_refused(plan: NetworkPlan, model: Path, opencl: Device, name: str) -> None:
    module = Module(_with(plan, name, _wrong_word), opencl)
    assert not _verdict(module, plan, model, NOW).found.passed


@pytest.mark.parametrize("name", ["gate.0.s", "down.1.s"])
def test_swapped_scales_are_refused(
    plan: NetworkPlan, model: Path, opencl: Device, name: str
) -> None:
    module = Module(_with(plan, name, _swapped), opencl)
    assert not _verdict(module, plan, model, NOW).found.passed


def test_a_stale_slot_of_a_session_is_refused(
    plan: NetworkPlan, model: Path, opencl: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Session.run

    def stale(session: Session, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        outputs = run(session, inputs)
        states = session.states()
        states["past.1.value"][0, 1, -1] = states["past.1.value"][0, 1, 0]
        if session.length > 1:
            session.reset(states)
        return outputs

    monkeypatch.setattr(Session, "run", stale)
    found = _verdict(Module(plan, opencl), plan, model, NOW)
    assert not found.found.passed


def test_samples_have_masks_and_caches_of_calls(plan: NetworkPlan, model: Path) -> None:
    spec = open_device("pocl").spec
    original = _original(plan, model, NOW)
    reference, _ = oracle_of(plan, original, spec)
    asked: list[Mapping[str, np.ndarray]] = []

    def watched(inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        asked.append(inputs)
        return reference(inputs)

    feeds = with_states(plan, original, watched, NOW)
    first, second = feeds(0), feeds(1)
    assert [call["input_ids"].shape[1] for call in asked] == [7]
    assert [call["past.0.key"].shape[2] for call in asked] == [0]
    made = reference(asked[0])
    for inputs in (first, second):
        assert inputs["attention_mask"].tolist() == [[1] * 9]
        np.testing.assert_array_equal(inputs["past.1.value"], made["present.1.value"])
    assert first["input_ids"].tolist() != second["input_ids"].tolist()


def test_slots_of_long_caches_are_drawn_from_those_that_calls_filled(
    tmp_path: Path, opencl: Device
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(cached_decoder(layers=1), path)
    shapes = {"batch": (1,), "seq": (1,), "past": (300,)}
    graph = stateful(load_file(path, shapes), ())
    plan = build_plan(extract(optimise(graph)), {}, opencl.spec, model_key="fixed", notes={})
    original = Original(onnx=path, shapes=plan.input_shapes)
    reference, _ = oracle_of(plan, original, opencl.spec)
    inputs = with_states(plan, original, reference)(3)
    keys, values = (inputs[f"past_0_{part}"] for part in ("key", "value"))
    assert keys.shape == values.shape and keys.shape[2] == 300
    slots = [np.moveaxis(array, 2, 0).reshape(300, -1) for array in (keys, values)]
    keys_alone, both = ({*map(tuple, array)} for array in (slots[0], np.hstack(slots)))
    assert 10 < len(both) == len(keys_alone) <= WORDS  # the same slots of both
