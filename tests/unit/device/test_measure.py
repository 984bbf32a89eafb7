"""LocalRunner's decisions, with a child that is only pretended."""

from dataclasses import replace

import pytest

from benchmarks.replay import ReplayRunner
from retune.codegen.source import (
    ProgramSource,
)
from retune.core.errors import InputError, LookupFailed
from retune.core.target import GENERIC_CPU
from retune.device.measure.child import ChildLostError
from retune.device.measure.local import LocalRunner, MeasureOptions
from retune.device.measure.messages import (
    Build,
    Check,
    LoadArrays,
    Refused,
    Reply,
    Request,
    Time,
    Warm,
)
from retune.records.cost import measured_costs
from retune.records.schema import succeeded
from tests.support.measure import CALM, WORKLOAD, FakeChild, program


def runner_of(child: FakeChild) -> LocalRunner:
    runner = LocalRunner("fake", builders=1, make_child=lambda name: child)
    runner.prepare(WORKLOAD)
    return runner


def sharing(count: int) -> list[ProgramSource]:
    """Candidates that are built in one program."""
    return [program("k", text=f"k_group(int {n});", single_item=True) for n in range(count)]


def always(request: Request) -> None:
    return None


def test_only_the_child_that_measures_is_pinned_to_cores():
    made: list[bool] = []

    def make(name: str, *, pinned: bool = True) -> FakeChild:
        made.append(pinned)
        return FakeChild(always)

    LocalRunner("pocl", builders=3, make_child=make)
    assert made[0] and not any(made[1:])


def test_a_right_candidate_has_its_median_and_its_reference():
    rows = runner_of(FakeChild(always)).measure("task", [program()], MeasureOptions())
    assert [row.status for row in rows] == ["ok"]
    assert rows[0].median_us == 2.0
    assert rows[0].reference_us == 101.0
    assert rows[0].max_abs_err == 0.5


def test_everything_is_built_before_anything_runs():
    child = FakeChild(always)
    runner_of(child).measure("task", [program("a"), program("b")], MeasureOptions())
    kinds = [type(item).__name__ for item in child.seen]
    assert kinds[:4] == ["Build", "Warm"] * 2
    assert kinds[4:9] == ["LoadArrays", "Check", "Time", "Check", "Time"]


def test_what_is_only_compiled_does_not_run():
    refused = Refused(status="compile_error", error="no")
    child = FakeChild(
        lambda item: (
            refused
            if isinstance(item, Build) and any("bad" in job.text for job in item.jobs.values())
            else None
        )
    )
    rows = runner_of(child).compile("task", [program("a"), program("bad")], MeasureOptions())
    assert [(row.status, row.error) for row in rows] == [
        ("skipped", "compiled only"),
        ("compile_error", "no"),
    ]
    assert not child.count(LoadArrays) and not child.count(Check)


def test_constants_are_packed_on_the_way():
    child = FakeChild(always)
    runner_of(child).measure("task", [program()], MeasureOptions())
    check = next(item for item in child.seen if isinstance(item, Check))
    assert check.constants["w"].tolist() == [3, 2, 1, 0]


def test_a_disturbed_moment_is_measured_again():
    shaken = replace(CALM, after_us=200.0)
    replies = iter([shaken, CALM])
    child = FakeChild(lambda item: next(replies) if isinstance(item, Time) else None)
    rows = runner_of(child).measure("task", [program()], MeasureOptions())
    assert rows[0].reference_us == 101.0
    assert child.count(Time) == 2


def test_a_moment_that_stays_disturbed_gives_the_calmest_times():
    ratios = iter([3.0, 1.5, 2.0, 1.0])
    child = FakeChild(
        lambda item: (
            replace(CALM, after_us=100.0 * next(ratios)) if isinstance(item, Time) else None
        )
    )
    rows = runner_of(child).measure("task", [program()], MeasureOptions(disturbed_retries=2))
    assert child.count(Time) == 3
    assert rows[0].reference_us == 125.0


