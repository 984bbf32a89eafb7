"""Tables for people."""

import io
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
