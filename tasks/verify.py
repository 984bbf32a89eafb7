"""Prefect task: a bundle's outputs are compared with the oracle's."""

from retune.pipeline.delivery import stage_verify
from retune.prefect.stage_task import stage_task

verify = stage_task(stage_verify, "verify")
