"""What a run shows in the Prefect UI: progress, the task table, a summary."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import (
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

from retune.stages.rows import latency_lines, task_rows
from retune.stages.manifest import TuneResult


@contextmanager
def tuning_progress() -> Generator[Callable[[float], None]]:
    """A progress bar for the measurements; call what is yielded with percents."""
    created = create_progress_artifact(
        progress=0.0, key="tuning-progress", description="Share of the measuring budget spent"
    )
    assert isinstance(created, UUID)

    def update(percent: float) -> None:
        update_progress_artifact(artifact_id=created, progress=percent)

    yield update


def publish(result: TuneResult) -> None:
    """The task table and the summary of a finished run."""
    create_table_artifact(
        key="tuning-tasks",
        table=task_rows(result),
        description=f"Tasks of {result.name} on {result.target}, the costliest first",
    )
    verified = result.verified
    deviation = f"{verified.max_abs:.2e} ({verified.max_rel:.1e} of the output's range)"
    lines = [
        f"# {result.name}",
        *(f"- {line}" for line in latency_lines(result)),
        f"- largest deviation from {verified.oracle}: {deviation}",
        f"- bundle `{result.module}`, report `{result.report}`, records `{result.records}`",
    ]
    create_markdown_artifact(key="tuning-summary", markdown="\n".join(lines))
