"""The threads of a flow's searches, when the process is to end."""

import contextlib
import threading
from concurrent.futures import Future

import pytest

DEADLINE_S = 30.0


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_ctrl_c_alone_does_not_wait_for_searches(error: type[BaseException]):
    from flows.tune_network import SearchRunner

    ended, begun = threading.Event(), threading.Event()
    runner = SearchRunner(max_workers=1)

    def search() -> bool:
        begun.set()
        return ended.wait(DEADLINE_S)

    def leave() -> Future[bool]:
        with contextlib.suppress(error), runner:
            assert runner._executor is not None
            future = runner._executor.submit(search)
            assert begun.wait(DEADLINE_S)
            if error is ValueError:
                ended.set()
            raise error
        return future

    future = leave()
    assert future.done() == (error is ValueError)
    ended.set()
    assert future.result(DEADLINE_S)
