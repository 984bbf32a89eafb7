"""Prefect task: a network becomes tuning tasks."""

from retune.pipeline.network import stage_extract
from retune.prefect.stage_task import stage_task

extract = stage_task(stage_extract, "extract")
