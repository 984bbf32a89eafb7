"""Prefect task: chosen records become a bundle."""

from retune.pipeline.delivery import stage_compile
from retune.prefect.stage_task import stage_task

compile_bundle = stage_task(
    stage_compile, "compile", run_name=lambda arguments: f"compile {arguments['variant']}"
)
