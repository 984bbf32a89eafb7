"""Sessions: states stay on the device from call to call, each session has its own."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from retune.bundle.build import build_plan
from retune.bundle.export.program import export_c
from retune.bundle.invariants import verify_plan
from retune.bundle.manifest import from_manifest, read_manifest, to_manifest
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.session import Session
from retune.bundle.variants import join_plans
from retune.bundle.verify import sequences
from retune.bundle.verify.compare import TOLERANCE
from retune.bundle.verify.examination import Original
from retune.core.dims import Size, assuming, dim_of
from retune.core.dtypes import BFLOAT16
from retune.core.errors import InputError, VerifyError
from retune.core.states import State, listed, states_among
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import optimise
from retune.graph.passes.precision import Precision
from retune.graph.passes.states import with_states
from retune.search.extract import extract
from tests.device.c_programs import build
from tests.support.cached import CACHES, HEADS, WIDE, WORDS, cached_decoder

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
    with session as opened:
        opened.close()
    with pytest.raises(InputError, match="expected an open session, got one that was closed"):
        session.states()
    _step(*pairs[1], rng)


def test_samples_begin_with_states_that_two_calls_leave(
    plan: NetworkPlan, network: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(network, path := tmp_path / "model.onnx")
    oracle, asked = _Oracle(network), list[Mapping[str, np.ndarray]]()

    def reference(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        np.testing.assert_array_equal(inputs["h"], oracle.states["h"])
        asked.append(inputs)
        y = oracle.run({"x": inputs["x"]})
        return {"y": y, **{f"{name}n": array for name, array in oracle.states.items()}}

    original = Original(onnx=path, shapes=plan.input_shapes)
    feeds = sequences.with_states(plan, original, reference)
    first, second = feeds(0), feeds(1)
    assert len(asked) == 2
    assert not np.array_equal(first["x"], second["x"])
    for inputs in (first, second):
        for name, array in oracle.states.items():
            np.testing.assert_array_equal(inputs[name], array)


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
    assert listed([state for state, _ in found]) == "3 (past.*.k=new.*.k, h=hn)"
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
    found = states_among([], [name, "x"], [output])
    assert [str(state) for state, _ in found] == [f"{name}={output}"]


def test_what_enters_and_leaves_a_network_is_no_state() -> None:
    assert not states_among([], ["audio_in", "x"], ["audio_out"])


def test_names_make_no_states_of_all_inputs() -> None:
    inputs, outputs = ["state_in", "h"], ["state_out", "hn"]
    assert not states_among([], inputs, outputs)
    found = states_among(["h=hn"], inputs, outputs)
    assert [str(state) for state, _ in found] == ["h=hn"]


# -- states that grow ------------------------------------------------------------------------------

SIZES = (Size("batch", 1, 2), Size("seq", 1, 4), Size("past", 0, 11))


@pytest.fixture(scope="module")
def decoder() -> onnx.ModelProto:
    return cached_decoder()


@pytest.fixture(scope="module")
def decoder_plan(decoder: onnx.ModelProto, opencl: Device) -> NetworkPlan:
    shapes = {size.name: (dim_of(size),) for size in SIZES}
    with assuming({"batch": 2, "seq": 1, "past": 7}) as assumed:
        graph = with_states(import_model(decoder, shapes, name="decoder"), ())
        network = extract(optimise(graph))
        plan = build_plan(network, {}, opencl.spec, model_key="decoder", notes={})
    assert not assumed.conditions
    made = join_plans([plan], [()])
    verify_plan(made)
    return made


@pytest.fixture(scope="module")
def decoder_module(decoder_plan: NetworkPlan, opencl: Device) -> Module:
    return Module(decoder_plan, opencl)


class _Cached:
    """The decoder in onnxruntime, which is given its own caches again."""

    def __init__(self, model: onnx.ModelProto, batch: int) -> None:
        self._session = onnxruntime.InferenceSession(model.SerializeToString())
        empty = np.zeros((batch, HEADS, 0, WIDE), np.float32)
        self.states = {f"past_{cache}": empty for cache in CACHES}

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [entry.name for entry in self._session.get_outputs()]
        return dict(zip(names, map(np.asarray, self._session.run(None, dict(inputs))), strict=True))

    def step(self, ids: np.ndarray) -> np.ndarray:
        outputs = self({"input_ids": ids, **self.states})
        self.states = {f"past_{cache}": outputs[f"present_{cache}"] for cache in CACHES}
        return outputs["logits"]


def _words(rng: np.random.Generator, batch: int, count: int) -> np.ndarray:
    return rng.integers(0, WORDS, (batch, count))


def test_caches_stay_in_float32_where_the_rest_does_not(decoder: onnx.ModelProto) -> None:
    shapes = {"batch": (1,), "seq": (1,), "past": (7,)}
    graph = with_states(import_model(decoder, shapes), ())
    made = optimise(graph, precision=Precision(stored=BFLOAT16, own=frozenset({BFLOAT16})))
    made.verify()
    grown = {name for node in made.nodes if node.op == "append" for name in node.outputs}
    assert len(grown) == len(CACHES)
    assert not any(node.op == "cast" and grown & {*node.inputs} for node in made.nodes)


def test_a_state_that_grows_may_be_two_outputs() -> None:
    model = parser.parse_model("""<ir_version: 10, opset_import: ["" : 18]>
        two (float[past, 4] past_0, float[n, 4] x) => (float[all, 4] cat, float[all, 4] present_0) {
            cat = Concat<axis = 0>(past_0, x)
            present_0 = Identity(cat)
        }""")
    graph = with_states(import_model(model, {"past": (3,), "n": (2,)}), ())
    graph.verify()
    feeds = {n: np.full((c, 4), c, np.float32) for n, c in (("past_0", 3), ("x", 2))}
    for name in graph.outputs:
        array = run_graph(graph, feeds)[name]
        np.testing.assert_array_equal(array, np.concatenate([*feeds.values()]))


@pytest.mark.parametrize(
    ("first", "message"), [(1, "expected role input, in"), (2, "aliases: expected storages")]
)
def test_a_cache_lies_at_the_beginning_of_its_memory(
    decoder_plan: NetworkPlan, first: int, message: str
) -> None:
    states = {state.input for state in decoder_plan.states}
    number = next(n for n, a in enumerate(decoder_plan.aliases) if a.value in states)
    aliases = list(decoder_plan.aliases)
    storage = aliases[number].storage
    assert storage is not None
    with assuming({"batch": 2, "seq": 4, "past": 7}):
        parts = (replace(storage.parts[0], first=first), *storage.parts[1:])
    aliases[number] = replace(aliases[number], storage=replace(storage, parts=parts))
    with pytest.raises(VerifyError, match=message):
        verify_plan(replace(decoder_plan, aliases=tuple(aliases)))


def test_nothing_copies_a_cache(decoder_plan: NetworkPlan) -> None:
    caches = {state.input for state in decoder_plan.states}
    assert len(caches) == len(CACHES)
    assert not any(caches & {*launch.args} for launch in decoder_plan.launches)


def test_two_decoders_in_turns_until_their_caches_are_full(
    decoder_module: Module,
    decoder: onnx.ModelProto,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pairs = [(decoder_module.session(), _Cached(decoder, b), b) for b in (2, 1)]
    for name in ("build", "allocate", "allocate_shared", "upload"):
        monkeypatch.setattr(Device, name, None)
    for count in (4, 1, 2, 1):
        for session, oracle, batch in pairs:
            ids = _words(rng, batch, count)
            found, wanted = session.run({"input_ids": ids}), oracle.step(ids)
            assert list(found) == ["logits"]
            np.testing.assert_allclose(found["logits"], wanted, atol=2e-5)
    session, oracle, _ = pairs[0]
    assert (session.length, session.capacity) == (8, 11)
    for name, array in session.states().items():
        np.testing.assert_allclose(array, oracle.states[name], atol=2e-5)
    ids = _words(rng, 2, 1)
    plain = decoder_module.run({"input_ids": ids, **oracle.states})
    np.testing.assert_allclose(plain["logits"], oracle.step(ids), atol=2e-5)
    with pytest.raises(InputError, match="expected batch=2 as its states have; got batch=1"):
        session.run({"input_ids": ids[:1]})
    session.run({"input_ids": _words(rng, 2, 4)})
    with pytest.raises(InputError, match=r"length of 0 to 11 before a call.*got 12; call reset"):
        session.run({"input_ids": ids})
    assert session.length == 12
    session.reset({name: array[:1] for name, array in pairs[1][1].states.items()})
    assert session.length == 8


def test_calls_of_other_lengths_alone_prepare_nothing(
    decoder_module: Module,
    decoder: onnx.ModelProto,
    rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, oracle = decoder_module.session(), _Cached(decoder, 1)
    for count in (2, 1, 1, 1):
        ids = _words(rng, 1, count)
        np.testing.assert_allclose(
            session.run({"input_ids": ids})["logits"], oracle.step(ids), atol=2e-5
        )
        if count == 1:
            monkeypatch.setattr(Device, "reader", None)
            monkeypatch.setattr(Device, "writer", None)


def test_states_that_do_not_go_together_are_refused(
    decoder_module: Module, decoder: onnx.ModelProto, rng: np.random.Generator
) -> None:
    session, oracle = decoder_module.session(), _Cached(decoder, 2)
    ids = _words(rng, 2, 3)
    oracle.step(ids)
    first, *others = oracle.states
    with pytest.raises(InputError, match=f"{others[0]}: expected a value as well.*past=3; got no"):
        session.reset({first: oracle.states[first]})
    for wrong in (oracle.states[first][:, :, :2], oracle.states[first][:1]):
        with pytest.raises(InputError, match=f"{first}: expected what.* with .*batch=2"):
            session.reset({**{name: oracle.states[name] for name in others}, first: wrong})
    session.reset(oracle.states)
    with pytest.raises(InputError, match="expected batch=2 as its states have; got batch=1"):
        session.run({"input_ids": ids[:1]})
    found = session.run({"input_ids": ids})["logits"]
    np.testing.assert_allclose(found, oracle.step(ids), atol=2e-5)


def test_calls_in_a_row_are_verified(decoder_module: Module, decoder: onnx.ModelProto) -> None:
    found = sequences.verify_calls(decoder_module, _Cached(decoder, 2), tolerance=TOLERANCE)
    assert found.passed
    assert len(found.outputs) == 1 + 2 * len(CACHES)  # what is kept, and what is new


def test_more_calls_are_verified_than_a_cache_has_space_for(
    decoder_module: Module, decoder: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequences, "CALLS", 12)
    assert sequences.verify_calls(decoder_module, _Cached(decoder, 2), tolerance=TOLERANCE).passed


def test_scores_of_one_query_read_keys_where_they_lie(opencl: Device) -> None:
    model, past = cached_decoder(layers=1), Size("past", 0, 255)
    with assuming({"past": 128}) as assumed:
        shapes = {"batch": (1,), "seq": (1,), "past": (dim_of(past),)}
        network = extract(optimise(with_states(import_model(model, shapes), ())))
        plan = build_plan(network, {}, opencl.spec, model_key="one", notes={})
        spaces = [t.space(opencl.spec) for t in network.tasks.values() if "multiply" in t.name]
    names = [sketch.name for space in spaces for sketch in space.sketches]
    assert names == [f"cpu.v{opencl.spec.vector_lanes()}.dots"]
    assert not assumed.conditions
    session, oracle = Module(join_plans([plan], [()]), opencl).session(), _Cached(model, 1)
    oracle.states = {name: array for name, array in oracle.states.items() if "_0_" in name}
    rng = np.random.default_rng(2)
    for held in (0, 3, 63, 200):
        states = {
            name: rng.standard_normal((1, HEADS, held, WIDE)).astype(np.float32)
            for name in oracle.states
        }
        session.reset(states)
        ids = _words(rng, 1, 1)
        found = session.run({"input_ids": ids})
        wanted = oracle({"input_ids": ids, **states})["logits"]
        np.testing.assert_allclose(found["logits"], wanted, atol=2e-5)


_MAIN = r"""
#include "network.h"
#include <stdio.h>

