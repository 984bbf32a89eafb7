"""A night as it is carried out: planned, tuned lane by lane, judged, and told.

Read NightRun. Who calls stages, tunes networks and shows results is passed in (`Services`): this
process does, or Prefect. What goes wrong with one member ends neither the others nor the night, and
however the night ends, people are told.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from retune.core.errors import RetuneError, RunStopped, sentence
from retune.core.replacing import replacing
from retune.nightly.config import NightlyConfig, NotifyConfig
from retune.nightly.control import stage_champion
from retune.nightly.fleet import Key
from retune.nightly.lanes import MemberTurn, run_lanes
from retune.nightly.members import (
    NightPlan,
    earlier_nights,
    new_records,
    page_of,
    result_of,
    stage_plan,
)
from retune.nightly.morning import blank_row, stage_verdicts, write_index
from retune.nightly.night import Clock, MemberResult, Night, NightState, nights_since
from retune.nightly.notify import Notifier, notifiers, send, wanted
from retune.nightly.summary import NightSummary, night_page, notice_of, summarize_night
from retune.nightly.window import TimeWindow, check_open, is_open, next_opening
from retune.pipeline.calling import Caller
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent, TuneResult
from retune.pipeline.upkeep import stage_compact
from retune.pipeline.watch import stopping, watching
from retune.records.nights import NightRow
from retune.search.model.registry import ModelCard

RETRAIN, COMPACT, NOTIFY, VERDICTS = "retrain", "compact", "notify", "verdicts"
"""Steps of the whole fleet, which the night has notes on."""
EARLY = timedelta(minutes=10)
"""A night that is started so long before its window opens waits for it."""
_ASK_S = 5.0

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Services:
    """What a night has others do."""

    stages: Caller
    tune: Callable[[TuneRequest], TuneResult]
    """Raises: why that failed; RunStopped if the night is to end."""
    retrain: Callable[[str], ModelCard]
    """A cost model of the records in that folder. Raises: why there is none."""
    check: Callable[[], None] = lambda: None
    """Raises: RunStopped if the night is to end."""
    show: Callable[[NightSummary, Sequence[NightRow]], None] = lambda *_: None
    """Shows a night that has ended, with its rows of the table of nights."""
    notifiers: Mapping[str, Notifier] = field(default_factory=dict[str, Notifier])
    """By channel: who is told besides those whom the configuration names."""


def beginning(config: NightlyConfig, now: datetime, *, outside: bool) -> datetime:
    """When a night begins that is started now: now, or when the window opens in a moment.

    `outside`: also outside of the window. Raises: InputError if it opens later than in EARLY.
    """
    opens = next_opening(config.hours, now)
    if outside or opens <= now:
        return now
    if opens - now > EARLY:
        check_open(config.hours, now, f"a night of {config.file}")
    return opens


def wait_until(
    moment: datetime,
    clock: Clock,
    check: Callable[[], None],
    pause: Callable[[float], None] = time.sleep,
) -> None:
    """The moment has come when the call returns. Raises: RunStopped as `check` does."""
    if moment > clock():
        _LOG.info("the night waits until its window opens at %s", moment.isoformat())
    while (left := (moment - clock()).total_seconds()) > 0:
        check()
        pause(min(left, _ASK_S))


@dataclass(frozen=True, kw_only=True)
class NightRun:
    """A night that this process carries out."""

    config: NightlyConfig
    night: Night
    hours: TimeWindow | None
    """Members are begun within these only; None: at any time."""
    clock: Clock
    services: Services

    def go(self) -> NightState:
        """All is done that is to be done tonight, and people are told; however it ends.

        Raises: RunStopped as the services do, and whatever else was not one member's fault; people
        have been told then, too.
        """
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
        plan = self.services.stages.call(stage_plan, self.config.file, self.night.name)
        self._plan(plan)
        run_lanes(plan.lanes, self.night, self._tune, self.hours, self.clock)
        self.services.check()
        if any(each.status in ("planned", "running") for each in self.night.state.members):
            return "no more was to be measured"
        self._retrain()
        self._compact()
        return ""

    def _plan(self, plan: NightPlan) -> None:
        """Every member of the configuration is one of the night's; those that cannot be tuned have
        failed."""
        keys: list[Key] = [member.key for lane in plan.lanes for member in lane.members]
        broken = {(model, device): why for model, device, why in plan.broken}
        self.night.plan(dict.fromkeys([*keys, *broken], 0.0))
        for key, why in broken.items():
            member = self.night.state.member(key)
            if member is not None and member.status != "done":
                self.night.fail(key, why)

    def _tune(self, turn: MemberTurn) -> MemberResult:
        """The member's run is done. Raises: why it failed, or RunStopped."""
        config, night, services = self.config, self.night, self.services
        model, device = config.pair(turn.key)
        request = config.request(model, device, minutes=turn.minutes, campaign=night.name)
        services.check()
        self._time_champion(request, turn.key)

        def follow(event: TuneEvent) -> None:
            if event.stage == "tune":
                turn.spend(event.spent)
            elif event.stage == "decided":
                turn.searched()

        with watching(progress=follow):
            result = services.tune(request)
        if stopping() and not result.trials:
            raise RunStopped("it was stopped before anything was measured")
        return result_of(result)

    def _time_champion(self, request: TuneRequest, key: Key) -> None:
        """The table of nights has the champion's absolute time; no member fails for its lack."""
        row = blank_row(self.config, self.night.name, key)
        try:
            self.services.stages.call(stage_champion, request, row)
        except RunStopped:
            raise
        except Exception as error:  # noqa: BLE001 - the search is what the minutes are for
            _LOG.warning("%s on %s is not timed tonight: %s", *key, sentence(error))

    def _retrain(self) -> None:
        """A cost model is trained on what is new, if that is enough."""
        config, night = self.config, self.night
        if night.noted(RETRAIN):
            return
        nights = nights_since([*earlier_nights(config, night.name), night.state], RETRAIN)
        if not config.retrain.due(nights, new_records(config.records)):
            return
        try:
            card = self.services.retrain(config.records)
        except RunStopped:
            raise
        except Exception as error:  # noqa: BLE001 - a night does not fail for a model of no use
            night.note(RETRAIN, sentence(error), failed=True)
        else:
            night.note(RETRAIN, f"model {card.name} of {card.rows:,} records, {card.verdict}")

    def _compact(self) -> None:
        """The files of finished days are joined."""
        try:
            gone = self.services.stages.call(stage_compact, self.config.records)
        except RunStopped:
            raise
        except (RetuneError, OSError) as error:
            self.night.note(COMPACT, sentence(error), failed=True)
        else:
            text = f"{gone:,} files of records fewer" if gone else "no files of records to join"
            self.night.note(COMPACT, text)

    def _judge(self) -> tuple[NightRow, ...]:
        """Tonight's absolute times have their verdicts.

        A night does not fail for the lack of them: it says why there are none.
        """
        config, night = self.config, self.night
        try:
            rows = stage_verdicts(config, night.name, night.state.members)
        except (RetuneError, OSError) as error:
            night.note(VERDICTS, sentence(error), failed=True)
            return ()
        return rows

    def _tell(self, judged: Sequence[NightRow]) -> None:
        """People are told as they wish; the night's file and page say what came of that, too."""
        config, night = self.config, self.night
        earlier = earlier_nights(config, night.name)
        summary = summarize_night(night.state, earlier, {row.key: row for row in judged})
        notify = config.notify or NotifyConfig()
        notice = notice_of(summary)
        if wanted(notify, notice):
            folder, others = Path(config.file).parent, self.services.notifiers
            for told in send(notice, notifiers(notify, os.environ, others, folder)):
                text = told.problem or f"told of {', '.join(notice.events) or 'the night'}"
                night.note(f"{NOTIFY} {told.channel}", text, failed=bool(told.problem))
        summary = replace(summary, notes=night.state.notes)
        page = page_of(config, night.name)
        try:
            with replacing(page) as stream:
                stream.write(night_page(summary, config.timezone).encode())
            write_index(config)  # which leads to the night's page
        except (RetuneError, OSError) as error:
            _LOG.warning("%s cannot be written (%s)", page, sentence(error))
        self.services.show(summary, judged)


def hours_of(config: NightlyConfig, now: datetime, *, outside: bool) -> TimeWindow | None:
    """The hours that a night keeps to that is begun at that moment; `outside`: also elsewhen."""
    hours = config.hours
    return hours if not outside or is_open(hours, now) else None
