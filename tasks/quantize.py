"""Prefect task: a network becomes one of integers."""

from retune.pipeline.quantization import stage_quantize
from retune.prefect.stage_task import stage_task

quantize = stage_task(stage_quantize, "quantize")
