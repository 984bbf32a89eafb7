"""The result of a flow whose server died meanwhile: the flow's files are complete all the same.

Read `kept`, which decorates the bodies of our flows, and `surviving`, which calls a flow. Prefect
reports the end of a run to its server and raises an error of the connection where that fails; what
the body returned or raised is then lost.
"""

import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from retune.core.errors import RetuneError
from retune.prefect.contact import is_silence

P = ParamSpec("P")
R = TypeVar("R")

_RETURNED: ContextVar[list[object]] = ContextVar("retune_returned")


def kept(body: Callable[P, R]) -> Callable[P, R]:
    """Decorates the body of a flow: `surviving` finds what it returns."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        result = body(*args, **kwargs)
        if (returned := _RETURNED.get(None)) is not None:
            returned.append(result)
        return result

    return run


def surviving(call: Callable[[], R]) -> R:
    """What the flow that `call` calls returns, also if its server is gone when it ends.

    Raises: what the flow's body raised, also then; an error of the connection if the body was not
    called, or did not end.
    """
    returned: list[object] = []
    token = _RETURNED.set(returned)
    try:
        return call()
    except Exception as lost:
        if not is_silence(lost):
            raise
        if returned:
            return returned[-1]  # type: ignore[return-value] - the body's own
        for error in _causes(lost):
            if isinstance(error, RetuneError):
                raise error from None
        raise
    finally:
        _RETURNED.reset(token)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The errors that were being handled when the error was raised, the latest first."""
    while (before := error.__cause__ or error.__context__) is not None:
        yield before
        error = before
