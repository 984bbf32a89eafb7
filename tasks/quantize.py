"""Prefect task: a network becomes one of integers."""

from retune.stages.quantization import stage_quantize
from retune_prefect.stage_task import stage_task

quantize = stage_task(stage_quantize, "quantize")
