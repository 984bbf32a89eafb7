"""The flow of a night: every network of a fleet is tuned on, and what is faster is promoted.

Read `nightly`. A night has a name, the date on which its window opened or a campaign's: started
again it goes on where it stood, and the next night goes on searching from what the records know.
Each device has a lane of its own, see `retune.nightly.lanes`. What goes wrong with one member ends
neither the others nor the night, and however the night ends, people are told.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ParamSpec, TypeVar

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled

import tasks
from flows.retrain_cost_model import retrain_cost_model
from flows.tune_network import parameters_of, tune_network
from retune.core.errors import RetuneError, RunStopped, sentence
from retune.core.replacing import replacing
from retune.nightly.config import (
    DeviceConfig,
    ModelConfig,
    NightlyConfig,
    NotifyConfig,
    load_config,
)
from retune.nightly.control import stage_champion
from retune.nightly.fleet import Key
from retune.nightly.lanes import Turn, run_lanes
from retune.nightly.members import (
    NightPlan,
    earlier_nights,
    new_records,
    page_of,
    processes_of_this_machine,
    result_of,
    stage_plan,
)
from retune.nightly.morning import blank_row, index_of, stage_verdicts, write_index
from retune.nightly.night import (
    MemberResult,
    Night,
    NightState,
    night_name,
    nights_since,
    run_night,
)
from retune.nightly.notify import check_environment, notifiers, send, wanted
from retune.nightly.summary import night_markdown, night_page, notice_of, summarize_night
from retune.nightly.window import TimeWindow, check_open, is_open, next_opening
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent, TuneResult
from retune.pipeline.upkeep import stage_compact
from retune.pipeline.watch import stopping, watching
from retune.prefect.artifacts import of_fleet, show_file, show_markdown
from retune.prefect.cancelling import RunCancelled, raise_if_cancelled
from retune.prefect.contact import is_silence
from retune.prefect.events import tell
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run, outcome
from retune.prefect.notices import block_notifier
from retune.prefect.stage_task import AsTasks
from retune.prefect.surviving import kept
from retune.prefect.verdicts import emit_verdicts
from retune.records.nights import NightRow
from retune.search.model.registry import ModelCard

RETRAIN, COMPACT, NOTIFY, VERDICTS = "retrain", "compact", "notify", "verdicts"
EARLY = timedelta(minutes=10)
"""A night that is started so long before its window opens waits for it."""
_ASK_S = 5.0

P = ParamSpec("P")
R = TypeVar("R")

_LOG = logging.getLogger("retune.nightly")


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
    """
    settings = load_config(Path(config))
    check_environment(settings.notify or NotifyConfig(), os.environ)
    name = night_name(settings.hours, clock(), campaign)
    tags = [f"fleet:{settings.name}", f"night:{name}"]
    try:
        with flow_run(tags=tags, name=f"nightly {settings.name} {name}"), of_fleet(settings.name):
            hours = _hours(settings, now=now)
            work, processes = Path(settings.work), processes_of_this_machine()
            with run_night(work, name, processes, clock) as night:
                return _NightRun(settings, night, hours).go()
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))


def _hours(config: NightlyConfig, *, now: bool) -> TimeWindow | None:
    """The hours that the night keeps to; they have begun when the call returns.

    Raises: InputError if they begin much later.
    """
    hours = config.hours
    if hours is None or is_open(hours, clock()):
        return hours
    if now:
        return None
    opens = next_opening(hours, clock())
    if opens - clock() > EARLY:
        check_open(hours, clock(), f"a night of {config.file}")
    _LOG.info("the night waits until its window opens at %s", opens.astimezone(hours.zone))
    while (left := (opens - clock()).total_seconds()) > 0:
        raise_if_cancelled()
        time.sleep(min(left, _ASK_S))
    return hours


