"""What holds for every input that cannot be used."""

from pathlib import Path

import pytest

from retune.cli.main import run_command


def assert_refused(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Exit code 2 in that empty folder, the message, and nothing printed or left; the error."""
    monkeypatch.chdir(folder)
    assert run_command(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert list(folder.iterdir()) == []
    return printed.err
