"""Prefect task: a bundle's outputs are compared with the oracle's."""

from retune.stages.delivery import stage_verify
from retune_prefect.stage_task import stage_task

verify = stage_task(stage_verify, "verify")
