"""When a Prefect task may be skipped, and when it may be tried again.

Prefect's cache only saves the call: the truth is the stage's own output on disk, which the flow
checks after a hit. Keys are content keys, equal in every process.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypedDict

from prefect import Task
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext

from retune.core.errors import DeviceError
from retune.stages.manifest import Manifest, TuneRequest
from retune.stages.stage import stage_key

PASSING = (DeviceError, OSError)
"""Errors with causes that may pass: a busy device, a full disk. Anything else is for a person."""


class Retry(TypedDict):
    """Options of a task that may fail for a passing reason."""

    retries: int
    retry_delay_seconds: list[float]
    retry_condition_fn: Callable[[Task[..., Any], TaskRun, State[Any]], bool]


def content_cache(stage: str) -> Callable[[TaskRunContext, dict[str, Any]], str]:
    """A `cache_key_fn` over the contents of the task's parameters."""

    def key(_context: TaskRunContext, parameters: dict[str, Any]) -> str:
        return cache_key(stage, parameters)

    return key


def cache_key(stage: str, parameters: Mapping[str, object]) -> str:
    """`<stage>-<content key>`; manifests count by their own keys, requests by what they ask."""
    return f"{stage}-{stage_key(stage, {k: _identity(v) for k, v in parameters.items()})}"


def may_pass(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """True if the failure is worth another try."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, PASSING)


RETRY: Retry = {
    "retries": 2,
    "retry_delay_seconds": [5, 30],
    "retry_condition_fn": may_pass,
}


def _identity(value: object) -> object:
    match value:
        case Manifest():
            return value.stage, value.key
        case TuneRequest():
            return replace(value, out="")
        case _:
            return value
