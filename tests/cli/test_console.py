"""Tables for people."""

import io
import re
import sys

import pytest

from retune.cli.console import print_table


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_narrow_terminal_wraps_lines_and_folds_no_words_into_letters(
    monkeypatch: pytest.MonkeyPatch,
):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "12")
    monkeypatch.setenv("NO_COLOR", "1")
    row = {"task": "dense_add_relu_0", "time": 1.0, "status": "failed", "stage": "verify"}
    print_table([row], "tasks")
    text = terminal.getvalue()
    assert all(word in text for word in ("time", "1.00", "status", "failed", "verify"))
    assert "\x1b[3" not in text, "no colour was asked for"


def test_a_table_leaves_out_optional_columns_before_it_folds_words(monkeypatch: pytest.MonkeyPatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    row = {"task": "dense_add_relu_0", "device": "a" * 20, "driver": "b" * 20, "us": 1.0}
    print_table([row], optional=("driver", "device", "us"))
    *table, left = terminal.getvalue().splitlines()
    assert left == "not shown at 40 columns: device, driver"
    assert any(line.split() == ["dense_add_relu_0", "1.00"] for line in table)
    assert all(len(re.sub(r"\x1b\[\d*m", "", line)) <= 40 for line in table)


def test_a_pipe_has_the_width_that_the_environment_states(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    row = {"task": "dense_add_relu_0", "device": "a" * 60, "us": 1.0}
    monkeypatch.delenv("COLUMNS", raising=False)
    print_table([row], optional=("device",))
    assert "a" * 60 in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "40")
    print_table([row], optional=("device",))
    assert capsys.readouterr().out.endswith("not shown at 40 columns: device\n")
