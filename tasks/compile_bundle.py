"""Prefect tasks: chosen records become a bundle, for fixed shapes or for ranges of sizes."""

from retune.pipeline.delivery import stage_compile
from retune.pipeline.programs import stage_compile_programs
from retune.prefect.stage_task import stage_task

compile_bundle = stage_task(
    stage_compile, "compile", run_name=lambda arguments: f"compile {arguments['variant']}"
)
compile_programs = stage_task(
    stage_compile_programs,
    "compile-programs",
    run_name=lambda arguments: f"compile {arguments['variant']}",
)