def test_a_crash_is_a_row_and_the_next_candidate_gets_a_fresh_child():
    deaths = iter([ChildLostError("crash", "died of SIGSEGV")] * 2)
    child = FakeChild(lambda item: next(deaths, None) if isinstance(item, Check) else None)
    rows = runner_of(child).measure("task", [program("a"), program("b")], MeasureOptions())
    assert [row.status for row in rows] == ["crash", "ok"]
    assert rows[0].error == "the first run: died of SIGSEGV"
    assert child.count(LoadArrays) == 3
    assert child.count(Build) == 4


@pytest.mark.parametrize("kind", [Build, Warm, Check, Time])
@pytest.mark.parametrize("status", ["crash", "timeout"])
def test_one_crash_or_timeout_convicts_nobody(kind: type, status):
    """Such as of a machine that was busy, or of a driver that lost its device."""
    deaths = iter([ChildLostError(status, "once")])
    child = FakeChild(lambda item: next(deaths, None) if isinstance(item, kind) else None)
    rows = runner_of(child).measure("task", [program("a"), program("b")], MeasureOptions())
    assert [row.status for row in rows] == ["ok", "ok"]
    assert child.closed == 1, "the second attempt is in a fresh child"


def test_a_second_crash_convicts_by_its_own_message():
    deaths = iter([ChildLostError("timeout", "busy"), ChildLostError("crash", "died")])
    child = FakeChild(lambda item: next(deaths, None) if isinstance(item, Time) else None)
    (row,) = runner_of(child).measure("task", [program()], MeasureOptions())
    assert (row.status, row.error) == ("crash", "timing: died")
    assert child.count(Time) == 2


def test_after_a_crash_the_fresh_child_gets_the_program_that_was_shared():
    died = ChildLostError("crash", "died")
    deaths = iter([None, died, died])
    child = FakeChild(lambda item: next(deaths, None) if isinstance(item, Check) else None)
    rows = runner_of(child).measure("task", sharing(3), MeasureOptions())
    assert [row.status for row in rows] == ["ok", "crash", "ok"]
    first, alone, again = (item for item in child.seen if isinstance(item, Build))
    assert first == again
    assert len(first.jobs) == 3
    assert list(alone.jobs.values()) == [list(first.jobs.values())[1]]
    checked = [item.index for item in child.seen if isinstance(item, Check)]
    assert checked == sorted([*first.jobs, *alone.jobs], key=[0, 1, 3, 2].index)


@pytest.mark.parametrize("kind", [Check, Time])
def test_a_candidate_that_fails_only_beside_others_is_not_blamed(kind: type):
    programs_of: dict[int, int] = {}

    def answer(request: Request) -> Reply | None:
        if isinstance(request, Build):
            programs_of.update(dict.fromkeys(request.jobs, len(request.jobs)))
        last = next((i.index for i in reversed(child.seen) if isinstance(i, Check)), None)
        spoilt = isinstance(request, kind) and last is not None and programs_of[last] > 1
        return Refused(status="wrong_result", error="beside others") if spoilt else None

    child = FakeChild(answer)
    runner = runner_of(child)
    rows = runner.measure("task", sharing(2), MeasureOptions())
    assert [row.status for row in rows] == ["ok", "ok"]
    assert [len(item.jobs) for item in child.seen if isinstance(item, Build)] == [2, 1, 1]
    runner.measure("task", sharing(2), MeasureOptions())
    assert all(len(item.jobs) == 1 for item in child.seen[-6:] if isinstance(item, Build))


def test_a_candidate_with_a_program_of_its_own_has_one_attempt():
    refusal = Refused(status="wrong_result", error="off")
    child = FakeChild(lambda item: refusal if isinstance(item, Check) else None)
    rows = runner_of(child).measure("task", [program("a"), program("b")], MeasureOptions())
    assert [row.status for row in rows] == ["wrong_result"] * 2
    assert child.count(Build) == 2


def test_a_program_that_cannot_be_built_again_is_a_row():
    builds = iter([None, None, None, Refused(status="launch_error", error="out of memory")])
    deaths = iter([ChildLostError("crash", "died")] * 2)

    def answer(request: Request) -> Reply | Exception | None:
        if isinstance(request, Build):
            return next(builds)
        return next(deaths, None) if isinstance(request, Check) else None

    programs = [program("a"), program("b")]
    rows = runner_of(FakeChild(answer)).measure("task", programs, MeasureOptions())
    assert [row.status for row in rows] == ["crash", "launch_error"]
    assert rows[1].error == "out of memory"


