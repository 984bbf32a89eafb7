"""Prefect task: bundles and other programs are timed in turns."""

from retune.pipeline.delivery import stage_bench
from retune.prefect.stage_task import stage_task

benchmark = stage_task(stage_bench, "benchmark")
