"""The night's rows: begun with times, ended with results and verdicts."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.nightly.config import DeviceConfig, ModelConfig, NightlyConfig
from retune.nightly.morning import blank_row, index_of, rows_of, stage_verdicts, write_index
from retune.nightly.night import MemberState
from retune.records.nights import read_nights, write_nights
from tests.support.fakes import result
from tests.support.nights import judged, quiet, slowed

NIGHT = "2026-04-01"


@pytest.fixture
def config(tmp_path: Path) -> NightlyConfig:
    return NightlyConfig(
        name="fleet",
        out=str(tmp_path / "out"),
        records=str(tmp_path / "records"),
        work=str(tmp_path / "work"),
        model=(ModelConfig(model="zoo:mlp", name="mlp"), ModelConfig(model="zoo:kws", name="kws")),
        device=(DeviceConfig(name="board", device="pocl", repeats=3),),
    )


def member(name: str, *changes: object, **fields: object) -> MemberState:
    values = {"model": name, "device": "board", "minutes": 5.0, "status": "done"}
    return MemberState(**{**values, **fields})  # type: ignore[arg-type]


def test_a_row_begins_with_names_and_the_budget(config: NightlyConfig):
    row = blank_row(config, NIGHT, ("mlp", "board"))
    assert (row.fleet, row.night, row.key) == ("fleet", NIGHT, ("mlp", "board"))
    assert row.budget == "60 minutes a night, repeats 3"


def test_rows_end_with_what_became_of_the_members_and_a_verdict(config: NightlyConfig):
    former = judged(quiet(20))
    timed = replace(slowed(quiet(31)[-1], time=1.2), night=NIGHT)
    write_nights(config.records, [*former, timed])
    found = stage_verdicts(
        config,
        NIGHT,
        [
            member("mlp", result=result(1200.0, 900.0)),
            member("kws", status="skipped", reason="the window closed before its turn"),
        ],
    )
    first, second = found
    assert (first.verdict, first.status, first.promoted) == ("real", "done", True)
    assert first.gain == pytest.approx(0.75) and first.time_us == timed.time_us
    assert (second.verdict, second.status) == ("", "skipped")
    assert second.problem == "it was not timed: the window closed before its turn"
    assert rows_of(config, NIGHT) == {row.key: row for row in found}


def test_judging_again_says_the_same(config: NightlyConfig):
    """A night that is continued is judged by the nights before it, and not by itself."""
    write_nights(config.records, judged(quiet(20)))
    write_nights(config.records, [replace(slowed(quiet(31)[-1], time=1.2), night=NIGHT)])
    members = [member("mlp", result=result(None, 900.0, promoted=False))]
    first = stage_verdicts(config, NIGHT, members)
    assert stage_verdicts(config, NIGHT, members) == first
    later = [replace(slowed(row, time=1.2), night="later") for row in quiet(33)[-1:]]
    write_nights(config.records, later)
    assert stage_verdicts(config, NIGHT, members) == first


def test_a_night_without_a_single_time_is_last_in_the_table(config: NightlyConfig):
    write_nights(config.records, judged(quiet(3)))
    stage_verdicts(config, NIGHT, [member("mlp", status="failed", reason="lost")])
    assert [row.night for row in read_nights(config.records)][-1] == NIGHT


def test_the_page_over_all_nights_lies_beside_those_of_the_nights(config: NightlyConfig):
    write_nights(config.records, judged(quiet(3)))
    nights = Path(config.out) / "nights"
    nights.mkdir(parents=True)
    (nights / "2026-03-02.html").write_text("a night")
    path = write_index(config)
    assert path == index_of(config) == nights / "index.html"
    text = path.read_text(encoding="utf-8")
    assert 'href="2026-03-02.html"' in text and 'href="2026-03-01.html"' not in text
    assert "<h1>Nights of fleet</h1>" in text
