"""Prefect tasks: which record each tuning task is compiled from, and what its bundle says of it."""

from retune.pipeline.selection import stage_choose
from retune.pipeline.validation import stage_compare, stage_validate
from retune.prefect.stage_task import stage_task

choose = stage_task(stage_choose, "choose")
validate = stage_task(stage_validate, "validate")
compare = stage_task(stage_compare, "compare")
