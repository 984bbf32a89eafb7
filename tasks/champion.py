"""Prefect task: a published bundle is timed beside the controls, in absolute time."""

from typing import Any

from retune.nightly.control import stage_champion
from retune.prefect.stage_task import stage_task


def _name(arguments: dict[str, Any]) -> str:
    row = arguments["row"]
    return f"champion {row.network} on {row.device}"


champion = stage_task(stage_champion, "champion", run_name=_name)
