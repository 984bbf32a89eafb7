"""Prefect tasks: the search for each tuning task, all at once, then their finalists compared."""

from typing import Any

from retune.pipeline.tuning import stage_finalists, stage_search
from retune.prefect.stage_task import stage_task


def _search_name(arguments: dict[str, Any]) -> str:
    """The tuning task's own name."""
    key = arguments["task_key"]
    names = {entry.key: entry.name for entry in arguments["tasks"].tasks}
    return f"search {names[key]}"


search = stage_task(stage_search, "search", run_name=_search_name, timeout=None)
finalists = stage_task(stage_finalists, "finalists")
