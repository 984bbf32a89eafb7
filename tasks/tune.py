"""Prefect tasks: the tuning of each task, all at once, then their finalists compared."""

from typing import Any

from retune.pipeline.tuning import stage_finalists, stage_tune
from retune.prefect.stage_task import stage_task


def _tune_name(arguments: dict[str, Any]) -> str:
    """The tuning task's own name."""
    key = arguments["task_key"]
    names = {entry.key: entry.name for entry in arguments["tasks"].tasks}
    return f"tune {names[key]}"


tune = stage_task(stage_tune, "tune", run_name=_tune_name, timeout=None)
finalists = stage_task(stage_finalists, "finalists")
