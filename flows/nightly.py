"""The flow of a night: every network of a fleet is tuned on, and what is faster is promoted.

Read `nightly`. A night has a name, the date on which its window opened or a campaign's: started
again it goes on where it stood, and the next night goes on searching from what the records know.
What goes wrong with one member ends neither the others nor the night.
"""

import os
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

import tasks
from flows.retrain_cost_model import retrain_cost_model
from flows.tune_network import parameters_of, tune_network
from retune.core.errors import RetuneError, sentence
from retune.core.names import slug
from retune.core.replacing import replacing
from retune.nightly.config import (
    DeviceConfig,
    ModelConfig,
    NightlyConfig,
    NotifyConfig,
    load_config,
)
from retune.nightly.members import (
    earlier_nights,
    new_records,
    page_of,
    processes_of_this_machine,
    result_of,
    stage_plan,
)
from retune.nightly.night import Night, NightState, night_name, nights_since, run_night
from retune.nightly.notify import check_environment, notifiers, send, wanted
from retune.nightly.summary import night_markdown, night_page, notice_of, summarize_night
from retune.nightly.window import is_open, seconds_left
from retune.pipeline.results import TuneResult
from retune.pipeline.upkeep import stage_compact
from retune.prefect.cancelling import RunCancelled, raise_if_cancelled
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run, outcome
from retune.prefect.notices import block_notifier
from retune.prefect.stage_task import AsTasks
from retune.search.model.registry import ModelCard

RETRAIN, COMPACT = "retrain", "compact"


def now() -> datetime:
    """The moment; tests have a clock of their own."""
    return datetime.now(UTC)


@flow(
    name="nightly",
    flow_run_name=name_of_run,
    persist_result=True,
    result_serializer="json",
    **HOOKS,
)
def nightly(config: str, campaign: str = "") -> NightState | State[NightState]:
    """Tunes a fleet of networks for its devices, and promotes the bundles that are faster.

    Args:
        config: The TOML file of the fleet; examples/nightly.toml shows all of it.
        campaign: The night's name in place of its date: any number of nights may be one campaign.
    """
    settings = load_config(Path(config))
    check_environment(settings.notify or NotifyConfig(), os.environ)
    name = night_name(settings.hours, now(), campaign)
    try:
        with (
            flow_run(tags=[f"night:{name}"]),
            run_night(Path(settings.work), name, processes_of_this_machine(), now) as night,
        ):
            _plan(settings, night)
            for member in night.to_do():
                _tune(settings, night, (member.model, member.device))
            _retrain(settings, night)
            _compact(settings, night)
            night.complete()
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))
    _tell(settings, night.state)
    return night.state


def _plan(config: NightlyConfig, night: Night) -> None:
    """Every member has its minutes; those of an earlier attempt keep theirs."""
    keys = [(model.name, device.name) for model, device in config.pairs]
    minutes = {key: known.minutes for key in keys if (known := night.state.member(key))}
    broken: dict[tuple[str, str], str] = {}
    if night.unplanned(keys):
        left = min(seconds_left(config.hours, now()), 1e9)
        made = AsTasks(tasks.TASKS).call(stage_plan, config.file, night.name, left)
        minutes = {(model, device): share for model, device, share in made.minutes} | minutes
        broken = {(model, device): why for model, device, why in made.broken}
    night.plan({key: minutes.get(key, 0.0) for key in keys})
    for key, why in broken.items():
        night.fail(key, why)


def _tune(config: NightlyConfig, night: Night, key: tuple[str, str]) -> None:
    """The member's run is done, or the night says why not."""
    raise_if_cancelled()
    if not is_open(config.hours, now()):
        night.skip(key, "the window closed before its turn")
        return
    model, device = _member(config, key)
    planned = night.state.member(key)
    assert planned is not None  # it is on the list of what is to be done
    request = config.request(model, device, minutes=planned.minutes, campaign=night.name)
    night.begin(key)
    found = outcome(tune_network, parameters_of(request))
    raise_if_cancelled()
    if isinstance(found, TuneResult):
        night.finish(key, result_of(found))
    else:
        night.fail(key, sentence(found))


def _member(config: NightlyConfig, key: tuple[str, str]) -> tuple[ModelConfig, DeviceConfig]:
    return next(pair for pair in config.pairs if (pair[0].name, pair[1].name) == key)


def _retrain(config: NightlyConfig, night: Night) -> None:
    """A cost model is trained on what is new, if that is enough."""
    if night.noted(RETRAIN):
        return
    nights = nights_since([*earlier_nights(config, night.name), night.state], RETRAIN)
    if not config.retrain.due(nights, new_records(config.records)):
        return
    raise_if_cancelled()
    found = outcome(retrain_cost_model, {"records": config.records})
    if isinstance(found, ModelCard):
        better = f"it beats {found.beats}" if found.in_use else "it is not better, and not used"
        night.note(RETRAIN, f"model {found.name} of {found.rows:,} records: {better}")
    else:
        night.note(RETRAIN, sentence(found), failed=True)


def _compact(config: NightlyConfig, night: Night) -> None:
    """The files of finished days are joined."""
    raise_if_cancelled()
    try:
        gone = AsTasks(tasks.TASKS).call(stage_compact, config.records)
    except RetuneError as error:
        night.note(COMPACT, str(error), failed=True)
    else:
        night.note(COMPACT, f"{gone:,} files of records fewer")


def _tell(config: NightlyConfig, state: NightState) -> None:
    """The night's page lies beside the bundles, and people are told as they wish."""
    summary = summarize_night(state, earlier_nights(config, state.name))
    with replacing(page_of(config, state.name)) as stream:
        stream.write(night_page(summary, config.timezone).encode())
    create_markdown_artifact(key=slug("night"), markdown=night_markdown(summary))
    notice = notice_of(summary)
    notify = config.notify or NotifyConfig()
    if wanted(notify, notice):
        block = notify.email_block
        others = [block_notifier(block)] if block else []
        send(notice, notifiers(notify, os.environ, others))
