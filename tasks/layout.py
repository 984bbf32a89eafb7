"""Prefect task: the layouts of the activations of a network."""

from retune.pipeline.layouts import stage_layout
from retune.prefect.stage_task import stage_task

layout = stage_task(stage_layout, "layout")
