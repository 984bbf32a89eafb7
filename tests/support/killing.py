"""A process that is killed at any of its changes to the file system, in one process.

From some change on, each one raises before it does anything, so that what handlers and `finally`
would do has no effect either: the files are as a killed process leaves them.
"""

import os
from collections.abc import Callable, Iterator

import pytest

from retune.core import replacing

_CHANGES = ("rename", "replace", "symlink", "link", "mkdir", "unlink", "rmdir")


class Killed(BaseException):
    """The process is gone."""


def killed_at_each_change(
    monkeypatch: pytest.MonkeyPatch, setup: Callable[[], object], action: Callable[[], object]
) -> Iterator[int]:
    """Yields after each kill, with the number of changes made before; ends when `action` does.

    `setup` runs before each attempt, undisturbed.
    """
    for allowed in range(10_000):
        setup()
        with monkeypatch.context() as patch:
            _kill_after(patch, allowed)
            try:
                action()
            except Killed:
                pass
            else:
                return
        yield allowed


def _kill_after(patch: pytest.MonkeyPatch, allowed: int) -> None:
    left = [allowed]

    def mortal(change: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            if not left[0]:
                raise Killed
            left[0] -= 1
            return change(*args, **kwargs)

        return call

    for name in _CHANGES:
        patch.setattr(os, name, mortal(getattr(os, name)))
    patch.setattr(replacing, "exchange", mortal(replacing.exchange))
