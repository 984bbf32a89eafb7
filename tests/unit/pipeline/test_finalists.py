"""Which finalists are compared, and what becomes of those that lose the process they run in."""

from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import FinalistsPlan
from retune.bundle.verify.in_network_child import Iterations
from retune.bundle.weights import map_file, view_weights
from retune.core.errors import DeviceError
from retune.core.stopwatch import Stopwatch
from retune.core.target import GENERIC_CPU
from retune.device.measure.child import ChildLostError
from retune.pipeline import finalists as comparing
from retune.pipeline.manifest import ImportManifest
from retune.pipeline.network import import_network
from retune.pipeline.request import TuneRequest
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from retune.targets.cost.estimate import default_candidate
from tests.support.boards import written
from tests.support.device_networks import write
from tests.support.search_fakes import FakeRunner, measured


class FakeChild:
    """Finalist 1 of the first compared slot kills it; of the others the highest is fastest."""

    opened = 0
    deadly: tuple[int, int] | None = None
    waited = 0.0

    def __init__(self, device: str, plan: FinalistsPlan, weights: Path) -> None:
        type(self).opened += 1
        assert not plan.plan.weights
        stored = view_weights(map_file(weights))
        assert stored.keys() == {b.name for b in plan.plan.buffers if b.role == "weight"}
        self.resolved = True
        self.slots = len(plan.slots)

    def run(self, choices: np.ndarray) -> Iterations:
        if self.deadly is not None and (choices[:, self.deadly[0]] == self.deadly[1]).any():
            raise ChildLostError("crash", "the process died of SIGSEGV")
        return Iterations(seconds=1.0 / (1.0 + choices), reference_us=1000.0, waited=self.waited)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("finalists")
    network = import_network(str(write("bottleneck", folder))).network
    tasks = [t for t in network.tasks.values() if t.tunable]
    settings = RunSettings(run_id="run", model="m", layout="NHWC", trials=80, tuner="random")
    made = Session(tasks, FakeRunner(measured), RecordStore(folder / "records"), settings)
    search_all(made)
    return made


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> type[FakeChild]:
    class Own(FakeChild):
        opened = 0

    monkeypatch.setattr(comparing, "FinalistsChild", Own)
    return Own


def compared(
    session: Session, folder: Path, budget_s: float = 1e9, least_gain: float = 0.01
) -> tuple[list[str], comparing.InNetwork]:
    network = import_network(str(write("bottleneck", folder))).network
    finalists = comparing.choose_finalists(session, 1e9)
    candidates = {key: [candidate for candidate, _ in found] for key, found in finalists.items()}
    given = GENERIC_CPU, "pocl", 0, budget_s, least_gain
    found = comparing.compare_in_network(network, candidates, *given)
    return list(candidates), found


def test_the_default_comes_first_and_each_candidate_once(session: Session):
    finalists = comparing.choose_finalists(session, 1e9)
    assert finalists.keys() == {run.task.key for run in session.runs}
    for run in session.runs:
        chosen = [candidate for candidate, _ in finalists[run.task.key]]
        assert chosen[0] == default_candidate(run.space, GENERIC_CPU)
        assert len(set(chosen)) == len(chosen) <= 1 + comparing.MOST
    assert max(map(len, finalists.values())) == 1 + comparing.MOST


def test_without_time_each_task_has_its_best_and_its_default(session: Session):
    finalists = comparing.choose_finalists(session, 0.0)
    assert {len(found) for found in finalists.values()} == {2}


def test_the_fastest_in_place_wins(session: Session, child: type[FakeChild], tmp_path: Path):
    keys, found = compared(session, tmp_path)
    counts = {key: len(samples) for key, samples in found.samples.items()}
    assert found.leaders == {key: count - 1 for key, count in counts.items()}
    assert child.opened == 1 and found.reference_us == 1000.0 and keys
    assert found.saved[1] > 0.5


