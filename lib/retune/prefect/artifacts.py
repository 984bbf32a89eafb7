"""What a run shows in the Prefect UI, under keys of its network and device.

A server that does not answer shows nothing, and neither delays nor fails the run.
"""

import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.context import FlowRunContext

from retune.core.names import model_name, slug
from retune.core.target import model_of
from retune.pipeline.results import TuneEvent, TuneResult
from retune.pipeline.rows import Row, latency_lines, task_rows
from retune.pipeline.watch import watching
from retune.prefect.contact import SERVER

Kind = Literal["markdown", "table", "progress"]

UPDATE_INTERVAL_S = 30.0
"""Of the progress bar: a server that works disturbs what is measured."""


def show_markdown(key: str, markdown: str, description: str = "") -> None:
    """The flow run has an artifact of that text."""
    _show("markdown", key, markdown, description)


def show_table(key: str, rows: Sequence[Row], description: str = "") -> None:
    """The flow run has an artifact of that table."""
    _show("table", key, json.dumps(rows), description)


def show_file(key: str, path: Path, title: str) -> None:
    """The flow run has an artifact that links to a file or folder of its host."""
    _show("markdown", key, f"[{title}]({path.resolve().as_uri()})", f"{title}: {path.resolve()}")


def _show(kind: Kind, key: str, data: Any, description: str) -> UUID | None:
    """The artifact's id; None if the server does not answer."""
    run = FlowRunContext.get()
    made = ArtifactCreate(
        type=kind,
        key=key,
        data=data,
        description=description or None,
        flow_run_id=run.flow_run.id if run and run.flow_run else None,
    )
    created = SERVER.ask(lambda client: client.create_artifact(made))
    return created.id if created else None


@contextmanager
def tuning_progress(model: str, device: str) -> Generator[None]:
    """In this context a progress bar shows the share of the measuring budget that is spent."""
    key = slug("progress", model_name(model), device)
    what = f"Measuring budget of {model_name(model)} on {device}"
    created = _show("progress", key, 0.0, what)
    updated = time.monotonic()

    def show(event: TuneEvent) -> None:
        nonlocal updated
        over = event.stage == "finalists"
        if created is None or (not over and event.stage != "tune"):
            return
        if not over and time.monotonic() - updated < UPDATE_INTERVAL_S:
            return
        updated = time.monotonic()
        share = ArtifactUpdate(data=100.0 if over else 100 * event.spent)
        SERVER.ask(partial(SyncPrefectClient.update_artifact, artifact_id=created, artifact=share))

    with watching(progress=show):
        yield


def show_result(result: TuneResult, device: str) -> None:
    """The task table, the summary, and links to bundle and report of a finished run."""
    names = model_name(result.model), device
    show_table(
        slug("tasks", *names),
        task_rows(result),
        f"Tasks of {result.name} on {model_of(result.target)}, the costliest first",
    )
    verified = result.verified
    deviation = f"{verified.max_abs:.2e} ({verified.max_rel:.1e} of the output's range)"
    lines = [
        f"# {result.name} on {device}",
        *(f"- {line}" for line in latency_lines(result)),
        f"- largest deviation from {verified.oracle}: {deviation}",
        f"- bundle `{result.module}`, report `{result.report}`, records `{result.records}`",
    ]
    show_markdown(slug("summary", *names), "\n".join(lines))
    show_file(slug("report", *names), Path(result.report), f"Report of {result.name} on {device}")
    show_file(slug("bundle", *names), Path(result.module), f"Bundle of {result.name} on {device}")