@dataclass(frozen=True)
class _NightRun:
    """A night that this flow run carries out."""

    config: NightlyConfig
    night: Night
    hours: TimeWindow | None

    def go(self) -> NightState:
        """All is done that is to be done tonight, and people are told; however it ends."""
        reason = ""
        try:
            reason = self._carry_out()
        except BaseException as error:
            reason = sentence(error)
            raise
        finally:
            self.night.end(reason)
            self._tell(self._judge())
        return self.night.state

    def _carry_out(self) -> str:
        """Why not all of it was done; empty if it was."""
        plan = AsTasks(tasks.TASKS).call(stage_plan, self.config.file, self.night.name)
        self._plan(plan)
        run_lanes(plan.lanes, self.night, self._tune, self.hours, clock)
        raise_if_cancelled()
        if any(member.status in ("planned", "running") for member in self.night.state.members):
            return "no more was to be measured"
        self._retrain()
        self._compact()
        return ""

    def _plan(self, plan: NightPlan) -> None:
        """Every member of the configuration is one of the night's, and those that cannot be tuned
        have failed."""
        keys: list[Key] = [member.key for lane in plan.lanes for member in lane.members]
        broken = {(model, device): why for model, device, why in plan.broken}
        self.night.plan(dict.fromkeys([*keys, *broken], 0.0))
        for key, why in broken.items():
            member = self.night.state.member(key)
            if member is not None and member.status != "done":
                self.night.fail(key, why)

    def _tune(self, turn: Turn) -> MemberResult:
        """The member's run is done. Raises: why it failed, or RunCancelled."""
        raise_if_cancelled()
        model, device = _member(self.config, turn.key)
        request = self.config.request(model, device, minutes=turn.minutes, campaign=self.night.name)
        _call(stage_champion, request, blank_row(self.config, self.night.name, turn.key))

        def follow(event: TuneEvent) -> None:
            if event.stage == "tune":
                turn.spend(event.spent)
            elif event.stage == "decided":
                turn.searched()

        with watching(progress=follow):
            result = _result(request)
        if stopping() and not result.trials:
            raise RunStopped("nothing more is measured")
        return result_of(result)

    def _retrain(self) -> None:
        """A cost model is trained on what is new, if that is enough."""
        config, night = self.config, self.night
        if night.noted(RETRAIN):
            return
        nights = nights_since([*earlier_nights(config, night.name), night.state], RETRAIN)
        if not config.retrain.due(nights, new_records(config.records)):
            return
        found = outcome(retrain_cost_model, {"records": config.records})
        raise_if_cancelled()
        if isinstance(found, ModelCard):
            better = f"it beats {found.beats}" if found.in_use else "it is not better, and not used"
            night.note(RETRAIN, f"model {found.name} of {found.rows:,} records: {better}")
        else:
            night.note(RETRAIN, sentence(found), failed=True)

    def _compact(self) -> None:
        """The files of finished days are joined."""
        raise_if_cancelled()
        try:
            gone = AsTasks(tasks.TASKS).call(stage_compact, self.config.records)
        except RetuneError as error:
            self.night.note(COMPACT, str(error), failed=True)
        else:
            self.night.note(COMPACT, f"{gone:,} files of records fewer")

    def _judge(self) -> Mapping[Key, NightRow]:
        """Tonight's absolute times have their verdicts, and the page over all nights shows them.

        A night does not fail for the lack of them: it says why there are none.
        """
        config, night = self.config, self.night
        try:
            rows = stage_verdicts(config, night.name, night.state.members)
            write_index(config)
        except (RetuneError, OSError) as error:
            night.note(VERDICTS, sentence(error), failed=True)
            return {}
        emit_verdicts(rows)
        return {row.key: row for row in rows}

    def _tell(self, judged: Mapping[Key, NightRow]) -> None:
        """People are told as they wish; file, page and artifact say what came of that, too."""
        config, night = self.config, self.night
        earlier = earlier_nights(config, night.name)
        notify = config.notify or NotifyConfig()
        notice = notice_of(summarize_night(night.state, earlier, judged))
        if wanted(notify, notice):
            block = notify.email_block
            others = {"e-mail": block_notifier(block)} if block else {}
            told = send(notice, notifiers(notify, os.environ, others))
            for each in told:
                text = each.problem or f"told of {', '.join(notice.events) or 'the night'}"
                night.note(f"{NOTIFY} {each.channel}", text, failed=bool(each.problem))
        summary = summarize_night(night.state, earlier, judged)
        with replacing(page_of(config, night.name)) as stream:
            stream.write(night_page(summary, config.timezone).encode())
        about = f"Night {night.name} of fleet {config.name}"
        show_markdown("night", markdown=night_markdown(summary), description=about)
        show_file("page", path=page_of(config, night.name), title=f"Page of night {night.name}")
        if (index := index_of(config)).is_file():
            show_file("nights", path=index, title=f"All nights of fleet {config.name}")
        counts = {"night": night.name, "promoted": summary.promoted, "failed": summary.failed}
        counts["regressions"] = len(summary.regressions)
        tell("night.finished", "fleet", [config.name], {**counts, "events": list(summary.events)})


def _call(stage: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """What the stage returns, as a task run; without the Prefect server it is called all the same.

    Raises: what it raises; RunCancelled.
    """
    try:
        return AsTasks(tasks.TASKS).call(stage, *args, **kwargs)
    except TransportError:
        return stage(*args, **kwargs)


def _result(request: TuneRequest) -> TuneResult:
    """What a run of that request comes to. Raises: why it failed; RunCancelled.

    Without the Prefect server it goes on where it stands: the stages' files are what counts.
    """
    try:
        found = outcome(tune_network, parameters_of(request))
    except Exception as error:
        if not is_silence(error):
            raise
        found = error
    raise_if_cancelled()
    if isinstance(found, Exception) and is_silence(found):
        _LOG.warning("the Prefect server is lost (%s); %s goes on without", found, request.model)
        return run_chain(request, InProcess())
    if isinstance(found, TuneResult):
        return found
    raise found if isinstance(found, BaseException) else TypeError(str(found))


def _member(config: NightlyConfig, key: Key) -> tuple[ModelConfig, DeviceConfig]:
    return next(pair for pair in config.pairs if (pair[0].name, pair[1].name) == key)
