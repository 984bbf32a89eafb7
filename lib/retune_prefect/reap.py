"""Flow runs whose process was killed would stay `Running` for ever; here they become `Crashed`.

Each run carries tags that name its host and process (with the process's start time, since process
numbers are used again). A crashed run can be retried by `prefect flow-run retry`.
"""

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed


def run_tags() -> tuple[str, str]:
    """Tags of the runs of this process."""
    return f"host:{socket.gethostname()}", f"process:{os.getpid()}-{_start_time(os.getpid())}"


def mark_dead_runs() -> int:
    """Holds after the call: no run of ours that died on this host counts as running."""
    host, _ = run_tags()
    running = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
        tags=FlowRunFilterTags(all_=["retune", host]),
    )
    with get_client(sync_client=True) as client:
        dead = [run for run in client.read_flow_runs(flow_run_filter=running) if is_dead(run.tags)]
        for run in dead:
            state = Crashed(message="the process that ran it is gone")
            client.set_flow_run_state(run.id, state, force=True)
    return len(dead)


def is_dead(tags: Sequence[str]) -> bool:
    """True if the tags name a process that no longer runs."""
    for tag in tags:
        if tag.startswith("process:"):
            number, _, started = tag.removeprefix("process:").partition("-")
            return _start_time(int(number)) != started
    return False


def _start_time(process: int) -> str:
    """When the process started, in ticks since boot; empty if there is none, or none is known."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "" if Path("/proc").is_dir() else "unknown"
    return fields[19]
