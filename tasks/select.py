"""Prefect tasks: which record each tuning task is compiled from, and its last check."""

from retune.pipeline.mending import stage_mend
from retune.pipeline.selection import stage_select
from retune.prefect.stage_task import stage_task

select = stage_task(stage_select, "select")
mend = stage_task(stage_mend, "mend")
