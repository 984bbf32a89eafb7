"""A night's plan: configuration, records and clock become minutes for networks on devices."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.core.results import TaskEntry
from retune.nightly.config import NightlyConfig
from retune.nightly.curves import Curve, estimated_us, outlook_of, pace_of, read_curves
from retune.nightly.fleet import Key, Member, allocate
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


def plan_minutes(
    config: NightlyConfig,
    standings: Mapping[Key, Standing],
    store: RecordStore,
    *,
    minutes: float | None = None,
    seconds_left: float = math.inf,
) -> dict[Key, float]:
    """Minutes of measuring for each of these pairs of the configuration's.

    `minutes` is what they may have together, if that is less than a whole night's; `seconds_left`
    until the window closes, which no device is measured beyond.
    """
    members = fleet_members(config, standings, store)
    limits = {
        device.name: min(device.minutes or math.inf, seconds_left / 60) for device in config.device
    }
    return allocate(members, config.minutes if minutes is None else minutes, limits)


def fleet_members(
    config: NightlyConfig, standings: Mapping[Key, Standing], store: RecordStore
) -> list[Member]:
    """The fleet as `allocate` sees it, in the order of the configuration."""
    timed = [(standing.tasks, standing.conditions) for standing in standings.values()]
    curves = dict(zip(standings, read_curves(store, timed), strict=True))
    of_device: defaultdict[str, list[Curve]] = defaultdict(list)
    for (_, device), curve in curves.items():
        of_device[device].append(curve)
    members: list[Member] = []
    for model, device in config.pairs:
        key = (model.name, device.name)
        if key not in standings:
            continue
        pace = pace_of(of_device[device.name])
        members.append(
            Member(
                key=key,
                latency_us=standings[key].latency_us or estimated_us(curves[key], pace),
                runs_per_day=model.runs_per_day,
                outlook=outlook_of(curves[key], pace),
                least_minutes=model.bounds.least,
                most_minutes=model.bounds.most,
            )
        )
    return members
