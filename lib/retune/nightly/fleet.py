"""Dividing a night's minutes over the fleet: they go where they save most.

Read `allocate`. What a member saves in a day is its time x how often it runs x the gain that is
expected of its minutes (`retune.nightly.curves.gain`). Gains grow ever more slowly, so giving slice
after slice to whom it saves most is the best division there is, under any limits of members, of
devices and of the whole.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retune.nightly.curves import Outlook, gain

Key = tuple[str, str]
"""Names of a network and of a device."""

SLICES = 400
"""Of a night: an hour is given away nine seconds at a time."""
_NOTICE = 0.05
"""Part of the night that every member gets, to notice a change: its records or its driver may be
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
    outlook: Outlook
    least_minutes: float = 0.0
    most_minutes: float | None = None


def saving(member: Member, minutes: float) -> float:
    """Seconds a day that so many minutes of measuring are expected to save."""
    time_s = member.latency_us * member.runs_per_day / _US_A_S
    return time_s * gain(member.outlook, minutes)


def allocate(
    members: Sequence[Member],
    minutes: float,
    device_minutes: Mapping[str, float] | None = None,
    *,
    slices: int = SLICES,
) -> dict[Key, float]:
    """Minutes for each member: together they save the most, within all limits.

    No member gets more than its most, no device more than `device_minutes` has for it, all together
    no more than `minutes`; less, if the limits leave no more. Each gets at least what `floors`
    says. The same members in another order get the same.
    """
    ordered = sorted(members, key=lambda member: member.key)
    room = _Room(ordered, minutes, device_minutes or {})
    granted = floors(ordered, minutes, device_minutes)
    for member in ordered:
        room.take(member, granted[member.key])
    step = minutes / slices
    queue = [(-_rate(member, granted[member.key], step), member.key) for member in ordered]
    heapq.heapify(queue)
    by_key = {member.key: member for member in ordered}
    while queue:
        member = by_key[heapq.heappop(queue)[1]]
        more = min(step, room.of(member, granted[member.key]))
        if more <= step * 1e-9:
            continue  # a limit holds it for good, as limits never widen
        room.take(member, more)
        granted[member.key] += more
        heapq.heappush(queue, (-_rate(member, granted[member.key], step), member.key))
    return {member.key: granted[member.key] for member in members}


def floors(
    members: Sequence[Member], minutes: float, device_minutes: Mapping[str, float] | None = None
) -> dict[Key, float]:
    """What each member gets in any case: its least, and a little to notice changes.

    Where the least do not fit, everyone gets the same part of them; what is there to notice changes
    takes no more than half of what they leave.
    """
    room = _Room(members, minutes, device_minutes or {})
    granted = room.fitting({member.key: member.least_minutes for member in members}, 1.0)
    for member in members:
        room.take(member, granted[member.key])
    tunable = [member for member in members if member.outlook.trials_per_minute > 0]
    wanted = {
        member.key: max(0.0, min(_NOTICE * minutes, _most(member)) - granted[member.key])
        for member in tunable
    }
    for key, more in room.fitting(wanted, _NOTICE_ALL).items():
        granted[key] += more
    return granted


class _Room:
    """What is still free: of the night, and of each device."""

    def __init__(
        self, members: Sequence[Member], minutes: float, device_minutes: Mapping[str, float]
    ) -> None:
        self.minutes = minutes
        self.devices = {m.key[1]: device_minutes.get(m.key[1], math.inf) for m in members}

    def of(self, member: Member, granted: float) -> float:
        """What a member may still get."""
        return min(self.minutes, self.devices[member.key[1]], _most(member) - granted)

    def take(self, member: Member, minutes: float) -> None:
        device = member.key[1]
        self.minutes = max(0.0, self.minutes - minutes)
        self.devices[device] = max(0.0, self.devices[device] - minutes)

    def fitting(self, wanted: Mapping[Key, float], part: float) -> dict[Key, float]:
        """The wishes, cut alike so that they fit into that part of the night and of each device."""
        sums: defaultdict[str, float] = defaultdict(float)
        for key, minutes in wanted.items():
            sums[key[1]] += minutes
        whole = _part(part * self.minutes, sum(wanted.values()))
        return {
            key: minutes * min(whole, _part(part * self.devices[key[1]], sums[key[1]]))
            for key, minutes in wanted.items()
        }


def _most(member: Member) -> float:
    return math.inf if member.most_minutes is None else member.most_minutes


def _part(free: float, wanted: float) -> float:
    return min(1.0, free / wanted) if wanted > 0 else 1.0


def _rate(member: Member, granted: float, step: float) -> float:
    """What the next slice saves."""
    return saving(member, granted + step) - saving(member, granted)
