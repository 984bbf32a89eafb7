"""What is compiled is right, exact enough, and no slower than default schedules.

The chain's own loop runs here, over bundles that are made up: `World` says how a network of a given
selection deviates, how fast it is, and which finalists are faster.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.verify.bench import Benchmark, BenchOptions, Speedup
from retune.core.errors import DeviceError
from retune.core.layouts import ALL_NHWC, KeptLayouts, LayoutAssignment, LayoutPlan
from retune.core.target import GENERIC_CPU
from retune.pipeline import chain, validation
from retune.pipeline import selection as selecting
from retune.pipeline.calling import InProcess
from retune.pipeline.finalists import InNetwork
from retune.pipeline.manifest import CompileManifest, Constraints, Selection, VerifyManifest
from retune.pipeline.network import open_network, stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.selection import best_record, network_context, stated_errors
from retune.records import ranking
from retune.records.quarantine import quarantined
from retune.records.store import RecordStore
from tests.support.search_fakes import HERE, transformed_first
from tests.support.searched import searched_request


class World:
    """How a network of given selections deviates, how fast it is, and what is faster in it."""

    def __init__(self) -> None:
        self.offending: set[str] = set()
        self.fails: Callable[[], None] = lambda: None
        self.tolerance = 1e-4
        self.deviation: Callable[[Selection], float] = self.deviates
        self.ratio: Callable[[Selection], float] = lambda selection: 0.9
        self.nhwc_ratio = 0.9
        self.doubt = 0.01
        self.winners: Callable[[str], bool] = lambda task_key: True
        self.compared: list[Selection] = []
        self.verified = 0
        self.steps: Callable[[str], str] = lambda variant: ""
        self.made: dict[str, Selection] = {}

    def deviates(self, selection: Selection) -> float:
        return 0.5 if self.offending & ids(selection) else 1e-6

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("stage_compile", "stage_verify", "compare_in_network"):
            monkeypatch.setattr(validation, name, getattr(self, name))
        monkeypatch.setattr(validation, "open_examiner", lambda device: nullcontext(self))
        for module in (validation, selecting):
            monkeypatch.setattr(module, "spec_of", lambda name: GENERIC_CPU)

    def stage_compile(self, request, network, tasks, selection, variant) -> CompileManifest:
        key = f"{variant} {len(self.made)}"
        self.made[key] = selection
        return CompileManifest(
            key=key, folder=key, variant=variant, module="module", target="", kernels=0, launches=0,
            weight_bytes=0, arena_bytes=0, least_bytes=0, from_records=0, from_defaults=0,
            steps_key=self.steps(variant),
        )  # fmt: skip

    def stage_verify(self, request, network, compiled) -> VerifyManifest:
        self.verified += 1
        found = self.deviation(self.made[compiled.key])
        if found > self.tolerance:
            self.fails()
        return VerifyManifest(
            oracle="", samples=1, max_abs=found, max_rel=found, tolerance=self.tolerance,
            passed=found <= self.tolerance,
        )  # fmt: skip

    def compare(
        self, entrants: Mapping[str, Path], *, baseline: str, options: BenchOptions
    ) -> Benchmark:
        untuned, tuned = (self.made[str(entrants[name].parent)] for name in ("untuned", "tuned"))
        assert baseline == "untuned" and options.precision < 0.01
        in_nhwc = tuned.layouts.activations and not untuned.layouts.activations and untuned.best
        assert in_nhwc or not untuned.best
        self.compared.append(tuned)
        gain = 1 / (self.nhwc_ratio if in_nhwc else self.ratio(tuned))
        ratio = Speedup(
            name="tuned", baseline=baseline, ratio=gain,
            low=gain - self.doubt, high=gain + self.doubt,
        )  # fmt: skip
        return Benchmark(rounds=1, timings=(), ratios=(ratio,))

    def compare_in_network(
        self, network, finalists: Mapping, spec, device, seed, budget_s
    ) -> InNetwork:
        leaders = {key: int(len(c) > 1 and self.winners(key)) for key, c in finalists.items()}
        return InNetwork(resolved=True, leaders=leaders, samples={}, iterations=1, reference_us=1.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    made.install(monkeypatch)
    return made


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> TuneRequest:
    """A network whose Winograd layers are the fastest of the trials that are recorded."""
    folder = tmp_path_factory.mktemp("validation")
    return searched_request("square_windows", folder, transformed_first, trials=60)


@pytest.fixture
def request_(recorded: TuneRequest, tmp_path: Path, world: World) -> TuneRequest:
    """The same for a test of its own: nothing is validated or in quarantine yet."""
    shutil.copytree(recorded.records, tmp_path / "records")
    return replace(recorded, records=str(tmp_path / "records"), work=str(tmp_path / "work"))


def selected(request: TuneRequest) -> Selection:
    """What is chosen before anything is known of its bundle."""
    tasks = stage_extract(request, stage_import(request))
    chosen = selecting.stage_choose(request, tasks)
    assert len(chosen.best) > 1
    return chosen


def validated(
    request: TuneRequest, constraints: Constraints | None = None
) -> tuple[Selection, Constraints]:
    """The chain's loop."""
    network = stage_import(request)
    tasks = stage_extract(request, network)
    return chain.select(request, network, tasks, constraints or Constraints(), InProcess())


