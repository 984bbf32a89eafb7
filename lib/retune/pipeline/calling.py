"""Callers of stages: a chain says which stages run, and a caller runs them.

Read `Caller`. `InProcess` simply calls; Prefect's makes a task run of each call.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from typing import ParamSpec, Protocol, TypeVar

from retune.pipeline.watch import watching

P = ParamSpec("P")
R = TypeVar("R")


class Caller(Protocol):
    """Calls stages: the chain says which, with what, and in what order."""

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The stage's result. Raises: the stage's error, when it fails for good."""
        ...

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        """The stage's result or error for each of these arguments, all called at once."""
        ...


class InProcess:
    """A Caller that simply calls."""

    def call(self, stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """The stage's result."""
        return stage(*args, **kwargs)

    def together(
        self, stage: Callable[..., R], arguments: Sequence[tuple[object, ...]]
    ) -> list[R | Exception]:
        """In a thread for each. An interrupt leaves after the batch in flight."""
        if not arguments:
            return []
        left = Event()
        with ThreadPoolExecutor(len(arguments), thread_name_prefix="search") as pool:
            with watching(stop=left.is_set):
                futures = [pool.submit(copy_context().run, stage, *each) for each in arguments]
            try:
                return [_outcome(future) for future in futures]
            except BaseException:
                left.set()
                raise


def _outcome(future: Future[R]) -> R | Exception:
    """The future's result; an interrupt of this process is raised."""
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, Exception):
        return error
    raise error
