"""What every flow run of ours has: tags, a readable name, a limit by device, cancellation, hooks.

Read `flow_run`. `prefect gcl create retune-device-pocl --limit 1` makes a lab tune for that device
with one run at a time; without such a limit nothing is waited for.
"""

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypedDict, cast
from uuid import UUID

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.concurrency.sync import concurrency
from prefect.runtime import flow_run as current

from retune.core.names import model_name, slug
from retune.prefect.cancelling import cancellable
from retune.prefect.reap import run_tags

if TYPE_CHECKING:
    from prefect.flows import FlowStateHook


class Hooks(TypedDict):
    """What is called at the end of a run that did not complete."""

    on_failure: "list[FlowStateHook[..., Any]]"
    on_crashed: "list[FlowStateHook[..., Any]]"


def outcome(flow: Flow[..., Any], parameters: Mapping[str, Any]) -> object:
    """What a flow run of these parameters returns, or the exception that ended it."""
    run = cast("Callable[..., State[Any]]", flow)
    return run(**parameters, return_state=True).result(raise_on_failure=False)


def name_of_run() -> str:
    """`resnet50 on pocl`, by the parameters of the flow run of this context."""
    given: dict[str, Any] = current.parameters
    words = [model_name(str(given[name])) for name in ("model", "config") if given.get(name)]
    device = given.get("device")
    return " on ".join([*words, *([str(device)] if device else [])]) or str(current.flow_name)


@contextmanager
def flow_run(*, tags: Sequence[str] = (), device: str | None = None) -> Generator[None]:
    """The flow run of this context is tagged, holds its place at the device, and can be cancelled.

    Tags are `retune`, the host and process (by which a dead run is known) and the given ones. Waits
    for a place where the server limits the runs of a device.
    """
    _tag(["retune", *run_tags(), *tags])
    with ExitStack() as held:
        if device:
            limit = f"retune-device-{slug(device)}"
            held.enter_context(concurrency(limit, strict=False))
        held.enter_context(cancellable(current.id))
        yield


def _tag(tags: Sequence[str]) -> None:
    with get_client(sync_client=True) as client:
        run = UUID(str(current.id))
        known = client.read_flow_run(run).tags
        kept = [tag for tag in known if not tag.startswith("process:")]  # of an earlier try
        client.update_flow_run(run, tags=list(dict.fromkeys([*kept, *tags])))


def _say_how_to_go_on(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
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
        f"prefect flow-run retry {flow_run.id} --entrypoint {_entrypoint(flow)}",
        "```",
    ]
    made = ArtifactCreate(
        type="markdown",
        key=slug(flow.name, "failure"),
        data="\n".join(lines),
        flow_run_id=flow_run.id,
    )
    with get_client(sync_client=True) as client:
        client.create_artifact(made)


def _entrypoint(flow: Flow[..., Any]) -> str:
    return f"{inspect.getsourcefile(flow.fn)}:{flow.fn.__name__}"


HOOKS: Hooks = {"on_failure": [_say_how_to_go_on], "on_crashed": [_say_how_to_go_on]}
