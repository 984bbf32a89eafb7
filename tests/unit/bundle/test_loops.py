"""Plans with loops: what runs how often, what lies where meanwhile, and what is no loop."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.invariants import verify_plan
from retune.bundle.memory import plan_memory, temp_blocks
from retune.bundle.plan import NetworkPlan, PlanLoop, Segment
from retune.bundle.runtime.executor import launchable_segments
from retune.bundle.runtime.module import profile_rows
from retune.bundle.runtime.placement import lay_out
from retune.bundle.runtime.rows import callees_of, step_rows
from retune.codegen.network.persistent import most_rounds
from retune.core.errors import VerifyError
from retune.core.target import GENERIC_CPU
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support import loops


def looped(plan: NetworkPlan, *loops: tuple[int, int, int]) -> NetworkPlan:
    made = (PlanLoop(first=first, end=end, times=times) for first, end, times in loops)
    return replace(plan, loops=tuple(made))


def segments(plan: NetworkPlan) -> list[tuple[int, int, int]]:
    return [(s.first, s.end, s.times) for s in plan.segments(0, len(plan.launches))]


def test_launches_run_as_often_as_loops_say(plan: NetworkPlan) -> None:
    some = looped(plan, (1, 3, 5))
    verify_plan(some)
    assert segments(some) == [(0, 1, 1), (1, 3, 5), (3, 4, 1)]
    assert some.repeats == (1, 5, 5, 1)
    rows = profile_rows(some, [1.0, 2.0, 3.0, 4.0], None)
    assert [row.times for row in rows] == [1, 5, 5, 1]
    assert [row.flops for row in rows] == [
        step.flops * n for step, n in zip(plan.launches, some.repeats, strict=True)
    ]


def test_loops_may_lie_in_loops(plan: NetworkPlan) -> None:
    nested = looped(plan, (0, 3, 2), (1, 2, 7))
    verify_plan(nested)
    assert segments(nested) == [*[(0, 1, 1), (1, 2, 7), (2, 3, 1)] * 2, (3, 4, 1)]
    assert nested.repeats == (2, 14, 2, 1)


def test_one_launch_runs_no_more_than_it_can_count(plan: NetworkPlan) -> None:
    most = most_rounds(max(callee.count for callee in callees_of(plan)))
    some = looped(plan, (1, 3, 2 * most + 3))
    found = launchable_segments(some, some.segments(0, 4))
    assert [s.times for s in found] == [1, most, most, 3, 1]


def test_what_a_loop_reads_from_before_it_stays_for_all_of_it(plan: NetworkPlan) -> None:
    """The loop's last launch would write its result into the memory of what its first one read."""
    alone = {b.name: (b.first, b.last) for b in temp_blocks(plan)}
    loops = {b.name: (b.first, b.last) for b in temp_blocks(looped(plan, (1, 4, 9)))}
    assert alone["sum"] == (0, 1)
    assert loops["sum"] == (0, 3)
    assert all(loops[name] == span for name, span in alone.items() if name != "sum")


def test_loops_that_do_not_need_each_other_run_side_by_side() -> None:
    """The data of both are made before; none waits for the other, for its memory neither."""
    network = extract(optimise(loops.side_by_side(64)))
    plan = build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
    verify_plan(plan)
    assert len(plan.lone_loops) == 2
    rows = step_rows(plan, lay_out(plan, plan_memory(plan)))
    first, second = (n for n, step in enumerate(rows.steps) if step.kernel.startswith("chain"))
    behind = set(rows.steps[second].waits)
    while more := {b for n in behind for b in rows.steps[n].waits} - behind:
        behind |= more
    assert first not in behind


@pytest.mark.parametrize(
    "wrong",
    [
        [(2, 2, 3)],
        [(3, 5, 3)],
        [(0, 2, 3), (1, 3, 3)],
        [(2, 4, 3), (0, 2, 3)],
        [(0, 2, -1)],
        [(0, 2, 1 << 20), (0, 1, 1 << 20)],
    ],
)
def test_what_is_no_loop_is_said(plan: NetworkPlan, wrong: list[tuple[int, int, int]]) -> None:
    with pytest.raises(VerifyError, match="loop of launches"):
        verify_plan(looped(plan, *wrong))


def test_a_bundle_keeps_them(plan: NetworkPlan, tmp_path: Path) -> None:
    some = looped(plan, (0, 3, 2), (1, 2, 7))
    assert read_bundle(write_bundle(some, tmp_path / "some")).loops == some.loops
    assert read_bundle(write_bundle(plan, tmp_path / "none")).loops == ()
    manifests = [(tmp_path / name / "module.json").read_text() for name in ("some", "none")]
    assert ["loops" in text for text in manifests] == [True, False]


def test_small_kernels_of_a_loop_are_chained(plan: NetworkPlan) -> None:
    """What runs outside of loops stays as it is; a large kernel stands by itself."""
    large = replace(plan.launches[1], bytes=1 << 20)
    some = looped(replace(plan, launches=(plan.launches[0], large, *plan.launches[2:])), (0, 4, 9))
    rows = step_rows(some, lay_out(some, plan_memory(some)))
    names = [launch.kernel for launch in some.launches]
    assert [step.kernel for step in rows.steps] == [*names, names[0], names[1], "chain_0"]
    assert rows.segments_of(0, 4) == (Segment(first=4, end=7, times=9),)
    chain, links = rows.callees[-1], rows.steps[2:4]
    assert (chain.kernel, chain.groups) == ("chain_0", (1, 1, 1))
    assert rows.steps[-1].args == (*links[0].args, *links[1].args)
    assert rows.steps[-1].waits and min(rows.steps[-1].waits) >= 4
    plain = step_rows(plan, lay_out(plan, plan_memory(plan)))
    assert (len(plain.steps), plain.segments, plain.text) == (4, {}, "")
    assert plain.segments_of(0, 4) == (Segment(first=0, end=4),)


def test_small_kernels_overtake_large_ones_to_be_one_chain(plan: NetworkPlan) -> None:
    first, second, third, last = plan.launches
    large = replace(second, args=("flat", "four"), writes=("four",), bytes=1 << 20)
    apart = replace(third, args=("x", "twice"), writes=("twice",))
    some = looped(replace(plan, launches=(first, large, apart, last)), (0, 4, 9))
    rows = step_rows(some, lay_out(some, plan_memory(some)))
    assert [step.kernel for step in rows.steps[4:]] == ["chain_0", large.kernel, last.kernel]
    assert rows.steps[4].args == (*rows.steps[0].args, *rows.steps[2].args)
    assert (rows.steps[5].waits, rows.steps[6].waits) == ((4,), (5,))


def test_one_worker_runs_a_loop_of_small_kernels(plan: NetworkPlan) -> None:
    """It is one row of all times, among those of what stands before and after it."""
    some = looped(plan, (1, 3, 9))
    rows = step_rows(some, lay_out(some, plan_memory(some)))
    first, *_, last = (launch.kernel for launch in some.launches)
    assert [step.kernel for step in rows.steps[4:]] == [first, "chain_0", last]
    assert rows.segments_of(0, 4) == (Segment(first=4, end=7),)
    assert "for (int time = 0; time < 9; ++time) {" in rows.text
    assert (rows.steps[5].waits, rows.steps[6].waits) == ((4,), (5,))
    large = replace(plan.launches[1], bytes=1 << 20)
    other = replace(some, launches=(plan.launches[0], large, *plan.launches[2:]))
    assert (len(some.lone_loops), other.lone_loops) == (1, ())
    assert looped(plan, (0, 3, 2), (1, 2, 7)).lone_loops == ()