def ids(selection: Selection) -> set[str]:
    return {best.record_id for best in selection.best}


def denied(constraints: Constraints) -> set[str]:
    return {record_id for _, record_id in constraints.denied}


def errors(request: TuneRequest, chosen: Selection) -> dict[str, float]:
    """The stated error of each task's strategy."""
    network = selecting.selected_network(request, chosen)
    return {
        key: network.tasks[key].space(GENERIC_CPU).sketch(candidate.sketch).error
        for key, candidate in selecting.selected_candidates(request, chosen).items()
    }


# -- comparison with default schedules -------------------------------------------------------------


def test_a_faster_and_exact_selection_stays(request_: TuneRequest, world: World):
    chosen = selected(request_)
    done, constraints = validated(request_)
    assert done == chosen and len(world.compared) == 1
    assert constraints.ratio == pytest.approx(0.9)
    assert constraints.binding == Constraints().binding
    assert quarantined(Path(request_.records)) == ()


@pytest.mark.parametrize("same", [True, False])
def test_records_of_default_schedules_are_not_called_faster_than_these(
    request_: TuneRequest, world: World, same: bool
):
    """Equal steps in another form, chosen under other load, took 1/1.5 of the time."""
    world.ratio = lambda _: 0.67
    world.steps = lambda variant: "default" if same else variant
    done, constraints = validated(request_)
    assert done == selected(request_), "they are published as they are"
    assert constraints.ratio == (None if same else pytest.approx(0.67))
    assert len(world.compared) == (not same) and constraints.given_back == ()


def test_steps_that_lose_get_their_default_back(request_: TuneRequest, world: World):
    first: list[str] = []
    world.winners = lambda key: key != first[0]
    world.ratio = lambda s: 1.05 if first[0] in {b.task_key for b in s.best} else 0.95
    tasks = open_network(request_).network.tasks
    first.append(next(key for key, task in tasks.items() if task.tunable))
    chosen = selected(request_)
    done, constraints = validated(request_)
    assert constraints.given_back == (first[0],) and constraints.ratio == pytest.approx(0.95)
    assert done.best == tuple(b for b in chosen.best if b.task_key != first[0])


@pytest.mark.parametrize("ratio", [1.01, 0.995])
@pytest.mark.parametrize("losers", [0, 1])
def test_a_bundle_that_is_not_faster_beyond_doubt_is_not_published(
    request_: TuneRequest, world: World, ratio: float, losers: int
):
    chosen = selected(request_)
    slower = {b.task_key for b in chosen.best[:losers]}
    world.ratio, world.winners = (lambda s: ratio), (lambda key: key not in slower)
    done, constraints = validated(request_)
    assert done.best == () and constraints.ratio is None
    assert set(constraints.given_back) == {b.task_key for b in chosen.best}
    assert len(world.compared) == 1 + losers


@pytest.mark.parametrize("shown", [0.004, 0.02])
def test_winners_are_compared_again_only_if_the_network_has_shown_a_gain(
    request_: TuneRequest, world: World, shown: float
):
    """A bundle that may be 0.5 % faster, and of whose winners one is slower than its default."""
    first = selected(request_).best[0].task_key
    world.ratio, world.winners = (lambda _: 0.995), (lambda key: key != first)
    full = replace(request_, effort="full")
    compared = Constraints(saved=(shown, 0.03), iterations=100)
    done, constraints = validated(full, compared)
    assert done.best == () and constraints.ratio is None
    assert len(world.compared) == (2 if shown > full.least_gain else 1)


