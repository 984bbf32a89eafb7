"""Prefect task: chosen records become a bundle."""

from retune.stages.delivery import stage_compile
from retune_prefect.stage_task import stage_task

compile_bundle = stage_task(
    stage_compile, "compile", run_name=lambda arguments: f"compile {arguments['variant']}"
)