def test_who_loses_the_process_twice_is_out_of_the_compared(
    session: Session, child: type[FakeChild], tmp_path: Path
):
    network = import_network(str(write("bottleneck", tmp_path))).network
    finalists = comparing.choose_finalists(session, 1e9)
    candidates = {key: [candidate for candidate, _ in found] for key, found in finalists.items()}
    plan = comparing.build_finalists(network, candidates, GENERIC_CPU, model_key="", notes={})
    slot = next(i for i, s in enumerate(plan.slots) if len(s.finalists) > 2)
    victim, last = plan.slots[slot].task_key, len(plan.slots[slot].finalists) - 1
    child.deadly = (slot, last)
    _, found = compared(session, tmp_path)
    assert found.leaders[victim] == last - 1, "the next best of that task"
    assert all(
        leader == len(candidates[key]) - 1 for key, leader in found.leaders.items() if key != victim
    )


def test_where_the_defaults_lose_it_too_there_is_no_compared(
    session: Session, child: type[FakeChild], tmp_path: Path
):
    child.deadly = (0, 0)
    with pytest.raises(ChildLostError):
        compared(session, tmp_path)


def test_on_a_simulated_device_finalists_are_chosen_by_their_records(
    session: Session, child: type[FakeChild], tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    device = f"sim:{written(tmp_path, name='board-a')}"
    request = TuneRequest(model="m", out="out", records="records", work="work", device=device)
    network = ImportManifest(
        model_key="", layout="NHWC", inputs=(), output_values=(), nodes=0,
        parameters=0, flops=0, passes=(),
    )  # fmt: skip
    with caplog.at_level("INFO", logger="retune.pipeline"):
        found = comparing.compare_finalists(request, network, session, 1e9)
    assert found.winners == () and not child.opened
    assert found.uncompared == "board-a is simulated"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "board-a is simulated: finalists are chosen by their records")
    ]
    with pytest.raises(DeviceError, match="is simulated: finalists are chosen by their records"):
        comparing.compare_in_network(
            import_network(str(write("bottleneck", tmp_path))).network,
            {}, GENERIC_CPU, device, 0, 1e9,
        )  # fmt: skip


def test_building_takes_no_time_from_the_iterations(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = [0.0]

    class Slow(FakeChild):
        def __init__(self, *given) -> None:
            super().__init__(*given)
            now[0] += 1000.0

        def run(self, choices: np.ndarray) -> Iterations:
            now[0] += 1.0
            return Iterations(seconds=np.ones(choices.shape), reference_us=1000.0)

    monkeypatch.setattr(comparing, "FinalistsChild", Slow)
    monkeypatch.setattr(comparing, "Stopwatch", lambda: Stopwatch(lambda: now[0]))
    _, found = compared(session, tmp_path, budget_s=25.0, least_gain=0.0)
    rounds = {min(map(len, samples)) for samples in found.samples.values()}
    assert rounds == {10}, "all that building may not take"


@pytest.mark.parametrize(("least", "rounds"), [(0.0, 24), (0.01, 12)])
def test_where_nothing_can_be_gained_the_comparison_ends_early(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: float, rounds: int
):
    class Alike(FakeChild):
        def run(self, choices: np.ndarray) -> Iterations:
            return Iterations(seconds=np.ones(choices.shape), reference_us=1000.0)

    monkeypatch.setattr(comparing, "FinalistsChild", Alike)
    _, found = compared(session, tmp_path, least_gain=least)
    assert found.saved == (0.0, 0.0) and set(found.leaders.values()) == {0}
    assert {min(map(len, samples)) for samples in found.samples.values()} == {rounds}


def test_where_others_have_the_cores_records_decide(
    session: Session, tmp_path: Path, child: type[FakeChild]
):
    child.waited = 0.39
    compared(session, tmp_path)
    child.waited = 0.83
    with pytest.raises(comparing.ProcessorBusy, match="threads waited for 83% of the time"):
        compared(session, tmp_path)
