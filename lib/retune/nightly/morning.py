"""The rows of the table of nights that a night makes: begun with times, ended with verdicts.

Read `blank_row`, which `control.stage_champion` fills in, and `stage_verdicts`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from retune.nightly.config import NightlyConfig
from retune.nightly.fleet import Key
from retune.nightly.night import MemberState
from retune.nightly.verdicts import judge
from retune.records.nights import NightRow, read_nights, write_nights


def blank_row(config: NightlyConfig, night: str, key: Key) -> NightRow:
    """The row of a network and device before anything is known of its night."""
    network, device = key
    budget = f"{config.minutes:g} minutes a night"
    return NightRow(fleet=config.name, night=night, network=network, device=device, budget=budget)


def stage_verdicts(
    config: NightlyConfig, night: str, members: Sequence[MemberState]
) -> dict[Key, NightRow]:
    """The night's rows with what became of these members and with the verdicts, by key.

    They are in the table when the call returns. Called again, it judges again.
    """
    former, tonight = _former(config, night)
    rows = {each.key: _row(config, night, each, tonight.get(each.key)) for each in members}
    judged = {key: judge(former[key], row) for key, row in rows.items()}
    write_nights(config.records, [*judged.values()])
    return judged


def rows_of(config: NightlyConfig, night: str) -> dict[Key, NightRow]:
    """What the table has of that night."""
    return {row.key: row for row in read_nights(config.records, config.name, night)}


def _former(
    config: NightlyConfig, night: str
) -> tuple[Mapping[Key, list[NightRow]], dict[Key, NightRow]]:
    """The rows of nights that began before that one, by key, and that night's own."""
    former: defaultdict[Key, list[NightRow]] = defaultdict(list)
    tonight: dict[Key, NightRow] = {}
    for row in read_nights(config.records, config.name):
        if row.night == night:
            tonight[row.key] = row
        elif not tonight:
            former[row.key].append(row)
    return former, tonight


def _row(
    config: NightlyConfig, night: str, member: MemberState, timed: NightRow | None
) -> NightRow:
    row = timed or replace(
        blank_row(config, night, member.key),
        problem=f"it was not timed: {member.reason}" if member.reason else "it was not timed",
    )
    result = member.result
    if result is None:
        return replace(row, status=member.status)
    return replace(
        row,
        status=member.status,
        promoted=result.promoted,
        gain=result.ratio if result.promoted else None,
        gain_low=result.ratio_low if result.promoted else None,
        gain_high=result.ratio_high if result.promoted else None,
    )
