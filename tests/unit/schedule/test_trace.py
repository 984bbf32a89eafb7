"""Traces replay, take other decisions, print as Python, and survive JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.dtypes import FLOAT32
from retune.core.errors import RecordError, ScheduleError
from retune.ir.expr import const
from retune.ir.stmt import from_dag
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.schedule.trace import PRIMITIVES, Trace, TraceStep
from tests.support.dags import dense, random_dag
from tests.support.properties import chooser, quick
from tests.support.random_schedules import scramble, somewhere


def _sampled(given_numbers: dict[str, tuple[int, ...]] | None = None) -> Schedule:
    s = Schedule(from_dag(dense(12, 8, 34)), given_numbers)
    s.split("z.i", s.sample_perfect_tile("z.i", 2))
    (vectors,) = s.sample_tile("z.j", 2, 8, unit=2)
    s.split("z.j", [vectors * 2], "shift")
    s.compute_at("y", "z.j.0")
    s.reorder("y.k", "y.i", "y.j")
    s.fuse("z.i.0", "z.i.1")
    s.unroll("y.i", s.sample_categorical("hint", [1, 2]))
    s.bind("z.i.0+1", "group.0")
    return s


DECIDED = {"tile.z.i": (4,), "tile.z.j": (5,), "hint": (2,)}


def test_printed(golden):
    s = _sampled(DECIDED)
    assert f"{s.trace}\n\n{s.trace.to_json()}\n" == golden


def test_json_round_trip_of_a_sketch_and_of_a_candidate():
    for s in (_sampled(), _sampled(DECIDED)):
        again = Trace.from_json(s.trace.to_json())
        assert again == s.trace
        assert "\n" not in s.trace.to_json()


def test_replay_rebuilds_the_program():
    s = _sampled(DECIDED)
    again = replay(from_dag(dense(12, 8, 34)), Trace.from_json(s.trace.to_json()))
    assert str(again.program) == str(s.program)
    assert again.trace == s.trace


def test_replay_of_a_sketch_gives_symbols_again():
    s = _sampled()
    again = replay(from_dag(dense(12, 8, 34)), s.trace)
    assert str(again.program) == str(s.program)
    assert list(map(str, again.constraints)) == list(map(str, s.constraints))


def test_replay_with_other_decisions():
    other = {**DECIDED, "tile.z.j": (8,)}
    trace = _sampled().trace.with_decisions(DECIDED)
    again = replay(from_dag(dense(12, 8, 34)), trace, {"tile.z.j": (8,)})
    assert str(again.program) == str(_sampled(other).program)
    assert dict(again.trace.decisions) == other


def test_replay_moves_a_stage_elsewhere():
    dag = dense(6, 4, 8)
    s = Schedule(from_dag(dag))
    s.sample_compute_location("y")
    assert dict(s.trace.decisions) == {"at.y": (0,)}
    moved = replay(from_dag(dag), Trace.from_json(s.trace.to_json()), {"at.y": (2,)})
    assert moved.loops("y")[:2] == ["z.i", "z.j"]
    assert dict(moved.trace.decisions) == {"at.y": (2,)}


def test_replay_refuses_to_decide_anew_what_is_a_number_in_the_steps():
    with pytest.raises(ScheduleError, match=r"'tile.z.j' was decided as \(5,\) before this trace"):
        replay(from_dag(dense(12, 8, 34)), _sampled(DECIDED).trace, {"tile.z.j": (8,)})


def test_replay_refuses_what_is_no_option():
    with pytest.raises(ScheduleError, match=r"\(9,\) is not an option of 'tile.z.j'"):
        replay(from_dag(dense(12, 8, 34)), _sampled().trace, {"tile.z.j": (9,)})
    with pytest.raises(ScheduleError, match=r"no loop 'z\.i'"):
        replay(from_dag(dense(12, 8, 34, epilogue=False)), _sampled(DECIDED).trace)


@pytest.mark.parametrize("name", ["__init__", "require", "loops", "_record", "program", "x"])
def test_a_step_names_a_primitive_and_nothing_else(name: str):
    written = json.dumps({"version": 1, "steps": [[name, {}, []]], "decisions": {}})
    with pytest.raises(RecordError, match="expected a primitive of schedules, got"):
        Trace.from_json(written)
    with pytest.raises(ScheduleError, match="expected a primitive of schedules, got"):
        replay(from_dag(dense(12, 8, 34)), Trace((TraceStep(name, ()),)))


def test_a_step_with_other_arguments_is_refused():
    with pytest.raises(ScheduleError, match="replay: vectorize: missing a required argument"):
        replay(from_dag(dense(12, 8, 34)), Trace((TraceStep("vectorize", ()),)))
    strange = TraceStep("vectorize", (("loop", "z.i"), ("more", 1)))
    with pytest.raises(ScheduleError, match="got an unexpected keyword argument 'more'"):
        replay(from_dag(dense(12, 8, 34)), Trace((strange,)))


def test_the_list_of_primitives_is_that_of_schedules():
    looking = {"loops", "loop", "block", "blocks", "require", "prefer", "extent", "likely"}
    methods = {n for n in dir(Schedule) if not n.startswith("_") and callable(getattr(Schedule, n))}
    assert methods - looking - {"several", "axes", "reduce_loops"} == PRIMITIVES


@quick(30)
@given(data=st.data())
def test_any_trace_survives_json_and_runs_as_python(data: st.DataObject):
    choose = chooser(data)
    dag = random_dag(choose)
    s = Schedule(from_dag(dag), somewhere(dag, choose))
    scramble(s, choose, 5, lambda _: None)
    trace = Trace.from_json(s.trace.to_json())
    assert trace == s.trace
    assert str(replay(from_dag(dag), trace).program) == str(s.program)
    printed = Schedule(from_dag(dag), dict(s.trace.decisions))
    exec(str(s.trace), {"s": printed})  # noqa: S102
    assert str(printed.program) == str(s.program)


def test_a_sampled_trace_runs_as_python():
    s, printed = _sampled(), Schedule(from_dag(dense(12, 8, 34)))
    exec(str(s.trace), {"s": printed})  # noqa: S102
    assert str(printed.program) == str(s.program)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version":1,"steps":[["split"]],"decisions":{}}',
             '{"version":1,"steps":[["split",{"loop":1.5},[]]],"decisions":{}}'],
)  # fmt: skip
def test_what_is_no_trace_is_refused(text: str):
    with pytest.raises(RecordError, match="trace: "):
        Trace.from_json(text)


def test_newer_traces_are_refused():
    newer = json.loads(_sampled().trace.to_json()) | {"version": 99}
    with pytest.raises(RecordError, match="version 1 at most, got 99; install a newer retune"):
        Trace.from_json(json.dumps(newer))


def test_an_argument_that_is_no_data_is_refused():
    s = Schedule(from_dag(dense(12, 8, 34)))
    s.unroll("z.i", s.sample_categorical("hint", [1, 2]))
    step = s.trace.steps[-1]
    broken = type(step)(step.primitive, (("loop", -const(1.0, FLOAT32)),), ())
    with pytest.raises(RecordError, match="cannot be an argument of a step"):
        Trace((type(step)("unroll", (("count", _call()),), ()),)).to_json()
    assert str(broken).startswith("s.unroll(loop=")


def _call():
    from retune.ir.functions import call

    return call("exp", const(1.0, FLOAT32))
