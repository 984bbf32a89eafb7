"""Networks tuned for simulated boards whose bundles run on PoCL."""

from collections.abc import Callable
from pathlib import Path

import pytest

from retune.api import tune_network
from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.runtime.simulated import SimulatedModule, module_on, programs_of
from retune.bundle.verify.by_parts import parts_of
from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_reference
from retune.device.measure.child import Child
from retune.device.opencl.catalogue import device_spec
from retune.device.opening import board_of, open_device, spec_of
from retune.device.simulated.faults import Script, Turn
from retune.graph.passes.pipeline import optimise
from retune.pipeline.results import TuneEvent, TuneResult
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from retune.search.extract import extract
from retune.search.program import tune
from tests.support import dags
from tests.support.boards import fault, written
from tests.support.device_networks import write
from tests.support.host_networks import detector

pytestmark = pytest.mark.device

Tune = Callable[[str], TuneResult]


@pytest.fixture
def tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tune:
    """Tunes a small network from nothing for a board with such a script."""
    runs: list[Path] = []

    def run(text: str) -> TuneResult:
        folder = tmp_path / f"run{len(runs)}"
        folder.mkdir()
        runs.append(folder)
        monkeypatch.setenv("RETUNE_CACHE", str(folder / "cache"))
        model = str(write("bottleneck", tmp_path))
        device = f"sim:{written(folder, text, 'board-a')}"
        return tune_network(
            model, folder / "out", device=device, trials=16, records=folder / "records"
        )

    return run


def test_a_rehearsal_comes_out_the_same_each_time_and_is_verified(tuned: Tune):
    text = fault("hang", at=5) + fault("crash", share=0.1)
    first, second = tuned(text), tuned(text)
    assert first.verified.passed and first.verified.max_abs > 0
    assert {row.name for row in first.latency} == {"untuned", "tuned"}, "no peers"
    assert first.latency == second.latency
    assert first.statuses == second.statuses and "timeout" in dict(first.statuses)
    by_name = {row.name: row.median_us for row in first.latency}
    assert by_name["tuned"] < by_name["untuned"]


def test_layouts_are_measured_on_a_simulated_board(tmp_path: Path):
    events: list[TuneEvent] = []
    found = tune_network(
        write("bottleneck", tmp_path), tmp_path / "out",
        device=f"sim:{written(tmp_path, '', 'board-a')}", layout="auto", trials=48,
        records=tmp_path / "records", work=tmp_path / "work", progress=events.append,
    )  # fmt: skip
    (said,) = {event.text for event in events if event.stage == "layout" and "ms" in event.text}
    assert "of NHWC" in said and "of each kernel's best" in said
    phases = RecordStore(tmp_path / "records").scan(columns=["phase"])["phase"].value_counts()
    assert phases["layout"] > 0 and phases.sum() <= 48, "no more than the budget"
    assert found.verified.passed


@pytest.mark.slow
def test_a_candidate_that_is_wrong_in_its_bundle_only_is_convicted(tuned: Tune):
    found = tuned(fault("wrong_bundle", task="conv2d*"))
    assert found.verified.passed
    (convicted,) = quarantined(Path(found.records))
    assert "of the range from" in convicted.reason


def test_a_board_is_its_base_under_another_name(tmp_path: Path):
    name = f"sim:{written(tmp_path, name='board-a')}"
    here, base, opened = spec_of(name), device_spec("pocl"), open_device(name)
    assert opened.spec == here
    assert (here.name, here.model, here.driver) == ("board-a", "simulated board-a", "1")
    assert (here.opencl, here.compute_units) == (base.opencl, base.compute_units)
    child = Child(name)
    try:
        assert child.spec == here
    finally:
        child.close()


def test_one_expression_may_be_tuned_for_a_board(tmp_path: Path):
    device = f"sim:{written(tmp_path)}"
    found = tune(dags.dense(8, 16, 16), trials=8, device=device, records=tmp_path / "records")
    assert set(found.records["target"]) == {"simulated board"}
    assert found.time_us == found.records["median_us"].min()


def test_a_network_with_host_steps_deviates_part_by_part(tmp_path: Path):
    made, device = detector(tmp_path), f"sim:{written(tmp_path, fault('wrong_bundle', at=1))}"
    board = board_of(device)
    assert board is not None
    plan = build_plan(extract(optimise(made.graph)), {}, spec_of(device), model_key="", notes={})
    folder = write_bundle(plan, tmp_path / "module")
    reference = open_reference(made.path, made.graph)

    def passes() -> bool:
        module = module_on(read_bundle(folder), open_device(device))
        assert isinstance(module, SimulatedModule)
        parts = parts_of(module, made.path, made.graph)
        return verify(module, reference, module.random_inputs, parts=parts).passed

    assert passes()
    Script(board).claim([Turn(runs=tuple(programs_of(plan)[0]), spared=False)])
    assert not passes()
    rows = module_on(read_bundle(folder), open_device(device)).profile()
    assert [row.median_s == 0 for row in rows] == [row.host for row in rows]
