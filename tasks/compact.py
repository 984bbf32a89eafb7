"""Prefect task: the record store's files of finished days are joined."""

from retune.pipeline.upkeep import stage_compact
from retune.prefect.stage_task import stage_task

compact = stage_task(stage_compact, "compact")
