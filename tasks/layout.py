"""Prefect task: where the images of a network lie."""

from retune.pipeline.layouts import stage_layout
from retune.prefect.stage_task import stage_task

layout = stage_task(stage_layout, "layout")
