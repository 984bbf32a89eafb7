"""Dividing a device's minutes of a night over its networks: they go where they save most.

Read `allocate`. What a member saves in a day is its time x how often it runs x the gain that is
expected of its minutes (`retune.nightly.curves.gain`). Gains grow ever more slowly, so giving slice
after slice to the member that it saves most is the best division there is, within the limits of
each member and of the device.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.nightly.curves import NetworkOutlook, gain

Key = tuple[str, str]
"""Names of a network and of a device."""

SLICES = 400
"""Of a device's minutes: an hour is given away nine seconds at a time."""
_NOTICE = 0.05
"""Part of the minutes that every member gets, to notice a change: its records or its driver may be
new, its search may have been unlucky."""
_NOTICE_ALL = 0.5
"""Part of what is free that may go so; with many members each gets less."""
_US_A_S = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A network on a device."""

    key: Key
    latency_us: float
    """Of one run, as it is now."""
    runs_per_day: float
    outlook: NetworkOutlook
    least_minutes: float = 0.0
    most_minutes: float | None = None


def saving(member: Member, minutes: float) -> float:
    """Seconds a day that so many minutes of measuring are expected to save."""
    time_s = member.latency_us * member.runs_per_day / _US_A_S
    return time_s * gain(member.outlook, minutes)


def allocate(
    members: Sequence[Member], minutes: float, *, slices: int = SLICES
) -> dict[Key, float]:
    """Minutes for each member of one device: together they save the most, within all limits.

    No member gets more than its most, all together no more than `minutes`; less, if the limits
    leave no more. Each gets at least what `floors` says. The same members in another order get the
    same.
    """
    ordered = sorted(members, key=lambda member: member.key)
    granted = floors(ordered, minutes)
    free = max(0.0, minutes - sum(granted.values()))
    step = minutes / slices
    queue = [(-_rate(member, granted[member.key], step), member.key) for member in ordered]
    heapq.heapify(queue)
    by_key = {member.key: member for member in ordered}
    while queue and free > step * 1e-9:
        member = by_key[heapq.heappop(queue)[1]]
        more = min(step, free, _most(member) - granted[member.key])
        if more <= step * 1e-9:
            continue  # it has its most
        free -= more
        granted[member.key] += more
        heapq.heappush(queue, (-_rate(member, granted[member.key], step), member.key))
    return {member.key: granted[member.key] for member in members}


def floors(members: Sequence[Member], minutes: float) -> dict[Key, float]:
    """What each member gets in any case: its least, and a little to notice changes.

    Where the least do not fit, everyone gets the same part of them; what is there to notice changes
    takes no more than half of what they leave.
    """
    granted = _fitting({member.key: member.least_minutes for member in members}, minutes)
    free = max(0.0, minutes - sum(granted.values()))
    wanted = {
        member.key: max(0.0, min(_NOTICE * minutes, _most(member)) - granted[member.key])
        for member in members
        if member.outlook.trials_per_minute > 0
    }
    for key, more in _fitting(wanted, _NOTICE_ALL * free).items():
        granted[key] += more
    return granted


def _fitting(wanted: Mapping[Key, float], minutes: float) -> dict[Key, float]:
    """The wishes, all cut alike so that they fit into the minutes."""
    asked = sum(wanted.values())
    part = min(1.0, minutes / asked) if asked > 0 else 1.0
    return {key: part * each for key, each in wanted.items()}


def _most(member: Member) -> float:
    return math.inf if member.most_minutes is None else member.most_minutes


def _rate(member: Member, granted: float, step: float) -> float:
    """What the next slice saves."""
    return saving(member, granted + step) - saving(member, granted)
