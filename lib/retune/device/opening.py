"""Devices by name: their specs, what measures on them, and what runs on them.

A name is one that `retune devices` lists, `sim:PATH` for the simulated device (`board`) that a TOML
file describes, `vta-sim` for the simulated accelerator (`accelerator`), `profile:NAME` for a device
that is not here (`profiles`), or `farm:KEY@ADDRESS` for the boards of a farm. Parameters may follow
it (`core.parameters`). Several names with commas between them are equal devices that share a run.

What measures and what simulates is loaded when it is asked for: a bundle is run without either.
"""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from retune.core.errors import InputError
from retune.core.extras import explained
from retune.core.parameters import named, split_name, with_parameters
from retune.core.target import DeviceSpec
from retune.device.opencl import runtime
from retune.device.opencl.catalogue import device_names, device_spec, find_device
from retune.device.opencl.described import DescribedDevice
from retune.device.opencl.runtime import Device
from retune.device.profiles import (
    PLAYED,
    PROFILE,
    is_profile,
    played,
    profile_names,
    split_profile,
)
from retune.device.remote.names import farm_name, is_farm
from retune.device.simulated.board import SIMULATED, SimulatedBoard, read_board
from retune.device.simulated.names import BASE, NAME, is_accelerator

if TYPE_CHECKING:
    from retune.device.measure.workload import Runner
    from retune.device.remote.runner import Asking


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


def open_runner(name: str) -> "Runner":
    """What measures on the device of that name; on several, at the same time.

    Raises: InputError as `spec_of`.
    """
    if is_farm(name):
        return _farm().FarmRunner(farm_name(name))
    spec_of(name)
    for device in _devices(name):
        _check_present(device)
    runners = [_runner(device) for device in _devices(name)]
    if len(runners) == 1:
        return runners[0]
    from retune.device.measure.device_pool import DevicePool

    return DevicePool(runners)


def asking_of(name: str) -> "Asking":
    """Who asks the boards of a farm's device. Raises: InputError as `spec_of`."""
    return _farm().asking_of(farm_name(name))


def open_device(name: str = "pocl") -> Device:
    """The device of that name, open; of several the first. Raises: InputError as `spec_of`.

    One that is simulated is a SimulatedDevice or an AcceleratorDevice, one that passes for another
    a DescribedDevice; a farm's is opened on its board alone. Raises: InputError also for a profile
    that no device plays.
    """
    if is_farm(name):
        raise InputError(
            f"device {name!r}: expected a device of this machine, got a farm's; take the bundle to "
            "a board and run it there, or name a device of `retune devices`"
        )
    first = _devices(name)[0]
    if is_accelerator(first):
        from retune.device.simulated.accelerator import AcceleratorDevice

        base, handle = find_device(BASE)
        return AcceleratorDevice(handle, base, first)
    board = _board(first)
    if board is not None:
        from retune.device.simulated.runner import SimulatedDevice

        base, handle = find_device(board.base)
        return SimulatedDevice(handle, base, board)
    _check_present(first)
    spec, own = _spec(first), _computing(first)
    if spec.name == own:
        return runtime.open_device(own)
    base, handle = find_device(own)
    return DescribedDevice(handle, base, spec)


def playing(name: str) -> str:
    """The device that shows whether kernels for the named one are right: itself if it is here.

    A profile's is played by PoCL. Raises: InputError as `spec_of`.
    """
    own, parameters = split_name(_devices(name)[0])
    if is_farm(name) or not is_profile(own) or split_profile(own)[1]:
        return name
    return named(f"{own}{PLAYED}pocl", parameters)


def is_absent(name: str) -> bool:
    """Whether it is a profile that no device plays: nothing can run on it, or be timed."""
    return playing(name) != name


def unraced(name: str) -> str:
    """Why finalists are not compared inside their network there, so that records decide.

    Empty where they are. Raises: InputError as `board_of`.
    """
    if is_farm(name):
        return f"{name} is a farm's"
    if not is_simulated(name):
        return ""
    board = board_of(name)
    return f"{board.name if board else name} is simulated"


