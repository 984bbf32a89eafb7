"""`retune.tune`: an expression goes the way of a network's task, and errors are one sentence."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import retune
from retune.codegen.source import ProgramSource
from retune.core.errors import DeviceError, InputError, LookupFailed, ScheduleError
from retune.core.target import GENERIC_CPU
from retune.ir.interp import run_program
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.schedule.space import Space
from retune.search.program import space_for
from retune.search.session import Session, search_all
from retune.search.task import expression_task
from tests.support.dags import conv2d
from tests.support.oracle import assert_same_meaning
from tests.support.program import matmul, tiled
from tests.support.search_fakes import FakeRunner, measured, settings, wrong


def test_a_schedule_function_is_tuned(store: Path):
    runner = FakeRunner()
    tuned = retune.tune(matmul(), space=tiled, trials=10, records=store, runner=runner)
    assert len(runner.measured) == len(tuned.records) == 10
    assert tuned.time_us == tuned.records["median_us"].min()
    assert tuned.gflops == pytest.approx(2 * 12 * 20 * 8 / tuned.time_us / 1e3)
    assert set(tuned.records["status"]) == {"ok"}
    assert set(tuned.records["run_id"]) == {tuned.run_id}
    assert tuned.candidate.sketch.startswith("tiled.")
    assert measured(tuned.source).median_us == tuned.time_us
    assert tuned.opencl == tuned.source.text
    assert (
        "C_" in tuned.task.name
        and f"{tuned.task.name}: " in str(tuned)
        and "the best of 10 candidates (10 right)" in str(tuned)
    )
    assert not runner.closed


def test_the_trace_makes_the_program(store: Path):
    tuned = retune.tune(matmul(), space=tiled, trials=4, records=store, runner=FakeRunner())
    assert "s.sample_perfect_tile(" in str(tuned.trace)
    again = replay(tuned.task.program, tuned.trace).program
    assert str(again) == str(tuned.program)
    assert_same_meaning(Dag((matmul(),)), tuned.program)


def test_without_a_space_the_rules_apply_to_merged_axes(store: Path):
    conv = conv2d(1, 6, 6, 4, 16, 1, pad=0)
    tuned = retune.tune(conv, trials=3, records=store, runner=FakeRunner())
    assert tuned.candidate.sketch.startswith("cpu.")
    assert len(tuned.task.dag.outputs[0].shape) < len(conv.outputs[0].shape)
    assert tuned.shapes == {conv.outputs[0].name: conv.outputs[0].shape}


def test_the_same_call_measures_nothing_again_and_more_trials_go_on(store: Path):
    first, more = FakeRunner(), FakeRunner()
    retune.tune(matmul(), space=tiled, trials=6, records=store, runner=first)
    tuned = retune.tune(matmul(), space=tiled, trials=6, records=store, runner=more)
    assert (len(first.measured), len(more.measured)) == (6, 0)
    retune.tune(matmul(), space=tiled, trials=9, records=store, runner=more)
    assert len(more.measured) == 3
    assert tuned.time_us == min(measured_us(first.measured))


def measured_us(texts: list[tuple[str, str]]) -> list[float]:
    times: list[float] = []
    for _, text in texts:
        source = type("Source", (), {"text": text})
        time_us = measured(source).median_us  # type: ignore[arg-type]
        assert time_us is not None
        times.append(time_us)
    return times


def test_the_best_is_of_the_space_that_was_asked_for(store: Path):
    """Better records of another space of the same expression do not hide it."""

    def slow(s: Schedule) -> None:
        s.sample_categorical("nothing", range(3))

    def times(scale: float) -> Callable[[ProgramSource], Measurement]:
        def outcome(source: ProgramSource) -> Measurement:
            return type(m := measured(source))(
                status="ok", run_times_us=(scale,), median_us=scale + (m.median_us or 0)
            )

        return outcome

    fast = FakeRunner(times(1.0))
    retune.tune(matmul(), space=tiled, trials=12, records=store, runner=fast)
    tuned = retune.tune(
        matmul(), space=slow, trials=3, records=store, runner=FakeRunner(times(100.0))
    )
    assert tuned.candidate.sketch.startswith("slow.")
    assert tuned.time_us > 100
    assert len(tuned.records) == 3


def test_a_sampled_place_is_searched_too(store: Path):
    """The places are sketches of one space, and candidates of several are measured."""

    def placed(s: Schedule) -> None:
        s.split("D.j", s.sample_perfect_tile("D.j", 2))
        s.sample_compute_location("C")

    c = matmul()
    d = compute("D", c.shape, lambda i, j: c[i, j] + 1.0, [c])
    sketches = retune.space_for(d, placed).sketches
    assert [s.name.rsplit(".", 1)[0] for s in sketches] == [f"placed.at.C={i}" for i in range(4)]
    tuned = retune.tune(
        d, space=placed, trials=8, tuner="random", records=store, runner=FakeRunner()
    )
    assert len(set(tuned.records["sketch"])) > 1


def test_an_edited_schedule_function_is_another_sketch():
    def schedule(fused: bool) -> Callable[[Schedule], None]:
        def same_name(s: Schedule) -> None:
            (factor,) = s.sample_perfect_tile("C.i", 2)
            outer, _ = s.split("C.i", [factor])
            if fused:
                s.bind(outer, "group.0")

        return same_name

    names = {space_for(matmul(), schedule(fused)).sketches[0].name for fused in (True, False)}
    assert len(names) == 2
    assert all(name.startswith("same_name.") for name in names)


def test_the_reference_is_the_expression_itself():
    a, b = placeholder("A", (5, 4)), placeholder("B", (4,), constant=True)
    k = reduce_axis("k", 4)
    product = compute("P", (5,), lambda i: a[i, k] * b[k], [a, b], reduce=[k])
    twice = compute("Q", (5,), lambda i: product[i] + product[i], [product])
    task = expression_task(Dag((product, twice)))
    work = task.workload(seed=3)
    expected = work.inputs["A"].reshape(5, 4) @ work.inputs["B"]
    np.testing.assert_allclose(work.outputs["P"], expected, rtol=1e-5)
    np.testing.assert_allclose(work.outputs["Q"], 2 * expected, rtol=1e-5)
    assert task.tunable
    assert run_program(task.program, work.inputs).keys() == {"P", "Q"}


def test_an_expression_without_a_sum_has_one_candidate(store: Path):
    x = placeholder("x", (40,))
    y = compute("y", (40,), lambda i: x[i] + 1.0, [x])
    tuned = retune.tune(y, trials=5, records=store, runner=FakeRunner())
    assert len(tuned.records) == 1


def test_chosen_candidates_are_measured_and_recorded(store: Path):
    space = retune.space_for(matmul(), tiled)
    drawn = space.sample(5, np.random.default_rng(0))
    chosen = [space.candidate(drawn, i) for i in range(5)]
    found = retune.measure(matmul(), chosen, space=space, records=store, runner=FakeRunner())
    assert [m.status for m in found] == ["ok"] * 5
    hashes = RecordStore(store).scan(columns=["config_hash"])["config_hash"]
    assert set(hashes) == {c.key for c in chosen}
    assert retune.measure(matmul(), [], space=space, records=store, runner=FakeRunner()) == []


def test_a_space_is_a_union_of_schedule_functions(store: Path):
    def plain(s: Schedule) -> None:
        s.bind("C.i", "group.0")

    space = retune.space_for(matmul(), tiled, plain)
    assert [s.name.partition(".")[0] for s in space.sketches] == ["tiled", "plain"]
    assert space_for([matmul()], plain).size == 1
    tuned = retune.tune(
        Dag((matmul(),)), space=space, trials=64, records=store, runner=FakeRunner()
    )
    assert tuned.records["sketch"].nunique() == 2


def missing_loop(s: Schedule) -> None:
    s.split("C.z", [4])


def impossible(s: Schedule) -> None:
    (factor,) = s.sample_perfect_tile("C.i", 2)
    s.require(factor > 1000, "never")


@pytest.mark.parametrize(
    ("program", "options", "message"),
    [
        (matmul(), {"trials": 0}, r"^tune: expected at least one trial, got trials=0$"),
        ((), {}, "has no output; expected at least one computed tensor"),
        (placeholder("A", (3,)), {}, "output 'A' is a placeholder; expected a computed tensor"),
        ("C", {}, "expected a computed tensor, several, or a Dag, got str"),
        (matmul(), {"space": 3}, "expected a schedule function or a Space, got int"),
        (matmul(), {"space": missing_loop}, "schedule function 'missing_loop': .*C.z"),
        (matmul(), {"space": impossible}, "'impossible': none of the .* meets its conditions"),
        (
            matmul(),
            {"space": space_for(matmul(16), tiled)},
            "sketch 'tiled.*' schedules C_.*, expected C_.*; make it of this expression",
        ),
    ],
)
def test_what_cannot_be_tuned(
    store: Path, program: object, options: dict[str, object], message: str
):
    with pytest.raises(InputError, match=message) as caught:
        retune.tune(program, records=store, runner=FakeRunner(), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert not list(store.rglob("*.parquet"))


def test_an_unknown_tuner_and_a_foreign_candidate(store: Path):
    with pytest.raises(LookupFailed, match="'luck' is not known"):
        retune.tune(matmul(), tuner="luck", records=store, runner=FakeRunner())
    space = retune.space_for(matmul(), tiled)
    foreign = space.candidate(space.sample(1, np.random.default_rng(0)), 0)
    with pytest.raises(ScheduleError, match="no sketch 'tiled"):
        retune.measure(matmul(), [foreign], records=store, runner=FakeRunner())


def test_nothing_right_is_an_error_that_says_why(store: Path):
    with pytest.raises(DeviceError, match=r"none of 4 candidates was right.*wrong_result: off by"):
        retune.tune(matmul(), space=tiled, trials=4, records=store, runner=FakeRunner(wrong))


def test_a_space_without_a_function_is_refused():
    with pytest.raises(InputError, match="at least one schedule function"):
        space_for(matmul())


@pytest.mark.process
def test_import_retune_is_cheap():
    code = (
        "import sys, retune; heavy = {'numpy', 'pandas', 'pyarrow', 'onnx', 'pyopencl'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules);"
        "assert callable(retune.tune) and 'tune' in dir(retune);"
        "assert not {'pyopencl', 'prefect'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'tun'"):
        _ = retune.tun  # type: ignore[attr-defined]


def test_a_session_takes_an_expression_beside_others(store: Path):
    tasks = [expression_task(Dag((matmul(n, 8, 4),))) for n in (4, 6)]
    session = Session(tasks, FakeRunner(), RecordStore(store), settings(trials=8))
    search_all(session)
    assert {run.task.key for run in session.runs} == {task.key for task in tasks}
    assert isinstance(tasks[0].space(GENERIC_CPU), Space)