static int fail(void) { return fprintf(stderr, "%s\n", network_problem()), 1; }

int main(void) {
  struct network *network = network_open(".", NULL);
  if (!network) return fail();
  struct session *sessions[2] = {session_open(network), session_open(network)};
  long long ids[4];
  float logits[4 * WORDS];
  const void *inputs[INPUTS_HERE] = {ids};
  void *outputs[OUTPUTS_HERE] = {logits};
  int which, count;
  if (!sessions[0] || !sessions[1]) return fail();
  while (scanf("%d %d", &which, &count) == 2) {
    for (int i = 0; i < count; ++i)
      if (scanf("%lld", &ids[i]) != 1) return 1;
    if (!count && session_reset(sessions[which])) return fail();
    if (!count) continue;
    if (session_run(sessions[which], 1, count, inputs, outputs)) return fail();
    printf("%d", session_length(sessions[which]));
    for (int i = 0; i < count * WORDS; ++i) printf(" %.9g", logits[i]);
    printf("\n");
  }
  session_close(sessions[0]);
  session_close(sessions[1]);
  network_close(network);
  return 0;
}
"""


@pytest.mark.process
def test_sessions_of_a_c_program(
    decoder_plan: NetworkPlan, decoder: onnx.ModelProto, rng: np.random.Generator, tmp_path: Path
) -> None:
    folder = export_c(decoder_plan, tmp_path / "program")
    text = _MAIN.replace("WORDS", str(WORDS)).replace("INPUTS_HERE", str(1 + len(CACHES)))
    (folder / "main.c").write_text(text.replace("OUTPUTS_HERE", str(1 + len(CACHES))))
    build(folder, "WITHOUT_MAIN", more="main.c")
    oracles = [_Cached(decoder, 1) for _ in range(2)]
    lines, expected = list[str](), list[np.ndarray]()
    for which, count in ((0, 4), (1, 2), (0, 1), (1, 1), (0, 3)):
        ids = _words(rng, 1, count)
        lines.append(" ".join(map(str, [which, count, *ids[0]])))
        expected.append(oracles[which].step(ids).reshape(-1))
    more = ["0 0", "0 4 1 2 3 4", "0 4 1 2 3 4", "0 4 1 2 3 4", "0 1 1"]
    done = subprocess.run(
        ["./network"], cwd=folder, input="\n".join([*lines, *more]),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [np.array(line.split(), np.float64) for line in done.stdout.splitlines()]
    assert [int(row[0]) for row in found] == [4, 2, 5, 3, 8, 4, 8, 12], done.stderr
    for row, wanted in zip(found, expected, strict=False):
        np.testing.assert_allclose(row[1:], wanted, atol=2e-5)
    assert done.returncode == 1
    assert "expected a length of at most 11 before a call" in done.stderr
