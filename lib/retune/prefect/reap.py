"""Flow runs whose process or host died would stay `Running` for ever; here they become `Crashed`.

Read `mark_dead_runs`, which every flow of ours calls when it begins. Each run carries tags that
name its host and process: on that host it is dead once the process is gone. On another host it is
dead once its heartbeats, which Prefect sends for every flow run, have ceased. A crashed run can be
retried by `prefect flow-run retry`. `free_slots` gives back the slots that such runs had.
"""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType, TaskRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter
from prefect.states import Crashed

from retune.core.processes import Holder, is_alive, this_process
from retune.prefect.contact import SERVER

OURS = "retune"
"""Tag of every flow run of ours."""
DEVICE = "device:"
"""Begins the tag that names the device."""
LEASE = "retune.lease"
"""Label of a flow run: the lease of its slot of a device, see `slots`."""
ATTEMPT = "retune.attempt"
"""Label of a flow run: which of its attempts (`run_count`) its tags are of."""
HEARTBEAT = "prefect.flow-run.heartbeat"
SILENCE = timedelta(minutes=10)
"""Three heartbeats of Prefect's usual interval, and one more."""

_KILLED = [StateType.CRASHED, StateType.CANCELLED, StateType.FAILED]
_LATEST = 20
"""Runs that were killed longer ago have no lease any longer."""

_LOG = logging.getLogger("retune.prefect")


def run_tags() -> tuple[str, str]:
    """Tags of the runs of this process."""
    here = this_process()
    return f"host:{here.host}", f"process:{here.process}-{here.started}"


def mark_dead_runs() -> int:
    """Holds after the call: no run of ours that is known to be dead counts as running, nor do its
    tasks.

    Gives how many there were. A server that does not answer is left as it is.
    """
    return SERVER.ask(_mark_dead_runs) or 0


def free_slots(device: str) -> None:
    """Holds after the call: no run of ours that is known to have ended has a slot of the device.

    Who is killed gives nothing back; its lease would last for a minute.
    """
    mark_dead_runs()
    SERVER.ask(lambda client: _free_slots(client, device))


def _free_slots(client: SyncPrefectClient, device: str) -> None:
    killed = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_KILLED)),
        tags=FlowRunFilterTags(all_=[OURS, f"{DEVICE}{device}"]),
    )
    latest = client.read_flow_runs(
        flow_run_filter=killed, sort=FlowRunSort.END_TIME_DESC, limit=_LATEST
    )
    for run in latest:
        if lease := run.labels.get(LEASE):  # one that was given back is not known any longer
            client.release_concurrency_slots_with_lease(UUID(str(lease)))


def running_runs(client: SyncPrefectClient, *tags: str) -> list[FlowRun]:
    """The runs of ours with these tags that count as running."""
    running = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.RUNNING])),
        tags=FlowRunFilterTags(all_=[OURS, *tags]),
    )
    return client.read_flow_runs(flow_run_filter=running)


def _mark_dead_runs(client: SyncPrefectClient) -> int:
    dead = 0
    for run in running_runs(client):
        if why := _death(client, run):
            _LOG.warning("flow run %r is marked as crashed: %s", run.name, why)
            client.set_flow_run_state(run.id, Crashed(message=why), force=True)
            for task in _unfinished_tasks(client, run):
                client.set_task_run_state(task.id, Crashed(message=why), force=True)
            dead += 1
    return dead


def _unfinished_tasks(client: SyncPrefectClient, run: FlowRun) -> list[TaskRun]:
    """The task runs of the flow run that count as running, or as about to."""
    return client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run.id])),
        task_run_filter=TaskRunFilter(
            state=TaskRunFilterState(
                type=TaskRunFilterStateType(any_=[StateType.RUNNING, StateType.PENDING])
            )
        ),
    )


def _death(client: SyncPrefectClient, run: FlowRun) -> str:
    """How the run is known to be dead; empty if it is not known to be."""
    earlier = run.labels.get(ATTEMPT, run.run_count) != run.run_count
    if not earlier:  # otherwise it goes on elsewhere, and has not said so yet
        if is_dead(run.tags):
            return "the process that ran it is gone"
        if run_tags()[0] in run.tags:
            return ""
    last = _last_heartbeat(client, run.id)
    if last is None or datetime.now(UTC) - last < SILENCE:
        return ""
    return f"its host has sent no heartbeat since {last:%Y-%m-%d %H:%M:%S} UTC"


def _last_heartbeat(client: SyncPrefectClient, run: UUID) -> datetime | None:
    """When the run's last one came; None if none ever did, as where heartbeats are turned off."""
    page = client.read_events(
        EventFilter(
            event=EventNameFilter(name=[HEARTBEAT]),
            resource=EventResourceFilter(id=[f"prefect.flow-run.{run}"]),
        ),
        limit=1,
    )
    return page.events[0].occurred if page.events else None


def is_dead(tags: Sequence[str]) -> bool:
    """True if the tags name a process of this host that no longer runs."""
    values = {name: value for name, _, value in (tag.partition(":") for tag in tags)}
    number, _, started = values.get("process", "").partition("-")
    if "host" not in values or not number.isdecimal():
        return False
    return not is_alive(Holder(host=values["host"], process=int(number), started=started))
