"""Common parts of flow runs: tags, a readable name, a limit by device, cancellation, hooks.

Read `flow_run`. `prefect gcl create retune-device-pocl --limit 1` makes a lab tune for that device
with one run at a time; without such a limit nothing is waited for.
"""

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, TypedDict, cast
from uuid import UUID, uuid4

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.context import FlowRunContext
from prefect.runtime import flow_run as current

from retune.core.errors import RetuneError
from retune.core.names import model_name, slug
from retune.device.opening import display_name
from retune.prefect.cancelling import cancellable
from retune.prefect.contact import SERVER, forget_pending
from retune.prefect.reap import ATTEMPT, DEVICE, OURS, mark_dead_runs, run_tags
from retune.prefect.run_log import run_log
from retune.prefect.slots import device_slot
from retune.prefect.surviving import surviving

if TYPE_CHECKING:
    from prefect.flows import FlowStateHook


class Hooks(TypedDict):
    """What is called at the end of a run that did not complete."""

    on_failure: "list[FlowStateHook[..., Any]]"
    on_crashed: "list[FlowStateHook[..., Any]]"


def outcome(flow: Flow[..., Any], parameters: Mapping[str, Any]) -> object:
    """What a flow run of these parameters returns, or the exception that ended it.

    A server that dies once the flow has begun changes neither. Raises: an error of the connection
    (`httpx.TransportError`) where the server did not let it begin.
    """
    run = cast("Callable[..., object]", _afresh(flow))
    try:
        found = surviving(lambda: run(**parameters, return_state=True))
    except RetuneError as error:
        return error
    return found.result(raise_on_failure=False) if isinstance(found, State) else found


def _afresh(flow: Flow[..., Any]) -> Flow[..., Any]:
    """The flow, whose next run is a new one, also within a parent that is tried again.

    Prefect knows a child run by its function and by how many of these its parent began before, and
    gives a parent that is tried again the results of the first try in that order. A night that is
    tried again begins others: those that had failed.
    """
    body = flow.fn

    @functools.wraps(body)
    def own(*args: object, **kwargs: object) -> object:
        return body(*args, **kwargs)

    own.__qualname__ = f"{body.__name__}_{uuid4().hex}"
    found = copy(flow)
    found.fn = own
    return found


def name_of_run() -> str:
    """The name of the flow run of this context, as `name_of` says it."""
    return name_of(str(current.flow_name), current.parameters)


def name_of(flow: str, parameters: Mapping[str, Any]) -> str:
    """`resnet50 on pocl` or a fleet's name: what a flow run of these parameters is called."""
    if model := parameters.get("model"):
        device = parameters.get("device")
        return f"{model_name(str(model))}{f' on {display_name(str(device))}' if device else ''}"
    config = parameters.get("config")
    return model_name(str(config)) if config else flow


@contextmanager
def flow_run(
    *, tags: Sequence[str] = (), device: str | None = None, name: str | None = None
) -> Generator[None]:
    """The flow run of this context is tagged, has its slot of the device, and can be cancelled.

    Tags are `retune`, host and process (by which a dead run is known), device, and the given ones;
    `name` replaces the run's name. retune's log is the run's log. Runs that died are
    marked so first, as one of them may have the slot. Waits for a slot where the server limits the
    runs of a device. A server that does not answer changes nothing of what is done here.
    """
    run = UUID(str(current.id))
    of_device = [f"{DEVICE}{device}"] if device else []
    with ExitStack() as held:
        held.callback(forget_pending)
        held.enter_context(run_log())
        SERVER.ask(
            lambda client: _describe(client, run, [OURS, *run_tags(), *tags, *of_device], name)
        )
        mark_dead_runs()  # after that: a run that goes on had the tags of a process that is gone
        held.enter_context(cancellable(current.id))
        if device:
            held.enter_context(device_slot(device, run))
        yield


def _describe(client: SyncPrefectClient, run: UUID, tags: Sequence[str], name: str | None) -> None:
    known = client.read_flow_run(run)
    kept = [
        tag for tag in known.tags if not tag.startswith(("host:", "process:"))
    ]  # of an earlier try
    client.update_flow_run(run, tags=list(dict.fromkeys([*kept, *tags])), name=name)
    client.update_flow_run_labels(run, {ATTEMPT: known.run_count})
    here = FlowRunContext.get()
    if name and here and here.flow_run:
        here.flow_run.name = name  # which its events are to show


def say_how_to_go_on(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """An artifact: what went wrong, and what continues the run.

    It is called outside of the run where that crashed, so that the artifact has to say whose it is.
    """
    lines = [
        f"# {flow_run.name}: {state.name}",
        "",
        state.message or "no message",
        "",
        "What is finished is kept. To continue from the stage that failed:",
        "",
        "```",
        f"prefect flow-run retry {flow_run.id} --entrypoint {entrypoint(flow)}",
        "```",
    ]
    made = ArtifactCreate(
        type="markdown",
        key=slug("failure", name_of(flow.name, flow_run.parameters)),
        data="\n".join(lines),
        description=f"How to continue {flow_run.name}",
        flow_run_id=flow_run.id,
    )
    SERVER.ask(lambda client: client.create_artifact(made))


def entrypoint(flow: Flow[..., Any]) -> str:
    """What Prefect's commands load the flow by."""
    return f"{flow.fn.__module__}.{flow.fn.__name__}"


HOOKS: Hooks = {"on_failure": [say_how_to_go_on], "on_crashed": [say_how_to_go_on]}
