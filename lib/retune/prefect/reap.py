"""Flow runs whose process was killed would stay `Running` for ever; here they become `Crashed`.

Each run carries tags that name its host and process. A crashed run can be retried by `prefect
flow-run retry`.
"""

from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Crashed

from retune.core.processes import Holder, is_alive, this_process


def run_tags() -> tuple[str, str]:
    """Tags of the runs of this process."""
    here = this_process()
    return f"host:{here.host}", f"process:{here.process}-{here.started}"


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
    """True if the tags name a process of this host that no longer runs."""
    values = {name: value for name, _, value in (tag.partition(":") for tag in tags)}
    number, _, started = values.get("process", "").partition("-")
    if "host" not in values or not number.isdecimal():
        return False
    return not is_alive(Holder(host=values["host"], process=int(number), started=started))
