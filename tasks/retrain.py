"""Prefect task: a cost model trained on the whole record store."""

from retune.pipeline.upkeep import stage_retrain
from retune.prefect.stage_task import stage_task

retrain = stage_task(stage_retrain, "retrain")
