"""A lock file has one holder at a time, and none when its holder is gone."""

import threading
from pathlib import Path

from retune.core.locking import exclusive


def test_the_second_waits_for_the_first(tmp_path: Path):
    path, order = tmp_path / "a" / "lock", list[str]()

    def second() -> None:
        with exclusive(path):
            order.append("second")

    with exclusive(path):
        waiting = threading.Thread(target=second)
        waiting.start()
        order.append("first")
    waiting.join()
    assert order == ["first", "second"]