def timed_here(name: str) -> bool:
    """Whether candidates are timed on this machine's processor, which other work here disturbs."""
    return not is_farm(name) and not is_simulated(name) and spec_of(name).device_class == "cpu"


@contextmanager
def base_leased(name: str) -> Generator[None]:
    """Holds the device that the simulated one of that name computes on; of a real one nothing.

    Of several the first. Raises: InputError if its file cannot be used.
    """
    board, base = board_of(name), None
    if board is not None or is_simulated(name):
        base = board.base if board else BASE
    from retune.device.measure.lease import lease

    with lease(device_spec(base)) if base else nullcontext():
        yield


def known_names() -> tuple[str, ...]:
    """Names that need no further word: of this machine's devices, the simulated accelerator and
    profiles."""
    return (*device_names(), NAME, *(f"{PROFILE}{name}" for name in profile_names()))


def list_simulated() -> tuple[DeviceSpec, ...]:
    """The devices without hardware that are always there; none without the base's."""
    try:
        return (spec_of(NAME),)
    except InputError:
        return ()


def is_simulated(name: str) -> bool:
    """Whether times there are counted and not measured."""
    first = _devices(name)[0]
    return is_accelerator(first) or _board(first) is not None


def board_of(name: str) -> SimulatedBoard | None:
    """What is simulated under that name, of several the first; None for any other device.

    Raises: InputError if its file cannot be used.
    """
    return None if is_farm(name) else _board(_devices(name)[0])


def display_name(name: str) -> str:
    """What people call the device: a simulated board by its own name, not by its file's path.

    A board whose file cannot be read is called by the name of the file.
    """
    return ",".join(_display_name(device.strip()) for device in name.split(","))


def _display_name(device: str) -> str:
    if not device.startswith(SIMULATED):
        return device
    path = Path(device.removeprefix(SIMULATED)).expanduser()
    try:
        return read_board(path).name
    except InputError:
        return path.stem


def _farm() -> ModuleType:
    """What knows farms. Raises: MissingExtra where distributed is not installed."""
    with explained():
        return import_module("retune.device.remote.runner")


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


def _board(device: str) -> SimulatedBoard | None:
    if not device.startswith(SIMULATED):
        return None
    return read_board(Path(device.removeprefix(SIMULATED)).expanduser())


def _spec(device: str) -> DeviceSpec:
    if is_accelerator(device):
        from retune.device.simulated.accelerator import described

        return described(device, device_spec(BASE))
    board = _board(device)
    if board:
        return board.described(device_spec(board.base))
    own, parameters = split_name(device)
    return with_parameters(_plain_spec(own), parameters)


def _plain_spec(own: str) -> DeviceSpec:
    """The device of a name without parameters."""
    if not is_profile(own):
        return device_spec(own)
    profile, base = split_profile(own)
    return played(profile, device_spec(base)) if base else profile.spec


def _computing(device: str) -> str:
    """The name of the device of this machine on which kernels run."""
    own = split_name(device)[0]
    return split_profile(own)[1] if is_profile(own) else own


def _check_present(device: str) -> None:
    if not _board(device) and not _computing(device):
        raise InputError(
            f"device {device!r}: expected a device that is here, got a profile, for which bundles "
            f"are only compiled (--trials 0); {playing(device)} runs its kernels on PoCL, and on "
            "the board itself `retune devices` says the device's own name"
        )


def _runner(device: str) -> "Runner":
    if is_accelerator(device):
        from retune.device.simulated.accelerator import AcceleratorRunner

        return AcceleratorRunner(_spec(device))
    if board := _board(device):
        from retune.device.simulated.runner import SimulatedRunner

        return SimulatedRunner(board, device_spec(board.base))
    from retune.device.measure.local import LocalRunner

    return LocalRunner(device)
