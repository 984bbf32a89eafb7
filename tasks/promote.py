"""Prefect task: of the published bundle and a new one, the better one is published."""

from retune.pipeline.publishing import stage_promote
from retune.prefect.stage_task import stage_task

promote = stage_task(stage_promote, "promote")