def test_of_records_of_others_those_that_lose_are_given_up(request_: TuneRequest, world: World):
    """Not all of them because the bundle is not faster; they were taken elsewhere."""
    world.ratio = lambda _: 1.05
    chosen = selected(request_)
    first, *rest = chosen.best
    world.winners = lambda key: key != first.task_key
    shared = replace(chosen, best=tuple(replace(each, elsewhere=True) for each in (first, *rest)))
    network = stage_import(request_)
    tasks = stage_extract(request_, network)
    found = validation.stage_compare(request_, network, tasks, shared, Constraints())
    assert found.given_back == (first.task_key,)


def test_nothing_selected_is_compared_with_nothing(request_: TuneRequest, world: World):
    done, constraints = validated(replace(request_, records=f"{request_.records}/empty"))
    assert done.best == () and constraints.ratio is None and not world.compared


@pytest.mark.parametrize("ratio", [0.9, 0.995])
def test_layouts_stay_where_the_bundle_is_faster_with_them(
    request_: TuneRequest, world: World, ratio: float
):
    world.nhwc_ratio = ratio
    plan = LayoutAssignment(activations={"no such activation": KeptLayouts("NCHW16c")})
    done, constraints = validated(replace(request_, layout="auto"), Constraints(layouts=plan))
    assert constraints.nhwc_ratio == pytest.approx(ratio)
    assert done.layouts == constraints.layouts == (plan if ratio < 0.95 else ALL_NHWC)
    assert constraints.ratio == pytest.approx(0.9) and len(world.compared) == 2


def test_the_place_of_a_time_is_the_network_and_its_layouts():
    layouts = LayoutAssignment(activations={"image": KeptLayouts("NCHW16c")})
    plain, timed = LayoutPlan(kernels_us={"conv": 7.0}), LayoutPlan(layouts=layouts)
    nhwc = network_context("model", ALL_NHWC)
    assert network_context("model", plain.layouts) == nhwc, "all in NHWC"
    assert network_context("model", timed.layouts) == network_context("model", layouts) != nhwc


# -- exactness -------------------------------------------------------------------------------------


def test_the_least_exact_strategies_are_given_up_until_it_is_exact(
    request_: TuneRequest, world: World
):
    limit = 1e-7
    world.deviation = lambda s: 5e-5 if max(errors(request_, s).values()) > limit else 1e-6
    chosen = selected(request_)
    done, constraints = validated(request_)
    before, after = errors(request_, chosen), errors(request_, done)
    assert max(before.values()) > limit >= max(after.values())
    limited = dict(done.limits)
    assert done.limits == constraints.limits
    assert limited and all(limited[key] < before[key] for key in limited if before[key] > limit)
    unlimited = [b for b in chosen.best if b.task_key not in limited]
    assert all(b in done.best for b in unlimited), "the others keep their records"


@pytest.mark.slow
def test_where_nothing_is_left_to_give_up_the_deviation_stays(request_: TuneRequest, world: World):
    world.deviation = lambda s: 5e-5
    done, _ = validated(request_)
    assert not any(errors(request_, done).values())


def test_what_stated_errors_explain_denies_no_record(request_: TuneRequest, world: World):
    chosen = selected(request_)
    explained = max(stated_errors(request_, chosen).values())
    world.deviation = lambda s: explained if ids(s) == ids(chosen) else 1e-9
    world.tolerance = explained / 2
    done, constraints = validated(request_)
    assert constraints.denied == () and quarantined(Path(request_.records)) == ()
    assert constraints.limits and ids(done) != ids(chosen)


# -- records that make their network wrong ---------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_offending_records_are_replaced_by_the_next_best_and_never_win_again(
    request_: TuneRequest, world: World, count: int
):
    chosen = selected(request_)
    offending = chosen.best[1 : 1 + count]
    world.offending = {best.record_id for best in offending}
    after, constraints = validated(request_)
    assert denied(constraints) == world.offending
    entries = quarantined(Path(request_.records))
    assert {e.record_id for e in entries} == world.offending
    assert "wrong: 5.0e-01 of the range" in entries[0].reason
    assert not ids(after) & world.offending
    assert ids(chosen) - world.offending <= ids(after), "the others keep theirs"
    assert {b.task_key for b in after.best} == {b.task_key for b in chosen.best}
    store = RecordStore(request_.records)
    for best in offending:
        found = ranking.top(store, best.task_key, HERE, 1000)
        assert found and best.record_id not in {record.record_id for record in found}
        (entry,) = [e for e in entries if e.record_id == best.record_id]
        assert entry.config_hash not in {record.config_hash for record in found}
    world.offending = set()
    assert not ids(selected(request_)) & {best.record_id for best in offending}, "nor tomorrow"


