"""Prefect task: layers of a network get the types of mixed precision."""

from retune.pipeline.precision import stage_precision
from retune.prefect.stage_task import stage_task

precision = stage_task(stage_precision, "precision")