def test_a_hang_in_timing_keeps_the_deviation_that_was_found():
    lost = ChildLostError("timeout", "killed")
    child = FakeChild(lambda item: lost if isinstance(item, Time) else None)
    rows = runner_of(child).measure("task", [program()], MeasureOptions())
    assert (rows[0].status, rows[0].error) == ("timeout", "timing: killed")
    assert rows[0].max_abs_err == 0.5
    assert rows[0].median_us is None


@pytest.mark.parametrize(
    ("kind", "status"), [(Build, "compile_error"), (Warm, "launch_error"), (Check, "wrong_result")]
)
def test_a_refusal_is_a_row_with_its_message(kind: type, status):
    refusal = Refused(status=status, error="because", max_abs_err=None)
    child = FakeChild(lambda item: refusal if isinstance(item, kind) else None)
    rows = runner_of(child).measure("task", [program()], MeasureOptions())
    assert (rows[0].status, rows[0].error) == (status, "because")


def test_the_best_cost_is_told_to_later_candidates():
    child = FakeChild(always)
    runner = runner_of(child)
    first, _ = runner.measure("task", [program("a"), program("b")], MeasureOptions())
    runner.measure("task", [program("c")], MeasureOptions())
    told = [(item.best_cost, item.calm_us) for item in child.seen if isinstance(item, Time)]
    cost = measured_costs([first])[1][0]
    assert told == [(None, None), (cost, 101.0), (cost, 101.0)]


def test_the_calm_level_is_that_of_what_the_runner_saw():
    replies = iter([replace(CALM, before_us=us, after_us=us) for us in (100.0, 104.0, 180.0)])
    child = FakeChild(lambda item: next(replies) if isinstance(item, Time) else None)
    names = ("a", "b", "c")
    rows = runner_of(child).measure("task", [program(n) for n in names], MeasureOptions())
    assert [row.calm_us for row in rows] == [100.0, 101.0, 102.0]


def test_the_workload_travels_once_until_another_is_measured():
    child = FakeChild(always)
    runner = runner_of(child)
    runner.prepare(replace(WORKLOAD, key="other"))
    for key in ("task", "task", "other", "task"):
        runner.measure(key, [program()], MeasureOptions())
    assert child.count(LoadArrays) == 3


def test_an_unknown_workload_is_an_error_that_lists_the_known():
    with pytest.raises(InputError, match="'nothing' was not prepared; prepared are: task"):
        runner_of(FakeChild(always)).measure("nothing", [], MeasureOptions())


def test_a_candidate_that_does_not_fit_is_an_error():
    runner = runner_of(FakeChild(always))
    with pytest.raises(InputError, match=r"'x': the candidate expects 5 elements, .* has 4"):
        runner.measure("task", [program(elements=5)], MeasureOptions())
    stranger = program()
    renamed = tuple(replace(spec, name=f"{spec.name}2") for spec in stranger.buffers)
    with pytest.raises(InputError, match="input 'x2', the workload has w, x"):
        runner.measure("task", [replace(stranger, buffers=renamed)], MeasureOptions())


def test_replay_answers_from_records_in_their_order_and_is_loud_otherwise():
    known, unknown = program("a"), program("b")
    first, last = (
        succeeded((us,), max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)
        for us in (1.0, 2.0)
    )
    runner = ReplayRunner(GENERIC_CPU, {("task", known.key): [first, last]})
    with pytest.raises(InputError, match="workload 'task' was not prepared"):
        runner.measure("task", [known], MeasureOptions())
    runner.prepare(WORKLOAD)
    assert runner.measure("task", [known, known], MeasureOptions()) == [first, last]
    assert runner.measure("task", [known], MeasureOptions()) == [last]
    with pytest.raises(LookupFailed, match=f"no record of source {unknown.key} of workload task"):
        runner.measure("task", [unknown], MeasureOptions())
