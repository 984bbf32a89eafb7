"""What a farm and its boards are called."""

import pytest

from retune.core.errors import InputError
from retune.device import opening
from retune.device.remote.names import FarmName, check_address, farm_name, is_farm


def test_a_name_says_key_and_scheduler():
    name = farm_name("farm:rk3399@tls://farm.lab:9000")
    assert name == FarmName("rk3399", "tls://farm.lab:9000")
    assert farm_name(str(name)) == name
    assert is_farm(str(name))
    assert not is_farm("pocl")


def test_the_scheduler_may_be_the_environments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETUNE_SCHEDULER", "farm.lab")
    assert farm_name("farm:a") == FarmName("a", "tls://farm.lab:8786")
    monkeypatch.delenv("RETUNE_SCHEDULER")
    with pytest.raises(InputError, match="expected the address of the farm's scheduler, got none"):
        farm_name("farm:a")


@pytest.mark.parametrize(
    ("address", "whole"),
    [
        ("tls://127.0.0.1", "tls://127.0.0.1:8786"),
        ("tcp://localhost:1", "tcp://localhost:1"),
        ("tcp://[::1]:5", "tcp://[::1]:5"),
        ("host:12", "tls://host:12"),
    ],
)
def test_addresses_are_made_whole(address: str, whole: str):
    assert check_address(address) == whole


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "tcp://farm.lab", "tcp://0.0.0.0:1"])
def test_there_is_no_way_off_this_machine_without_tls(address: str):
    with pytest.raises(InputError, match="expected tls:// off this machine, got tcp://"):
        check_address(address)


@pytest.mark.parametrize(
    "address", ["http://a:1", "tls://a:b", "tls://a:1/path", "tls://u@h:1", ""]
)
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(InputError, match="expected tls://HOST:PORT"):
        check_address(address)


@pytest.mark.parametrize("key", ["", "a/b", "a b", "-a", "a" * 65])
def test_what_is_no_key_is_refused(key: str):
    with pytest.raises(InputError, match="expected letters, digits"):
        farm_name(f"farm:{key}@tls://farm:1")


def test_a_farms_device_is_opened_on_no_other_machine():
    with pytest.raises(InputError, match="got a farm's; take the bundle to a board"):
        opening.open_device("farm:a@tls://farm:1")
    assert opening.board_of("farm:a@tls://farm:1") is None
    assert opening.unraced("farm:a@tls://farm:1") == "farm:a@tls://farm:1 is a farm's"
    assert opening.unraced("pocl") == ""
