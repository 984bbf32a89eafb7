"""Prefect task: a cost model trained on the whole record store."""

from retune.stages.upkeep import stage_retrain
from retune_prefect.stage_task import stage_task

retrain = stage_task(stage_retrain, "retrain")
