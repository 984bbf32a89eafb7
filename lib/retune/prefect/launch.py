"""Runs a flow from a command: a Prefect API at hand, and the result brought back.

Importing this module does not import Prefect: its server must be there first.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from retune.prefect.server import prefect_api

if TYPE_CHECKING:
    from prefect import Flow

R = TypeVar("R")

FLUSH_S = 10.0
LOST_FLUSH_S = 1.0
"""Where the server does not answer."""


def run_flow(call: Callable[[], R]) -> R:
    """What `call` returns, which imports a flow and calls it, while there is a Prefect API.

    A server that dies meanwhile changes neither. Raises: what a stage raised, when it fails for
    good; RunCancelled if the run was cancelled or suspended on its server; ServerError if the
    server did not answer when the run was to begin.
    """
    with prefect_api():
        from prefect.exceptions import CancelledRun, Pause

        from retune.prefect.cancelling import RunCancelled
        from retune.prefect.surviving import surviving

        try:
            return surviving(call)
        except CancelledRun as cancelled:
            raise RunCancelled(str(cancelled)) from cancelled
        except Pause as paused:
            raise RunCancelled(
                "the flow run was suspended; everything measured is kept"
            ) from paused
        finally:
            flush()


def serve_flow(
    load: Callable[[], "Flow[..., Any]"],
    *,
    name: str,
    cron: str,
    timezone: str,
    parameters: dict[str, object],
) -> None:
    """Starts a run of the flow whenever the cron expression says so; returns when interrupted.

    One run at a time; each is a process of its own. The schedule stays when serving ends, and what
    was missed meanwhile is not made up for.
    """
    with prefect_api(schedules=True):
        from prefect.schedules import Cron
        from prefect.types.entrypoint import EntrypointType

        load().serve(
            name=name,
            schedule=Cron(cron, timezone=timezone),
            parameters=parameters,
            tags=["retune"],
            limit=1,
            pause_on_shutdown=False,
            print_starting_message=False,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )


def flush() -> None:
    """Holds after the call: Prefect's threads have sent what they had, before the server ends."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    from retune.prefect.contact import SERVER, forget_pending

    forget_pending()
    seconds = LOST_FLUSH_S if SERVER.lost else FLUSH_S
    APILogWorker.drain_all(timeout=seconds)
    EventsWorker.drain_all(timeout=seconds)
