"""Prefect tasks: which record each tuning task is compiled from, and the last check of that."""

from retune.stages.selection import stage_select
from retune.stages.settling import stage_settle
from retune_prefect.stage_task import stage_task

select = stage_task(stage_select, "select")
settle = stage_task(stage_settle, "settle")
