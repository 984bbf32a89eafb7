"""Artifacts of a run in the Prefect UI, under keys of its fleet, network and device.

A server that does not answer shows nothing, and neither delays nor fails the run.
"""

import json
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
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


_FLEET: ContextVar[tuple[str, ...]] = ContextVar("retune_fleet", default=())


@contextmanager
def of_fleet(name: str) -> Generator[None]:
    """Keys of artifacts in this context begin with the fleet: two fleets do not share a history."""
    token = _FLEET.set((name,))
    try:
        yield
    finally:
        _FLEET.reset(token)


def fleet_of_context() -> tuple[str, ...]:
    """The name of the fleet that the context is of; empty where it is of none."""
    return _FLEET.get()


def show_markdown(*words: str, markdown: str, description: str = "") -> None:
    """The flow run has an artifact of that text, under a key of these words."""
    _show("markdown", words, markdown, description)


def show_table(*words: str, rows: Sequence[Row], description: str = "") -> None:
    """The flow run has an artifact of that table."""
    _show("table", words, json.dumps(rows), description)


def show_file(*words: str, path: Path, title: str) -> None:
    """The flow run has an artifact that links to a file or folder of its host."""
    where = path.resolve()
    _show("markdown", words, f"[{title}]({where.as_uri()})", f"{title}: {where}")


def _show(kind: Kind, words: Sequence[str], data: Any, description: str) -> UUID | None:
    """The artifact's id; None if the server does not answer."""
    run = FlowRunContext.get()
    made = ArtifactCreate(
        type=kind,
        key=slug(*_FLEET.get(), *words),
        data=data,
        description=description or None,
        flow_run_id=run.flow_run.id if run and run.flow_run else None,
    )
    created = SERVER.ask(lambda client: client.create_artifact(made))
    return created.id if created else None


@contextmanager
def tuning_progress(model: str, device: str) -> Generator[None]:
    """In this context a progress bar shows the share of the measuring budget that is spent."""
    names = model_name(model), device
    what = f"Measuring budget of {' on '.join(names)}"
    created = _show("progress", ("progress", *names), 0.0, what)
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
    title = f"{result.name} on {names[1]}"
    show_table(
        *("tasks", *names),
        rows=task_rows(result),
        description=f"Tasks of {result.name} on {model_of(result.target)}, the costliest first",
    )
    verified = result.verified
    deviation = f"{verified.max_abs:.2e} ({verified.max_rel:.1e} of the output's range)"
    lines = [
        f"# {title}",
        *(f"- {line}" for line in latency_lines(result)),
        f"- largest deviation from {verified.oracle}: {deviation}, {verified.decision}",
        *(f"- note: {note}" for note in verified.notes),
        *([f"- {result.slow}"] if result.slow else []),
        f"- bundle `{result.module}`, report `{result.report}`, records `{result.records}`",
    ]
    show_markdown("summary", *names, markdown="\n".join(lines), description=f"Result of {title}")
    show_file("report", *names, path=Path(result.report), title=f"Report of {title}")
    show_file("bundle", *names, path=Path(result.module), title=f"Bundle of {title}")