def test_the_others_keep_their_inexact_strategies(request_: TuneRequest, world: World):
    """Without the search for it a wrong record would pass for an inexact one."""
    chosen = selected(request_)
    inexact, *others = [b for b in chosen.best if b.task_key in stated_errors(request_, chosen)]
    world.offending = {inexact.record_id}
    done, _ = validated(request_)
    assert {b.record_id for b in others} <= ids(done) and others
    assert done.limits == ()


def test_what_replaces_an_inexact_strategy_may_be_offending_as_well(
    request_: TuneRequest, world: World
):
    chosen = selected(request_)
    world.deviation = lambda s: 5e-5 if ids(s) == ids(chosen) else world.deviates(s)
    other, _ = validated(replace(request_, work=f"{request_.work}-before"))
    world.offending = ids(other) - ids(chosen)
    assert world.offending
    done, constraints = validated(request_)
    assert denied(constraints) == world.offending and constraints.limits
    assert not ids(done) & world.offending


def test_where_the_next_best_is_wrong_too_it_goes_as_well(request_: TuneRequest, world: World):
    task_key = selected(request_).best[0].task_key
    wrong = ranking.top(RecordStore(request_.records), task_key, HERE, 2)
    world.offending = {record.record_id for record in wrong}
    done, constraints = validated(request_)
    assert denied(constraints) == world.offending
    assert not ids(done) & world.offending


def test_no_record_offends_where_default_schedules_are_wrong_as_well(
    request_: TuneRequest, world: World
):
    world.deviation = lambda s: 0.5
    _, constraints = validated(request_)
    assert constraints.denied == () and quarantined(Path(request_.records)) == ()


def test_a_record_that_takes_the_device_down_is_denied(request_: TuneRequest, world: World):
    world.offending = {selected(request_).best[0].record_id}

    def lost() -> None:
        raise DeviceError("the device did not answer")

    world.fails = lost
    _, constraints = validated(request_)
    assert denied(constraints) == world.offending
    (entry,) = quarantined(Path(request_.records))
    assert "does not run: the device did not answer" in entry.reason


def test_a_device_that_is_lost_once_denies_no_record(request_: TuneRequest, world: World):
    world.offending = {selected(request_).best[0].record_id}

    def lost() -> None:
        world.offending = set()
        raise DeviceError("the device did not answer")

    world.fails = lost
    _, constraints = validated(request_)
    assert constraints.denied == ()


def test_a_process_that_was_killed_after_the_verdict_goes_on(request_: TuneRequest, world: World):
    """The same again: the winner of the comparison is in quarantine, and is not chosen."""
    first = selected(request_).best[0]
    given = Constraints(winners=(first,))
    world.offending = {first.record_id}
    done, constraints = validated(request_, given)
    again, nothing = validated(replace(request_, work=f"{request_.work}-again"), given)
    assert constraints.denied and not nothing.denied
    assert again == done


def test_after_some_attempts_a_task_keeps_its_default_schedule(request_: TuneRequest, world: World):
    chosen = selected(request_)
    task_key = chosen.best[0].task_key
    every = ranking.top(RecordStore(request_.records), task_key, HERE, 1000)
    world.offending = {record.record_id for record in every}
    assert len(every) > 3
    done, constraints = validated(request_)
    assert len(constraints.denied) == 3
    assert {best.task_key for best in chosen.best} - {best.task_key for best in done.best} == {
        task_key
    }


def test_a_selection_is_validated_once(request_: TuneRequest, world: World):
    world.offending = {selected(request_).best[0].record_id}
    first, _ = validated(request_)
    again, constraints = validated(request_)
    verified = world.verified
    assert again == first and constraints.denied == (), "the record is in quarantine by now"
    assert validated(request_) == (again, constraints) and world.verified == verified


def test_the_winner_of_a_comparison_goes_before_faster_records(request_: TuneRequest, world: World):
    first = selected(request_).best[0]
    _, second = ranking.top(RecordStore(request_.records), first.task_key, HERE, 2)
    winner = replace(best_record(second), time_us=77.0, default_us=99.0)
    done, _ = validated(request_, Constraints(winners=(winner,)))
    assert done.best[0] == winner
    world.offending = {winner.record_id}
    elsewhere = replace(request_, work=f"{request_.work}-again")
    fallen, _ = validated(elsewhere, Constraints(winners=(winner,)))
    assert fallen.best[0] == first, "by times of the task alone"
