"""A night's plan follows the configuration, the records and the clock."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from retune.nightly.config import DeviceConfig, MinuteBounds, ModelConfig, NightlyConfig
from retune.nightly.night import MemberState, NightState
from retune.nightly.planning import Standing, fleet_members, plan_lanes, timetable
from retune.records.store import RecordStore
from tests.support.curves import CONDITIONS, entry, trial

ON_GPU = replace(CONDITIONS, device="gpu|1.0|OpenCL 3.0", affinity="")
A, B, ON_B_GPU = ("a", "pocl"), ("b", "pocl"), ("b", "gpu")


@pytest.fixture
def config(tmp_path: Path) -> NightlyConfig:
    return NightlyConfig(
        file=str(tmp_path / "nightly.toml"),
        out=str(tmp_path),
        records=str(tmp_path / "records"),
        work=str(tmp_path),
        minutes=60.0,
        model=(
            ModelConfig(name="a", model="zoo:mlp", devices=("pocl",), runs_per_day=0.5),
            ModelConfig(
                name="b", model="zoo:kws", devices=("pocl", "gpu"), minutes=MinuteBounds(least=2.0)
            ),
        ),
        device=(
            DeviceConfig(name="pocl", device="pocl"),
            DeviceConfig(name="gpu", device="gpu", minutes=4.0),
        ),
    )


@pytest.fixture
def store(tmp_path: Path) -> RecordStore:
    """Of network a, task x is at rest after many trials; nothing is known of b."""
    found = RecordStore(tmp_path / "records")
    found.append([trial("x", number, 50.0) for number in range(300)])
    return found


STANDINGS = {
    A: Standing(tasks=[entry("x", weight=2)], conditions=CONDITIONS),
    B: Standing(tasks=[entry("y", flops=4000)], conditions=CONDITIONS),
    ON_B_GPU: Standing(tasks=[entry("y")], conditions=ON_GPU, latency_us=7.0),
}


def test_members_are_what_configuration_and_records_say(config: NightlyConfig, store: RecordStore):
    a, b, gpu = fleet_members(config, STANDINGS, store)
    assert [member.key for member in (a, b, gpu)] == [A, B, ON_B_GPU]
    assert (a.latency_us, a.runs_per_day, a.least_minutes) == (100.0, 0.5, 0.0)
    assert b.latency_us == pytest.approx(200.0)  # 4000 operations at the speed of x
    assert gpu.latency_us == 7.0  # of its bundle
    assert a.outlook.trials == pytest.approx(300)
    assert b.outlook.trials == gpu.outlook.trials == 1.0


def test_each_device_has_a_lane_with_its_own_minutes(config: NightlyConfig, store: RecordStore):
    pocl, gpu = plan_lanes(config, STANDINGS, store)
    assert [(lane.device, lane.minutes) for lane in (pocl, gpu)] == [("pocl", 60.0), ("gpu", 4.0)]
    assert [member.key for member in pocl.members] == [A, B]
    assert [member.key for member in gpu.members] == [ON_B_GPU]
    assert pocl.overlaps and gpu.overlaps


def test_nothing_overlaps_where_a_measurement_would_be_disturbed(
    config: NightlyConfig, store: RecordStore
):
    standings = {**STANDINGS, B: replace(STANDINGS[B], overlaps=False)}
    assert [lane.overlaps for lane in plan_lanes(config, standings, store)] == [False, True]


def test_devices_without_a_member_have_no_lane(config: NightlyConfig, store: RecordStore):
    (lane,) = plan_lanes(config, {ON_B_GPU: STANDINGS[ON_B_GPU]}, store)
    assert lane.device == "gpu"
    assert plan_lanes(config, {}, store) == ()


def test_who_has_waited_longest_is_begun_first(config: NightlyConfig, store: RecordStore):
    def night(name: str, **statuses: str) -> NightState:
        members = tuple(
            MemberState(model=model, device="pocl", minutes=1.0, status=status)  # type: ignore[arg-type]
            for model, status in statuses.items()
        )
        return NightState(name=name, members=members)

    nights = [night("1", a="done", b="done")]
    assert plan_lanes(config, STANDINGS, store, nights)[0].members[0].key == A
    nights.append(night("2", a="done", b="skipped"))
    assert plan_lanes(config, STANDINGS, store, nights)[0].members[0].key == B
    nights.append(night("3", a="failed", b="done"))
    assert plan_lanes(config, STANDINGS, store, nights)[0].members[0].key == A


def test_the_timetable_says_who_gets_what_and_when(config: NightlyConfig, store: RecordStore):
    start = datetime(2026, 3, 1, 22, tzinfo=UTC)
    lanes = plan_lanes(config, STANDINGS, store)
    first, second, gpu = timetable(lanes, start, math.inf)
    assert (first.model, second.model, gpu.device) == ("a", "b", "gpu")
    assert first.minutes + second.minutes == pytest.approx(60)
    assert second.minutes > first.minutes > 0
    assert first.begin == gpu.begin == start
    assert second.begin == first.end
    assert gpu.minutes == pytest.approx(4)
    assert second.saving_s > 0


def test_no_device_is_measured_beyond_the_closing_of_the_window(
    config: NightlyConfig, store: RecordStore
):
    start = datetime(2026, 3, 1, 22, tzinfo=UTC)
    turns = timetable(plan_lanes(config, STANDINGS, store), start, 10.0, done=[ON_B_GPU])
    assert [turn.model for turn in turns] == ["a", "b"]
    assert turns[-1].end == start + timedelta(minutes=10)
