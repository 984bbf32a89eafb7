"""Members of the fleet between configuration, stages and the state of the night.

Read `stage_plan` (before a night), `planned_night` (for people) and `result_of` (after a member's
run).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from retune.core.errors import ShapesMissing, sentence
from retune.core.locking import exclusive
from retune.core.processes import Holder, is_alive, this_process
from retune.core.results import Latency
from retune.device.opening import spec_of, timed_here
from retune.nightly.config import NightlyConfig, load_config, member_faults
from retune.nightly.fleet import Key
from retune.nightly.lanes import DeviceLane
from retune.nightly.night import (
    Measured,
    MemberResult,
    NightState,
    Processes,
    night_name,
    read_night,
    read_nights,
)
from retune.nightly.planning import PlannedTurn, Standing, plan_lanes, timetable
from retune.nightly.summary import nights_of
from retune.nightly.window import minutes_left, next_opening
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneResult
from retune.records.store import RecordStore
from retune.search.conditions import network_conditions, usual_options
from retune.search.model.registry import registered


@dataclass(frozen=True, slots=True, kw_only=True)
class NightPlan:
    """What a night is to do."""

    lanes: tuple[DeviceLane, ...]
    broken: tuple[tuple[str, str, str], ...] = ()
    """Network, device, and why it cannot be tuned."""


def stage_plan(file: str, name: str) -> NightPlan:
    """The lanes of the configuration in that file, for the night of that name.

    Members that cannot be tuned, as their model cannot be imported or their device is not there,
    have a sentence instead. Raises: InputError for a file that cannot be used.
    """
    config = load_config(Path(file))
    nights = earlier_nights(config, name)
    broken = member_faults(config)
    standings: dict[Key, Standing] = {}
    for model, device in config.pairs:
        key = (model.name, device.name)
        if key in broken:
            continue
        request = config.request(model, device, minutes=config.minutes, campaign=name)
        try:
            standings[key] = _standing(request, key, nights)
        except Exception as error:  # noqa: BLE001 - one network's fault is not the fleet's
            open_shapes = isinstance(error, ShapesMissing)
            where = "; write them as `shapes` of its [[model]]" if open_shapes else ""
            broken[key] = sentence(error) + where
    lanes = plan_lanes(config, standings, RecordStore(config.records), nights)
    return NightPlan(lanes=lanes, broken=tuple((*key, why) for key, why in broken.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNight:
    """Who would get what and when in the night that is on, or that comes next."""

    night: str
    opens: datetime
    """UTC, as `closes` is. Now, if it is open."""
    closes: datetime | None
    """None: there is no window."""
    turns: tuple[PlannedTurn, ...]
    done: tuple[Key, ...]
    """Members that the night has done already."""
    broken: tuple[tuple[str, str, str], ...]
    """Network, device, and why it cannot be tuned."""


def planned_night(config: NightlyConfig, now: datetime) -> PlannedNight:
    """The timetable of the night that is on at that moment, or comes next; nothing is run."""
    opens = next_opening(config.hours, now)
    name = night_name(config.hours, opens)
    plan = stage_plan(config.file, name)
    state = read_night(Path(config.work), name)
    done = [m.key for m in state.members if m.status == "done"] if state else []
    window = minutes_left(config.hours, opens)
    return PlannedNight(
        night=name,
        opens=opens,
        closes=None if math.isinf(window) else opens + timedelta(minutes=window),
        turns=tuple(timetable(plan.lanes, opens, window, done)),
        done=tuple(done),
        broken=plan.broken,
    )


def _standing(request: TuneRequest, key: Key, nights: Sequence[NightState]) -> Standing:
    """The network on its device as it stands; `nights` are the earlier ones."""
    spec = spec_of(request.device)
    entries = stage_extract(request, stage_import(request)).tasks
    _, champions = nights_of(key, nights)
    return Standing(
        tasks=entries,
        conditions=network_conditions(spec, entries, usual_options(spec)),
        latency_us=champions[-1] if champions else None,
        overlaps=not timed_here(request.device),
    )


def result_of(result: TuneResult) -> MemberResult:
    """What the night's run did, for the state of the night."""
    published = result.published
    assert published is not None  # every run publishes, or says why not
    own = next((row for row in result.latency if row.name == "tuned"), None)
    ratio, low, high = published.ratio or (None, None, None)
    return MemberResult(
        minutes=result.seconds / 60,
        trials=result.trials,
        statuses=result.statuses,
        champion=_measured(published.champion),
        challenger=_measured(published.challenger or own),
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        promoted=published.promoted,
        reason=published.why,
        failures=tuple(f"search of {task}: {why}" for task, why in result.failed),
        report=result.report,
    )


def _measured(row: Latency | None) -> Measured | None:
    if row is None:
        return None
    return Measured(median_us=row.median_us, low_us=row.p25_us, high_us=row.p75_us)


def earlier_nights(config: NightlyConfig, name: str) -> list[NightState]:
    """The nights of the same work folder but the one of that name, the oldest first."""
    return [night for night in read_nights(Path(config.work)) if night.name != name]


def new_records(records: str) -> int:
    """How many records are newer than those that the newest cost model was trained on."""
    cards = registered(Path(records))
    measured = RecordStore(records).scan(columns=["timestamp"])["timestamp"]
    if not cards:
        return len(measured)
    until = datetime.fromisoformat(cards[-1].until).replace(tzinfo=UTC)  # stated without a zone
    newer = (measured > until).to_numpy(bool, na_value=False)  # rows of others may have no moment
    return int(newer.sum())


def page_of(config: NightlyConfig, name: str) -> Path:
    """Where the page of the night of that name lies."""
    return Path(config.out) / "nights" / f"{name}.html"


def processes_of_this_machine() -> Processes:
    """How nights tell processes apart, and lock each other out."""
    return Processes(
        me=this_process().to_line(),
        alive=_runs,
        describe=_described,
        hold=partial(exclusive, doing="the night is being run", wait=False),
    )


def _runs(line: str) -> bool:
    holder = Holder.from_line(line)
    return holder is None or is_alive(holder)


def _described(line: str) -> str:
    return str(Holder.from_line(line) or line)
