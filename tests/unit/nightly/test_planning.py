"""A night's plan follows the configuration, the records and the clock."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.nightly.config import DeviceConfig, MinuteBounds, ModelConfig, NightlyConfig
from retune.nightly.planning import Standing, fleet_members, plan_minutes
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


def test_the_plan_holds_what_was_promised(config: NightlyConfig, store: RecordStore):
    plan = plan_minutes(config, STANDINGS, store)
    assert sum(plan.values()) == pytest.approx(60)
    assert 2 <= plan[ON_B_GPU] <= 4
    assert plan[B] > plan[A] > 0


def test_no_device_is_measured_beyond_the_closing_of_the_window(
    config: NightlyConfig, store: RecordStore
):
    plan = plan_minutes(config, STANDINGS, store, seconds_left=600)
    assert plan[A] + plan[B] == pytest.approx(10)
    assert plan[ON_B_GPU] == pytest.approx(4)


def test_a_part_of_the_fleet_is_planned_with_what_is_left(
    config: NightlyConfig, store: RecordStore
):
    assert plan_minutes(config, {A: STANDINGS[A]}, store, minutes=7) == pytest.approx({A: 7})
    assert plan_minutes(config, {}, store) == {}
