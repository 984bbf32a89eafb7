"""Sessions: states stay on the device from call to call, each session has its own."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.manifest import from_manifest, read_manifest, to_manifest
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.session import Session
from retune.core.errors import InputError, VerifyError
from retune.core.states import State, states_among
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.states import with_states
from retune.search.extract import extract

pytestmark = pytest.mark.device

STATES = (State(input="h", output="hn"), State(input="c", output="cn"))


def _recurrent() -> onnx.ModelProto:
    """An LSTM of two steps, as voice detectors have it: its vectors come in and go out."""
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        net (float[1, 2, 8] x, float[1, 1, 8] h, float[1, 1, 8] c)
            => (float[2, 1, 1, 8] y, float[1, 1, 8] hn, float[1, 1, 8] cn) {
          t = Transpose <perm = [1, 0, 2]> (x)
          y, hn, cn = LSTM <hidden_size = 8> (t, w, r, b, , h, c)
        }""")
    rng = np.random.default_rng(1)
    for name, shape in (("w", (1, 32, 8)), ("r", (1, 32, 8)), ("b", (1, 64))):
        array = rng.standard_normal(shape).astype(np.float32) * 0.3
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@pytest.fixture(scope="module")
def opencl() -> Device:
    return open_device("pocl")


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    return _recurrent()


@pytest.fixture(scope="module")
def plan(network: onnx.ModelProto, opencl: Device) -> NetworkPlan:
    graph = with_states(import_model(network), ())
    return build_plan(extract(optimise(graph)), {}, opencl.spec, model_key="lstm", notes={})


class _Oracle:
    """The network in onnxruntime, which is given its own states again."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        self.states = {"h": np.zeros((1, 1, 8), np.float32), "c": np.zeros((1, 1, 8), np.float32)}

    def run(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        y, hn, cn = self._session.run(None, {**inputs, **self.states})
        self.states = {"h": np.asarray(hn), "c": np.asarray(cn)}
        return np.asarray(y)


def _step(session: Session, oracle: _Oracle, rng: np.random.Generator) -> None:
    inputs = {"x": rng.standard_normal((1, 2, 8)).astype(np.float32)}
    found, wanted = session.run(inputs), oracle.run(inputs)
    assert list(found) == ["y"]
    np.testing.assert_allclose(found["y"], wanted, atol=1e-5)


def test_names_of_exporters_are_those_of_states(plan: NetworkPlan) -> None:
    assert plan.states == STATES


def test_two_sessions_in_turns_have_states_of_their_own(
    plan: NetworkPlan, network: onnx.ModelProto, opencl: Device, rng: np.random.Generator
) -> None:
    module = Module(plan, opencl)
    pairs = [(module.session(), _Oracle(network)) for _ in range(2)]
    for _ in range(3):
        for session, oracle in pairs:
            _step(session, oracle, rng)
        module.run(module.random_inputs())
    session, oracle = pairs[0]
    for name, array in session.states().items():
        np.testing.assert_allclose(array, oracle.states[name], atol=1e-5)
    session.reset()
    _step(session, _Oracle(network), rng)
    session.reset(oracle.states)
    _step(session, oracle, rng)


def test_a_manifest_states_the_states(plan: NetworkPlan) -> None:
    stated = to_manifest(plan)
    assert stated["states"] == [{"input": "h", "output": "hn"}, {"input": "c", "output": "cn"}]
    texts = {kernel.name: kernel.text for kernel in plan.kernels}
    assert from_manifest(read_manifest(stated), texts, plan.weights).states == STATES


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ((State(input="x", output="hn"),), "expected float32.* got float32"),
        ((State(input="h", output="y"),), "expected float32.* got float32"),
        ((State(input="h", output="q"),), "an input and an output of the plan"),
        ((*STATES, State(input="x", output="hn")), "that of another state"),
    ],
)
def test_what_is_no_state_is_refused(
    plan: NetworkPlan, states: tuple[State, ...], message: str
) -> None:
    with pytest.raises(VerifyError, match=message):
        verify_plan(replace(plan, states=states))


def test_states_are_stated_by_patterns_or_not_at_all() -> None:
    inputs, outputs = ["ids", "past.0.k", "past.1.k", "h"], ["y", "new.0.k", "new.1.k", "hn"]
    found = states_among(["past.*=new.*"], inputs, outputs)
    assert [(str(state), stated) for state, stated in found] == [
        ("past.0.k=new.0.k", True),
        ("past.1.k=new.1.k", True),
        ("h=hn", False),
    ]
    assert states_among(["none"], inputs, outputs) == ()
    for text, expected in (
        ("past=new", "expected an input"),
        ("ids=z", "expected an output"),
        ("ids", "expected INPUT=OUTPUT"),
    ):
        with pytest.raises(InputError, match=expected):
            states_among([text], inputs, outputs)
    with pytest.raises(InputError, match="hn twice"):
        states_among(["h=hn", "ids=hn"], inputs, outputs)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("past_key_values.3.key", "present.3.key"),
        ("past_key_values.0.decoder.value", "present.0.decoder.value"),
        ("past_key_0", "present_key_0"),
        ("past_1", "present_1"),
        ("state", "stateN"),
        ("h0", "hn"),
        ("h_in", "h_out"),
    ],
)
def test_names_of_usual_exporters(name: str, output: str) -> None:
    found = states_among([], [name], [output])
    assert [str(state) for state, _ in found] == [f"{name}={output}"]
