"""Prefect task: bundles and other programs are timed in turns."""

from retune.stages.delivery import stage_bench
from retune_prefect.stage_task import stage_task

benchmark = stage_task(stage_bench, "benchmark")
