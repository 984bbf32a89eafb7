"""What takes the code generator to find is found once for each state of the code."""

import sys
from functools import cache
from pathlib import Path

import pytest

from retune.device.opencl import remembered as module
from retune.device.opencl.remembered import remembered


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kinds that were asked for, in a process that imported no intrinsics."""
    monkeypatch.setenv("RETUNE_LOCKS", str(tmp_path))
    monkeypatch.delitem(sys.modules, "retune.intrinsics", raising=False)
    monkeypatch.setattr(module, "_code", cache(module._code.__wrapped__))
    return []


def names(asked: list[str], *identity: str) -> tuple[str, ...]:
    return remembered("kind", lambda: asked.append("kind") or ["b", "a"], *identity)


def test_it_is_made_once_for_each_identity_and_code(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert names(asked, "x") == names(asked, "x") == ("b", "a") and len(asked) == 1
    names(asked, "y")
    assert len(asked) == 2
    source = tmp_path / "code.py"
    source.write_text("one")
    monkeypatch.setattr(module, "_PACKAGE", tmp_path)
    locks = tmp_path / "locks"
    monkeypatch.setenv("RETUNE_LOCKS", str(locks))
    locks.mkdir()
    for text, times in (("one", 3), ("other", 4), ("third", 5)):
        source.write_text(text)
        module._code.cache_clear()  # a process looks at its code once
        for _ in range(2):
            assert names(asked, "x") == ("b", "a") and len(asked) == times
    assert len(list(locks.iterdir())) == 1  # edited sources leave no file for each of their states


def test_a_process_that_may_have_registered_more_asks_itself(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
):
    names(asked)
    monkeypatch.setitem(sys.modules, "retune.intrinsics", sys)
    names(asked)
    assert len(asked) == 2


def test_a_file_that_is_damaged_is_made_again(asked: list[str], tmp_path: Path):
    names(asked)
    (path,) = tmp_path.iterdir()
    for times, damaged in enumerate(("[", "[1]", "{}", '{"state": 1}'), 2):
        path.write_text(damaged)
        assert names(asked) == ("b", "a") and len(asked) == times
        assert names(asked) == ("b", "a") and len(asked) == times
