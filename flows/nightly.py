"""The flow of a night: every network of a fleet is tuned on, and what is faster is promoted.

Read `nightly`. A night has a name, the date on which its window opened or a campaign's: started
again it goes on where it stood, and the next night goes on searching from what the records know.
What is done in which order says `retune.nightly.run`; here each step becomes a Prefect run.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

import tasks
from flows.retrain_cost_model import retrain_cost_model
from flows.tune_network import parameters_of, tune_network
from retune.nightly.config import NightlyConfig, NotifyConfig, load_config
from retune.nightly.members import page_of, processes_of_this_machine
from retune.nightly.morning import index_of
from retune.nightly.night import NightState, night_name, run_night
from retune.nightly.notify import check_environment
from retune.nightly.run import NightRun, Services, beginning, hours_of, wait_until
from retune.nightly.summary import NightFailed, NightSummary, night_markdown, summarize_night
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.prefect.artifacts import of_fleet, show_file, show_markdown
from retune.prefect.blocks import block_notifier
from retune.prefect.cancelling import RunCancelled, raise_if_cancelled
from retune.prefect.contact import going_on
from retune.prefect.events import tell
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run, outcome
from retune.prefect.stage_task import AsTasks
from retune.prefect.surviving import kept
from retune.prefect.verdicts import emit_verdicts
from retune.records.nights import NightRow
from retune.search.model.registry import ModelCard


def clock() -> datetime:
    """The moment; tests have a clock of their own."""
    return datetime.now(UTC)


@flow(
    name="nightly",
    flow_run_name=name_of_run,
    persist_result=True,
    result_serializer="json",
    **HOOKS,
)
@kept
def nightly(config: str, campaign: str = "", now: bool = False) -> NightState | State[NightState]:
    """Tunes a fleet of networks for its devices, and promotes the bundles that are faster.

    Args:
        config: The TOML file of the fleet; examples/nightly.toml shows all of it.
        campaign: The night's name in place of its date: any number of nights may be one campaign.
        now: Whether the night is run outside of its window, too.

    Raises: NightFailed, once all is done and told, if a part failed or nothing was tuned: Prefect's
    automations on failed runs see such a night, and a retry tries what has failed.
    """
    settings = load_config(Path(config))
    check_environment(settings.notify or NotifyConfig(), os.environ)
    begins = beginning(settings, clock(), outside=now)
    name = night_name(settings.hours, begins, campaign)
    tags = [f"fleet:{settings.name}", f"night:{name}"]
    try:
        with flow_run(tags=tags, name=f"{settings.name} {name}"), of_fleet(settings.name):
            wait_until(begins, clock, raise_if_cancelled)
            work, processes = Path(settings.work), processes_of_this_machine()
            with run_night(work, name, processes, clock) as night:
                run = NightRun(
                    config=settings,
                    night=night,
                    hours=hours_of(settings, begins, outside=now),
                    clock=clock,
                    services=_services(settings),
                )
                state = run.go()
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))
    if (summary := summarize_night(state)).fault:
        raise NightFailed(summary, state)
    return state


def _services(config: NightlyConfig) -> Services:
    """Stages as task runs, networks as flow runs of their own, results as artifacts and events."""
    block = config.notify.email_block if config.notify else ""

    def show(summary: NightSummary, rows: Sequence[NightRow]) -> None:
        _show(config, summary, rows)

    return Services(
        stages=AsTasks(tasks.TASKS),
        tune=_tuned,
        retrain=_retrained,
        check=raise_if_cancelled,
        show=show,
        notifiers={"e-mail": block_notifier(block)} if block else {},
    )


def _tuned(request: TuneRequest) -> TuneResult:
    """Without the Prefect server the run goes on where it stands: its files are what counts."""
    found = going_on(
        lambda: _raised(outcome(tune_network, parameters_of(request))),
        lambda: run_chain(request, InProcess()),
    )
    assert isinstance(found, TuneResult), found
    return found


def _retrained(records: str) -> ModelCard:
    found = _raised(outcome(retrain_cost_model, {"records": records}))
    assert isinstance(found, ModelCard), found
    return found


def _raised(found: object) -> object:
    """What a flow returned. Raises: what ended it; RunCancelled."""
    raise_if_cancelled()
    if isinstance(found, BaseException):
        raise found
    return found


def _show(config: NightlyConfig, summary: NightSummary, rows: Sequence[NightRow]) -> None:
    """The night's artifacts, and its events."""
    emit_verdicts(rows)
    about = f"Night {summary.name} of fleet {config.name}"
    show_markdown("night", markdown=night_markdown(summary), description=about)
    show_file("page", path=page_of(config, summary.name), title=f"Page of night {summary.name}")
    if (index := index_of(config)).is_file():
        show_file("nights", path=index, title=f"All nights of fleet {config.name}")
    counts = {"night": summary.name, "promoted": summary.promoted, "failed": summary.failed}
    counts["regressions"] = len(summary.regressions)
    tell("night.finished", "fleet", [config.name], {**counts, "events": list(summary.events)})
