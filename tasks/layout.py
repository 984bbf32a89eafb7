"""Prefect task: where the images of a network lie."""

from retune.stages.layouts import stage_layout
from retune_prefect.stage_task import stage_task

layout = stage_task(stage_layout, "layout")
