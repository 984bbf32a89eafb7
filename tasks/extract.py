"""Prefect task: a network becomes tuning tasks."""

from retune.stages.network import stage_extract
from retune_prefect.stage_task import stage_task

extract = stage_task(stage_extract, "extract")
