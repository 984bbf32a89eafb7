"""A night's plan: configuration, records and earlier nights become lanes, and lanes a timetable.

Read `plan_lanes` (what a night works by) and `timetable` (what people are shown of it).
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from retune.core.results import TaskEntry
from retune.nightly.config import NightlyConfig
from retune.nightly.curves import Curve, estimated_us, outlook_of, rates_of, read_curves
from retune.nightly.fleet import Key, Member, allocate, saving
from retune.nightly.lanes import DeviceLane
from retune.nightly.night import NightState
from retune.records.conditions import Conditions
from retune.records.store import RecordStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A network on a device as it stands before the night."""

    tasks: Sequence[TaskEntry]
    conditions: Conditions
    """Under which its tasks are timed there."""
    latency_us: float | None = None
    """Of the bundle that is current. None: it is estimated from records."""
    overlaps: bool = True
    """Whether work on this machine leaves measurements on the device undisturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A member in the timetable of a night: measuring alone, what else it takes comes on top."""

    model: str
    device: str
    minutes: float
    begin: datetime
    end: datetime
    saving_s: float
    """Seconds a day that these minutes are expected to save."""


def plan_lanes(
    config: NightlyConfig,
    standings: Mapping[Key, Standing],
    store: RecordStore,
    earlier: Sequence[NightState] = (),
) -> tuple[DeviceLane, ...]:
    """A lane for each device of the configuration that has a member with a standing.

    Who has waited longest is begun first: those that no earlier night has done, then those that the
    oldest one did last; where that is the same, in the order of the configuration.
    """
    lanes: list[DeviceLane] = []
    members = fleet_members(config, standings, store)
    last = _last_done(earlier)
    for device in config.device:
        mine = [member for member in members if member.key[1] == device.name]
        if mine:
            lanes.append(
                DeviceLane(
                    device=device.name,
                    minutes=device.minutes or config.minutes,
                    members=tuple(sorted(mine, key=lambda member: last.get(member.key, -1))),
                    overlaps=all(standings[member.key].overlaps for member in mine),
                )
            )
    return tuple(lanes)


def fleet_members(
    config: NightlyConfig, standings: Mapping[Key, Standing], store: RecordStore
) -> list[Member]:
    """The fleet as `allocate` sees it, in the order of the configuration."""
    timed = [(standing.tasks, standing.conditions) for standing in standings.values()]
    curves = dict(zip(standings, read_curves(store, timed), strict=True))
    of_device: defaultdict[str, list[Curve]] = defaultdict(list)
    for (_, device), curve in curves.items():
        of_device[device].append(curve)
    rates_there = {device: rates_of(found) for device, found in of_device.items()}
    members: list[Member] = []
    for model, device in config.pairs:
        key = (model.name, device.name)
        if key not in standings:
            continue
        rates = rates_there[device.name]
        members.append(
            Member(
                key=key,
                latency_us=standings[key].latency_us or estimated_us(curves[key], rates),
                runs_per_day=model.runs_per_day,
                outlook=outlook_of(curves[key], rates),
                least_minutes=model.bounds.least,
                most_minutes=model.bounds.most,
            )
        )
    return members


def timetable(
    lanes: Sequence[DeviceLane], start: datetime, window_minutes: float, done: Collection[Key] = ()
) -> list[PlannedTurn]:
    """Who is measured when, lane by lane, if all use what they get, from `start` on.

    `window_minutes` are left until the window closes; members that are `done` have no turn.
    """
    turns: list[PlannedTurn] = []
    for lane in lanes:
        waiting = [member for member in lane.members if member.key not in done]
        shares = allocate(waiting, min(lane.minutes, window_minutes))
        begin = start
        for member in waiting:
            minutes = shares[member.key]
            end = begin + timedelta(minutes=minutes)
            turns.append(
                PlannedTurn(
                    model=member.key[0],
                    device=lane.device,
                    minutes=minutes,
                    begin=begin,
                    end=end,
                    saving_s=saving(member, minutes),
                )
            )
            begin = end
    return turns


def _last_done(nights: Sequence[NightState]) -> dict[Key, int]:
    """The number of the last night, the oldest first, that has done each member."""
    return {
        member.key: number
        for number, night in enumerate(nights)
        for member in night.members
        if member.status == "done"
    }
