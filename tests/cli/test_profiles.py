"""Devices that are not here, on the command line."""

import json
from pathlib import Path

import pytest

from retune.bundle.format import read_bundle
from retune.cli.main import run_command

pytestmark = pytest.mark.device


def test_profiles_are_listed_with_their_sources(capsys: pytest.CaptureFixture[str]):
    assert run_command(["devices"]) == 0
    assert "profile:mali-g76" in capsys.readouterr().out
    assert run_command(["devices", "--profiles", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["profile"] for row in rows} >= {"generic", "mali-g610"}
    assert all(row["source"] for row in rows)


def test_a_bundle_is_compiled_for_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    command = ["tune", "zoo:mlp", "--device", "profile:mali-g76", "--trials", "0"]
    limits = ["--device-param", "max_work_group=128"]
    out = ["--out", str(tmp_path / "out"), "--no-prefect"]
    assert run_command([*command, *limits, *out]) == 0
    said = capsys.readouterr().out
    assert "latency   none: Mali-G76 with max_work_group=128" in said
    assert "(kernels ran on profile:mali-g76@pocl?max_work_group=128, not on the device)" in said
    plan = read_bundle(tmp_path / "out" / "module")
    assert plan.device.name == "profile:mali-g76?max_work_group=128"
    assert plan.device.max_work_group == 128
    report = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "No times: the device was absent." in report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "profile:mali-g76", "--trials", "5"], "expected --trials 0"),
        (["--device", "profile:mali-g76"], "expected --trials 0"),
        (["--device", "profile:g76", "--trials", "0"], "profile 'g76' is not known; there are"),
        (["--device-param", "speed=1"], "'speed=1': expected NAME=NUMBER"),
        (["--device-param", "max_work_group=x"], "expected a whole number from 1 to 65536"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run_command(["tune", "zoo:mlp", "--out", str(tmp_path / "out"), *options]) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()
