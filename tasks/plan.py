"""Prefect task: a night's minutes are divided over the fleet."""

from retune.nightly.members import stage_plan
from retune.prefect.stage_task import stage_task

plan = stage_task(stage_plan, "plan")
