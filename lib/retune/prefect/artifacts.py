"""What a run shows in the Prefect UI, under keys of its network and device."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from retune.core.names import model_name, slug
from retune.core.target import model_of
from retune.pipeline.results import TuneEvent, TuneResult
from retune.pipeline.rows import latency_lines, task_rows
from retune.pipeline.watch import watching

UPDATE_INTERVAL_S = 30.0
"""Of the progress bar: a server that works disturbs what is measured."""


@contextmanager
def tuning_progress(model: str, device: str) -> Generator[None]:
    """In this context a progress bar shows the share of the measuring budget that is spent."""
    created = create_progress_artifact(
        progress=0.0,
        key=slug("progress", model_name(model), device),
        description=f"Measuring budget of {model} on {device}",
    )
    assert isinstance(created, UUID)
    updated = time.monotonic()

    def show(event: TuneEvent) -> None:
        nonlocal updated
        over = event.stage == "finalists"
        if not over and (event.stage != "tune" or time.monotonic() - updated < UPDATE_INTERVAL_S):
            return
        updated = time.monotonic()
        share = 1.0 if over else event.spent
        update_progress_artifact(artifact_id=created, progress=100 * share)

    with watching(progress=show):
        yield


def show_result(result: TuneResult, device: str) -> None:
    """The task table and the summary of a finished run."""
    names = model_name(result.model), device
    create_table_artifact(
        key=slug("tasks", *names),
        table=task_rows(result),
        description=f"Tasks of {result.name} on {model_of(result.target)}, the costliest first",
    )
    verified = result.verified
    deviation = f"{verified.max_abs:.2e} ({verified.max_rel:.1e} of the output's range)"
    lines = [
        f"# {result.name} on {device}",
        *(f"- {line}" for line in latency_lines(result)),
        f"- largest deviation from {verified.oracle}: {deviation}",
        f"- bundle `{result.module}`, report `{result.report}`, records `{result.records}`",
    ]
    create_markdown_artifact(key=slug("summary", *names), markdown="\n".join(lines))
