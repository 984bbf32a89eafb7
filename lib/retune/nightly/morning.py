"""The rows of the table of nights that a night makes: begun with times, ended with verdicts.

Read `blank_row`, which `control.stage_champion` fills in, and `stage_verdicts`.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from retune.core.replacing import replacing
from retune.nightly.config import MEASURING_KEYS, NightlyConfig
from retune.nightly.fleet import Key
from retune.nightly.members import page_of
from retune.nightly.night import INDEX, MemberState
from retune.nightly.nights_page import nights_page
from retune.nightly.verdicts import judge
from retune.records.nights import NightRow, read_nights, write_nights


def blank_row(config: NightlyConfig, night: str, key: Key) -> NightRow:
    """The row of a network and device before anything is known of its night."""
    model, device = config.pair(key)
    asked = config.request(model, device, minutes=config.minutes, campaign=night)
    given = {name: getattr(asked, name) for name in MEASURING_KEYS}
    parts = [f"{device.minutes or config.minutes:g} minutes a night"]
    parts += [f"{name} {value:g}" for name, value in given.items() if value is not None]
    return NightRow(
        fleet=config.name,
        night=night,
        network=model.name,
        device=device.name,
        budget=", ".join(parts),
    )


def stage_verdicts(
    config: NightlyConfig, night: str, members: Sequence[MemberState]
) -> tuple[NightRow, ...]:
    """The night's rows with what became of these members, and with the verdicts.

    They are in the table when the call returns. Called again, it judges again.
    """
    former, tonight = _former(config, night)
    rows = [_row(config, night, each, tonight.get(each.key)) for each in members]
    judged = tuple(judge(former[row.key], row) for row in rows)
    write_nights(config.records, judged)
    return judged


def index_of(config: NightlyConfig) -> Path:
    """Where the page over all nights lies: beside those of its nights."""
    return page_of(config, INDEX)


def write_index(config: NightlyConfig) -> Path:
    """The page over all nights of the fleet is up to date; its path."""
    path = index_of(config)
    pages = {page.stem for page in path.parent.glob("*.html")}
    rows = read_nights(config.records, config.name)
    with replacing(path) as stream:
        stream.write(nights_page(config.name, rows, pages).encode())
    return path


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
    row = timed or _untimed(config, night, member)
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


def _untimed(config: NightlyConfig, night: str, member: MemberState) -> NightRow:
    """Its turn did not come, or it failed before it was timed."""
    network, device = member.key
    reason = f": {member.reason}" if member.reason else ""
    return NightRow(
        fleet=config.name,
        night=night,
        network=network,
        device=device,
        measured=datetime.now(UTC),
        problem=f"it was not timed{reason}",
    )
