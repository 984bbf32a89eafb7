"""The door to devices by name: their specs, what measures on them, and what runs on them.

A name is one that `retune devices` lists, `sim:PATH` for the simulated device (`board`) that a TOML
file describes, or `farm:KEY@ADDRESS` for the boards of a farm. Several names with commas between
them are equal devices that share a run.
"""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from retune.core.errors import InputError
from retune.core.target import DeviceSpec
from retune.device import runtime
from retune.device.board import SIMULATED, Board, read_board
from retune.device.catalogue import device_spec, find_device
from retune.device.device_pool import DevicePool
from retune.device.farm.names import farm_name, is_farm
from retune.device.lease import lease
from retune.device.measure import LocalRunner
from retune.device.runtime import Device
from retune.device.simulated import SimulatedDevice, SimulatedRunner
from retune.device.workload import Runner

if TYPE_CHECKING:
    from retune.device.farm.runner import Asking


def spec_of(name: str) -> DeviceSpec:
    """The device of that name, not opened; of several the first.

    Raises: InputError if one of them is not known, or they are not of one kind.
    """
    if is_farm(name):
        return _farm().spec_in_farm(farm_name(name))
    specs = [_spec(device) for device in _devices(name)]
    for spec in specs[1:]:
        if spec.fingerprint != specs[0].fingerprint:
            raise InputError(
                f"device {name!r}: expected devices of one kind, got {specs[0].name} "
                f"({specs[0].fingerprint}) and {spec.name} ({spec.fingerprint}); tune for each of "
                "them in a run of its own"
            )
    return specs[0]


def open_runner(name: str) -> Runner:
    """What measures on the device of that name; on several, at the same time.

    Raises: InputError as `spec_of`.
    """
    if is_farm(name):
        return _farm().FarmRunner(farm_name(name))
    spec_of(name)
    runners = [_runner(device) for device in _devices(name)]
    return runners[0] if len(runners) == 1 else DevicePool(runners)


def asking_of(name: str) -> "Asking":
    """Who asks the boards of a farm's device. Raises: InputError as `spec_of`."""
    return _farm().asking_of(farm_name(name))


def open_device(name: str = "pocl") -> Device:
    """The device of that name, open; of several the first. Raises: InputError as `spec_of`.

    One that is simulated is a SimulatedDevice. A farm's is opened on its board alone.
    """
    if is_farm(name):
        raise InputError(
            f"device {name!r}: expected a device of this machine, got a farm's; take the bundle to "
            "a board and run it there, or name a device of `retune devices`"
        )
    first = _devices(name)[0]
    board = _board(first)
    if board is None:
        return runtime.open_device(first)
    base, handle = find_device(board.base)
    return SimulatedDevice(handle, base, board)


def unraced(name: str) -> str:
    """Why finalists are not raced inside their network there, so that records decide.

    Empty where they are. Raises: InputError as `board_of`.
    """
    if is_farm(name):
        return f"{name} is a farm's"
    board = board_of(name)
    return f"{board.name} is simulated" if board else ""


@contextmanager
def base_leased(name: str) -> Generator[None]:
    """Holds the device that the simulated one of that name computes on; of a real one nothing.

    Of several the first. Raises: InputError if its file cannot be used.
    """
    board = board_of(name)
    with lease(device_spec(board.base)) if board else nullcontext():
        yield


def board_of(name: str) -> Board | None:
    """What is simulated under that name, of several the first; None for any other device.

    Raises: InputError if its file cannot be used.
    """
    return None if is_farm(name) else _board(_devices(name)[0])


def _farm() -> ModuleType:
    """What knows farms. Raises: InputError where distributed is not installed."""
    if find_spec("distributed") is None:
        raise InputError("a farm needs more than is installed; type: pip install 'retune[farm]'")
    return import_module("retune.device.farm.runner")


def _devices(name: str) -> list[str]:
    """The single names. Raises: InputError if there is none, or one twice."""
    found = [device.strip() for device in name.split(",")]
    if not all(found):
        raise InputError(
            f"device {name!r}: expected a name, or several with commas between them; see "
            "`retune devices`, or write sim:FILE.toml"
        )
    twice = next((device for device in found if found.count(device) > 1), None)
    if twice:
        raise InputError(f"device {name!r}: expected each device once, got {twice!r} twice")
    return found


def _board(device: str) -> Board | None:
    if not device.startswith(SIMULATED):
        return None
    return read_board(Path(device.removeprefix(SIMULATED)).expanduser())


def _spec(device: str) -> DeviceSpec:
    board = _board(device)
    return board.described(device_spec(board.base)) if board else device_spec(device)


def _runner(device: str) -> Runner:
    board = _board(device)
    return SimulatedRunner(board, device_spec(board.base)) if board else LocalRunner(device)
