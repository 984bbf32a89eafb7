"""What is published is exact enough, and no slower than default schedules."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.verify.bench import Benchmark, BenchOptions, Ratio
from retune.core.target import GENERIC_CPU
from retune.pipeline import selection as selecting
from retune.pipeline import settling
from retune.pipeline.manifest import (
    CompileManifest,
    FinalistsManifest,
    Selection,
    SettledManifest,
    VerifyManifest,
)
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.racing import Raced
from retune.pipeline.request import TuneRequest
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from tests.device.networks import write
from tests.unit.search.fakes import FakeRunner, transformed_first


class World:
    """How a network of given selections deviates, how fast it is, and who wins a race."""

    def __init__(self) -> None:
        self.deviation: Callable[[Selection], float] = lambda selection: 1e-6
        self.ratio: Callable[[Selection], float] = lambda selection: 0.9
        self.doubt = 0.01
        self.winners: Callable[[str], bool] = lambda task_key: True
        self.compared: list[Selection] = []
        self.made: dict[str, Selection] = {}

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("stage_compile", "stage_verify", "race_in_place"):
            monkeypatch.setattr(settling, name, getattr(self, name))
        monkeypatch.setattr(settling, "open_examiner", lambda device: nullcontext(self))
        for module in (settling, selecting):
            monkeypatch.setattr(module, "spec_of", lambda name: GENERIC_CPU)

    def stage_compile(self, request, network, tasks, selection, variant) -> CompileManifest:
        key = f"{variant} {len(self.made)}"
        self.made[key] = selection
        return CompileManifest(
            key=key, folder=key, variant=variant, module="module", target="", kernels=0, launches=0,
            weight_bytes=0, arena_bytes=0, least_bytes=0, from_records=0, from_defaults=0,
        )  # fmt: skip

    def stage_verify(self, request, network, compiled) -> VerifyManifest:
        found = self.deviation(self.made[compiled.key])
        return VerifyManifest(
            oracle="", samples=1, max_abs=found, max_rel=found, tolerance=1e-4, passed=True
        )

    def compare(
        self, entrants: Mapping[str, Path], *, baseline: str, options: BenchOptions
    ) -> Benchmark:
        untuned, tuned = (self.made[str(entrants[name].parent)] for name in ("untuned", "tuned"))
        assert not untuned.best and baseline == "untuned" and options.precision < 0.01
        self.compared.append(tuned)
        gain = 1 / self.ratio(tuned)
        ratio = Ratio(
            name="tuned", baseline=baseline, ratio=gain,
            low=gain - self.doubt, high=gain + self.doubt,
        )  # fmt: skip
        return Benchmark(rounds=1, timings=(), ratios=(ratio,))

    def race_in_place(self, network, contenders: Mapping, spec, device, seed, time_left) -> Raced:
        leaders = {key: int(len(c) > 1 and self.winners(key)) for key, c in contenders.items()}
        return Raced(resolved=True, leaders=leaders, samples={}, passes=1, reference_us=1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    return made


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> TuneRequest:
    """A network whose Winograd layers are the fastest of the trials that are recorded."""
    folder = tmp_path_factory.mktemp("settling")
    folders = {name: str(folder / name) for name in ("out", "records", "work")}
    request = TuneRequest(model=str(write("square_windows", folder)), **folders, trials=60)
    tasks = [t for t in open_network(request).network.tasks.values() if t.tunable]
    settings = RunSettings(run_id="run", model="m", layout="NHWC", trials=60)
    session = Session(tasks, FakeRunner(transformed_first), RecordStore(request.records), settings)
    search_all(session)
    return request


@pytest.fixture
def request_(recorded: TuneRequest, tmp_path: Path, world: World) -> TuneRequest:
    """The same for a test of its own: nothing is settled yet."""
    return replace(recorded, work=str(tmp_path / "work"))


def settled(request: TuneRequest) -> tuple[Selection, SettledManifest]:
    """What was selected, and what became of it."""
    network = stage_import(request)
    tasks = stage_extract(request, network)
    chosen = selecting.stage_select(request, tasks, FinalistsManifest())
    assert len(chosen.best) > 1
    return chosen, settling.stage_settle(request, network, tasks, chosen)


def errors(request: TuneRequest, chosen: Selection) -> dict[str, float]:
    """The stated error of each task's strategy."""
    network = selecting.selected_network(request, chosen)
    return {
        key: network.tasks[key].space(GENERIC_CPU).sketch(candidate.sketch).error
        for key, candidate in selecting.selected_candidates(request, chosen).items()
    }


def test_a_faster_and_exact_selection_stays(request_: TuneRequest):
    chosen, done = settled(request_)
    assert done.selection == chosen
    assert done.ratio == pytest.approx(0.9)
    assert (done.deviation, done.given_back) == (1e-6, ())


def test_steps_that_lose_get_their_default_back(request_: TuneRequest, world: World):
    first: list[str] = []
    world.winners = lambda key: key != first[0]
    world.ratio = lambda s: 1.05 if first[0] in {b.task_key for b in s.best} else 0.95
    tasks = open_network(request_).network.tasks
    first.append(next(key for key, task in tasks.items() if task.tunable))
    chosen, done = settled(request_)
    assert done.given_back == (first[0],) and done.ratio == pytest.approx(0.95)
    assert done.selection.best == tuple(b for b in chosen.best if b.task_key != first[0])


@pytest.mark.parametrize("ratio", [1.01, 0.995])
def test_a_bundle_that_is_not_faster_beyond_doubt_is_not_published(
    request_: TuneRequest, world: World, ratio: float
):
    world.ratio = lambda s: ratio
    chosen, done = settled(request_)
    assert done.selection.best == () and done.ratio is None
    assert set(done.given_back) == {b.task_key for b in chosen.best}


def test_the_least_exact_strategies_are_given_up_until_it_is_exact(
    request_: TuneRequest, world: World
):
    limit = 1e-7
    world.deviation = lambda s: 1e-3 if max(errors(request_, s).values()) > limit else 1e-6
    chosen, done = settled(request_)
    before, after = errors(request_, chosen), errors(request_, done.selection)
    assert max(before.values()) > limit >= max(after.values())
    assert done.deviation == 1e-6
    limited = dict(done.selection.limits)
    assert limited and all(limited[key] < before[key] for key in limited if before[key] > limit)
    unlimited = [b for b in chosen.best if b.task_key not in limited]
    assert all(b in done.selection.best for b in unlimited), "the others keep their records"


@pytest.mark.slow
def test_where_nothing_is_left_to_give_up_the_deviation_is_told(
    request_: TuneRequest, world: World
):
    world.deviation = lambda s: 5e-5
    _, done = settled(request_)
    assert done.deviation == 5e-5
    assert not any(errors(request_, done.selection).values())


def test_nothing_selected_is_compared_with_nothing(request_: TuneRequest, world: World):
    request = replace(request_, records=str(Path(request_.records) / "empty"))
    network = stage_import(request)
    tasks = stage_extract(request, network)
    chosen = Selection(target="")
    done = settling.stage_settle(request, network, tasks, chosen)
    assert done.selection.best == () and done.ratio is None and not world.compared
