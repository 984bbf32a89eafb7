"""Devices by name: what a name means, and what is said of one that means nothing."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device import opening
from retune.device.measure.local import LocalRunner
from retune.device.simulated.runner import SimulatedRunner
from tests.support.boards import fault, written

REAL = {
    "pocl": replace(GENERIC_CPU, name="pocl"),
    "gpu": replace(GENERIC_CPU, name="gpu", model="g"),
}


def real_spec(name: str) -> DeviceSpec:
    if name not in REAL:
        raise InputError(f"device {name!r} is not known; found here: {', '.join(REAL)}")
    return REAL[name]


@pytest.fixture(autouse=True)
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two kinds of devices, without OpenCL."""
    monkeypatch.setattr(opening, "device_spec", real_spec)


def sim(folder: Path, name: str, text: str = 'model = "kind"') -> str:
    return f"sim:{written(folder, text, name)}"


def test_a_plain_name_is_a_device_of_this_machine():
    assert opening.spec_of("pocl") is REAL["pocl"]
    assert opening.board_of("pocl") is None
    assert isinstance(opening.open_runner("pocl"), LocalRunner)


def test_a_file_is_a_simulated_device(tmp_path: Path):
    name = sim(tmp_path, "a")
    spec, runner, board = opening.spec_of(name), opening.open_runner(name), opening.board_of(name)
    assert isinstance(runner, SimulatedRunner) and board is not None
    assert (spec.name, spec.model) == ("a", "simulated kind")
    assert runner.spec == spec == board.described(REAL["pocl"])


def test_equal_devices_may_share_a_run(tmp_path: Path):
    both = f"{sim(tmp_path, 'a')}, {sim(tmp_path, 'b')}"
    assert opening.spec_of(both).name == "a"
    with closing(opening.open_runner(both)) as runner:
        assert (runner.spec.name, runner.capacity) == ("a", 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("toaster", "device 'toaster' is not known; found here: pocl, gpu"),
        ("sim:{0}/none.toml", "none.toml: expected the TOML file of a simulated device, got no"),
        ("sim:{0}/bad.toml", "bad.toml: expected keys among .*, got sped"),
        ("sim:{0}/lost.toml", "device 'toaster' is not known"),
        ("", "device '': expected a name, or several with commas between them"),
        ("pocl,", "device 'pocl,': expected a name"),
        ("pocl,pocl", "expected each device once, got 'pocl' twice"),
        (
            "pocl,gpu",
            r"expected devices of one kind, got pocl \(.*\) and gpu \(.*\); tune for each",
        ),
        (
            "sim:{0}/a.toml,pocl",
            r"expected devices of one kind, got a \(simulated kind.*\) and pocl",
        ),
        ("sim:{0}/a.toml,sim:{0}/new.toml", r"one kind, got a \(.*\|1\|.*\) and new \(.*\|2\|.*\)"),
    ],
)
def test_a_name_that_cannot_be_meant_is_refused(tmp_path: Path, name: str, message: str):
    sim(tmp_path, "a")
    sim(tmp_path, "bad", "sped = 1")
    sim(tmp_path, "lost", 'base = "toaster"')
    sim(tmp_path, "new", 'model = "kind"\ndriver = "2"')
    with pytest.raises(InputError, match=message):
        opening.spec_of(name.format(tmp_path))
    if name not in ("toaster",):
        with pytest.raises(InputError, match=message):
            opening.open_runner(name.format(tmp_path))


def test_a_script_is_read_when_the_device_is_opened(tmp_path: Path):
    name = sim(tmp_path, "a", fault("hang", at=0))
    for ask in (opening.spec_of, opening.open_runner, opening.board_of, opening.open_device):
        with pytest.raises(InputError, match="fault 1: at: expected a whole number of at least 1"):
            ask(name)


def test_limits_make_another_device_of_a_name():
    spec = opening.spec_of("pocl?max_local_bytes=1024")
    assert spec.local_memory_bytes == 1024 and spec.name == "pocl?max_local_bytes=1024"
    assert isinstance(opening.open_runner("pocl?max_local_bytes=1024"), LocalRunner)
    assert opening.playing("pocl?l2_bytes=0") == "pocl?l2_bytes=0"
    with pytest.raises(InputError, match="expected NAME=NUMBER with one of the names"):
        opening.spec_of("pocl?speed=2")


def test_a_profile_is_a_device_that_is_not_here():
    name = "profile:mali-g76"
    assert opening.spec_of(name).model == "Mali-G76"
    assert opening.spec_of(f"{name}?max_work_group=64").max_work_group == 64
    assert opening.is_absent(name) and not opening.is_absent(f"{name}@pocl")
    assert opening.playing(f"{name}?max_work_group=64") == f"{name}@pocl?max_work_group=64"
    assert opening.spec_of(f"{name}@pocl").max_work_group == 384
    assert isinstance(opening.open_runner(f"{name}@pocl"), LocalRunner)
    for use in (opening.open_runner, opening.open_device):
        with pytest.raises(InputError, match="expected a device that is here, got a profile"):
            use(name)
    with pytest.raises(InputError, match="'cuda' is not known; found here: pocl, gpu"):
        opening.spec_of(f"{name}@cuda")


def test_a_simulated_board_is_called_by_its_own_name(tmp_path: Path):
    board = tmp_path / "rack-3.toml"
    assert opening.display_name(f"sim:{board}") == "rack-3"  # the file does not exist yet
    board.write_text('name = "mali"\n')
    assert opening.display_name(f"sim:{board}") == "mali"
    assert opening.display_name(f"sim:{board}, pocl") == "mali,pocl"
