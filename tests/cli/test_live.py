"""What people see of a run in progress: rows, one line, a table on a terminal."""

import io
import logging
from dataclasses import replace

import pytest

from retune.cli.live import network_text, standing_line, standing_rows
from retune.cli.progress import LINE_INTERVAL_S, ProgressHandler
from retune.core.results import TaskResult
from retune.pipeline.results import TuneEvent
from retune.pipeline.watch import LOGGER
from tests.flows.fakes import TASKS

FAST, SLOW, UNKNOWN = (
    TaskResult(entry=TASKS[0], trials=16, best_us=40.0),
    TaskResult(entry=TASKS[1], trials=8, best_us=100.0),
    TaskResult(entry=TASKS[2], trials=8, failed=8),
)
EVENT = TuneEvent(
    stage="tune",
    text="conv1 x2",
    done=32,
    spent=0.25,
    tasks=(FAST, SLOW, UNKNOWN),
    next_key=SLOW.entry.key,
)
KNOWN = replace(EVENT, tasks=(FAST, SLOW))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(handler: ProgressHandler, *events: TuneEvent) -> str:
    for event in events:
        record = logging.makeLogRecord({"name": LOGGER, "msg": event.text, "event": event})
        handler.emit(record)
    handler.finish()
    return handler._stream.getvalue()  # type: ignore[attr-defined]


def test_rows_are_the_costliest_first_and_say_which_is_next():
    rows = standing_rows(EVENT)
    assert [row["id"] for row in rows] == [3, 2, 1]
    assert [row["next"] for row in rows] == ["", ">", ""]
    assert [row["total us"] for row in rows] == [None, 200.0, 40.0]
    assert rows[1]["latency us"] == 100.0
    assert rows[1]["GFLOPS"] == pytest.approx(2_000_000 / 100.0 / 1e3)
    assert rows[1]["trials"] == 8


def test_the_network_sums_weight_times_latency():
    assert network_text((FAST, SLOW)) == "network 240.0 us"
    assert network_text(EVENT.tasks) == "network 240.0 us without 1 of 3 tasks"
    unknown = "network not known yet: none of 1 tasks has a right trial"
    assert network_text((UNKNOWN,)) == unknown


def test_a_line_has_the_sum_and_the_next_task():
    assert standing_line(KNOWN) == "conv1 x2 | network 240.0 us | 25% of the budget | next conv1"
    assert standing_line(TuneEvent(stage="compile", text="3 kernels")) == "3 kernels"


def test_off_a_terminal_a_stage_gets_one_plain_line_in_a_while(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr("retune.cli.progress.time.monotonic", lambda: clock[0])
    handler = ProgressHandler(io.StringIO())
    show(handler, KNOWN, KNOWN, KNOWN)
    clock[0] = LINE_INTERVAL_S
    printed = show(handler, KNOWN, TuneEvent(stage="compile", text="3 kernels"))
    line = standing_line(KNOWN)
    assert printed.splitlines() == [line, line, "3 kernels"]


def test_a_terminal_shows_a_table_and_lines_above_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "40")
    handler = ProgressHandler(Terminal())
    printed = show(handler, KNOWN, TuneEvent(stage="compile", text="3 kernels"))
    for text in ("conv0", "conv1", "GFLOPS", "network 240.0 us", "25% of the budget"):
        assert text in printed
    assert printed.endswith("3 kernels\n")


def test_a_small_terminal_shows_the_next_task_and_the_sum(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("LINES", "8")
    many = tuple(
        replace(SLOW, entry=replace(TASKS[1], key=f"k{i}", name=f"t{i}")) for i in range(9)
    )
    last = replace(EVENT, tasks=many, next_key="k8")
    printed = show(ProgressHandler(Terminal()), last)
    assert "t8" in printed and "t0" not in printed
    assert "8 cheaper tasks not shown" in printed
