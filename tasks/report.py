"""Prefect task: the bundle and its report are published."""

from retune.pipeline.publishing import stage_report
from retune.prefect.stage_task import stage_task

report = stage_task(stage_report, "report")
