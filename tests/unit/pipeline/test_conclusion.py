"""The last lines of a run, for people who have not read the documentation."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from retune.core.results import KernelTime, Latency, SizeLatency, TaskEntry, TaskResult
from retune.pipeline import conclusion as module
from retune.pipeline.manifest import ONE_SIZE, BenchManifest, TaskManifest, TunedTasks
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.tuning import joined_searches

SEARCHED = TunedTasks(
    run_id="r", target="t", results=(), statuses=(), trials_done=96, seconds_done=17.0, reason="r"
)


def latency(name: str, us: float) -> Latency:
    return Latency(name=name, median_us=us, p25_us=us, p75_us=us, runs=9)


def task(name: str, best_us: float | None) -> TaskResult:
    entry = TaskEntry(
        key=name, name=name, op="dense", weight=1, flops=1, input_shapes=(), output_shape=()
    )
    return TaskResult(entry=entry, trials=int(name == "a"), best_us=best_us, default_us=100.0)


def said(
    monkeypatch: pytest.MonkeyPatch,
    further: float | None,
    from_records: int = 1,
    sizes: tuple[SizeLatency, ...] = (),
    batches: tuple[tuple[int, int], ...] = (),
    **asked: Any,
) -> list[str]:
    """The sentences at the end of a run with two layers, one of which got faster."""
    rows = (latency("tuned", 900.0), latency("untuned", 1000.0), latency("onnxruntime", 1800.0))
    run = SimpleNamespace(
        bench=BenchManifest(rows=rows, sizes=sizes),
        tasks=TaskManifest(model_key="m", tasks=(), micro_batches=batches),
        searched=replace(SEARCHED, further=further),
        tuned=SimpleNamespace(from_records=from_records),
    )
    results = (task("a", 80.0), task("b", 100.0))
    monkeypatch.setattr(module, "task_results", lambda _: results)
    monkeypatch.setattr(module, "gain_text", lambda *_: "0.50x the time")
    monkeypatch.setattr(module, "no_layouts", lambda _: "")
    return list(module.conclusion(TuneRequest("m", "o", **asked), cast(FinishedRun, run)))


def test_they_say_what_was_found_what_it_is_worth_and_what_would_gain_more(
    monkeypatch: pytest.MonkeyPatch,
):
    assert said(monkeypatch, 0.034, effort="quick") == [
        "The bundle takes 900 µs for one call; default schedules take 1 ms (1.11x as long); "
        "onnxruntime takes 1.8 ms (2.00x as long).",
        "96 candidates of 1 of 2 layers were measured in 17 s. 1 layer is faster than by default; "
        "1 layer is not.",
        "The search is not complete: as many trials again are expected to save 3.4% of the time; "
        "`--effort full` goes on.",
        "What may gain more: 0.50x the time; --layout auto (measures other activation layouts; no "
        "estimate).",
    ]


def test_they_say_which_layers_run_in_micro_batches(monkeypatch: pytest.MonkeyPatch):
    assert (
        "12 layers of a batch: 2 images at a time (micro-batches), which the last cache holds; "
        "1 layer of a batch: 4 images at a time (micro-batches), which the last cache holds."
    ) in said(monkeypatch, 0.034, batches=((2, 12), (4, 1)))


def test_they_say_what_serving_many_sizes_costs(monkeypatch: pytest.MonkeyPatch):
    """As it was measured in turns with bundles for one size each."""
    both = ((100.0, 100.0), (121.0, 100.0))
    sizes = tuple(
        SizeLatency(sizes=f"n={n}", rows=(latency("tuned", own), latency(ONE_SIZE, alone)))
        for n, (own, alone) in enumerate(both)
    )
    found = said(monkeypatch, 0.034, sizes=sizes)
    assert found[1] == (
        "Over 2 sizes, it takes 1.10 times as long as bundles for one size each, and at most 1.21 "
        "times."
    )
    assert str(BenchManifest(rows=(), sizes=sizes).regret) == "measured regret 1.10, at most 1.21"
    assert BenchManifest(rows=()).regret is None


def step(label: str, us: float, roofline: float | None, **facts: Any) -> KernelTime:
    return KernelTime(label=label, us=us, flops=1, roofline=roofline, **facts)


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            [step("conv2d_add_1", 60.0, 1.1), step("dense_2", 40.0, 0.96)],
            "allow 0.98x of that time.",
        ),
        (
            [
                step("conv2d_add_1", 60.0, 0.9),
                step("conv2d_add_12", 10.0, 0.5),
                step("dense_2", 20.0, 0.75),
                step("", 10.0, None, host=True),
            ],
            "allow 0.74x of that time; most of the rest is spent in conv2d_add (11%), "
            "host steps (10%), dense (5%).",
        ),
        ([step("conv2d_add_1", 60.0, None)], ""),
        ([step("conv2d_1", 60.0, 0.5), step("vta", 1.0, 1.0, simulated=True)], ""),
        ([], ""),
    ],
)
def test_they_say_how_far_the_ceilings_are_and_why(steps: list[KernelTime], text: str):
    found = module.ceilings(steps)
    assert found.endswith(text) and bool(found) == bool(text)


@pytest.mark.parametrize(
    ("asked", "further", "text"),
    [
        ({}, 0.004, "is complete: as many trials again are expected to save less than 1%"),
        ({"minutes": 3.0}, 0.05, "`--minutes 6` goes on"),
        ({}, 0.05, "`--effort full --minutes 6` goes on"),
        ({"trials": 40}, 0.05, "`--trials 80` goes on"),
        ({"effort": "none"}, None, "schedules are those of earlier records (1 layer) and default"),
    ],
)
def test_they_say_whether_searching_on_is_worth_its_time(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], further: float | None, text: str
):
    assert text in said(monkeypatch, further, **asked)[2]


@pytest.mark.parametrize(
    ("further", "most", "complete"),
    [((0.0, 0.0), 0.0, True), ((0.0, 0.3), 0.3, False), ((0.002, None), None, False)],
)
def test_a_search_is_complete_if_it_is_for_all_sizes(
    further: tuple[float | None, ...], most: float | None, complete: bool
):
    every = [replace(SEARCHED, further=each) for each in further]
    found = joined_searches(every[0], every)
    assert (found.further, found.complete) == (most, complete)


def test_without_records_and_trials_schedules_are_default_ones(monkeypatch: pytest.MonkeyPatch):
    found = said(monkeypatch, None, from_records=0, effort="none")
    assert any("schedules are default ones" in sentence for sentence in found)
