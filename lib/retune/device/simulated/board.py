"""Simulated boards: what a TOML file says of one, and which faults it shall have.

Read `SimulatedBoard`, `Fault` and `read_board`. How long kernels take on one says `simulation`; who
applies the faults, `faults`.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from retune.core.errors import InputError
from retune.core.schema import Above0, AtLeast0, Count, Meta, Positive, Text, read_toml
from retune.core.target import DeviceSpec

SIMULATED = "sim:"
"""Before the path of its file, a simulated device's name."""

FaultKind = Literal["hang", "crash", "wrong_result", "launch_error", "lost", "slow", "wrong_bundle"]
"""What becomes of a measurement: a row of that reason (`hang`: timeout), or a time that is too long
(`slow`). `lost`: the driver is gone, and the batch with it. `wrong_bundle`: the candidate looks
right, and so fast that it is chosen, but every bundle that it is in computes something else."""

_CHOICES = ("at", "task", "share")
_FACTOR = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One line of a board's script. Exactly one of `at`, `task` and `share` says whom it hits."""

    kind: FaultKind
    at: Positive | None = None
    """The measurement of that number, from 1 on, over the life of the board."""
    task: Text | None = None
    """Candidates that have a kernel of a name like this (`conv2d*`), but for the first one of each
    task that a process measures: that is its default schedule, which a bundle falls back to."""
    share: Annotated[float, Meta(gt=0, le=1)] | None = None
    """This part of all candidates; equal candidates fare alike."""
    times: Positive | None = None
    """How many measurements it hits, from `at` on or as they come. None: one; all of a `share`."""
    factor: Above0 = _FACTOR
    """Of `slow`: how many times as long the candidate seems to take."""

    def __post_init__(self) -> None:
        given = [name for name in _CHOICES if getattr(self, name) is not None]
        if len(given) != 1:
            got = " and ".join(given) or "none"
            raise ValueError(f"expected one of {', '.join(_CHOICES)}, got {got}")
        if self.kind == "wrong_bundle" and self.share is not None:
            raise ValueError(
                "share: expected `at` or `task` for wrong_bundle: a default schedule that was hit "
                "would leave no bundle that is right"
            )
        if self.kind != "slow" and self.factor != _FACTOR:
            raise ValueError(f"factor: expected only where kind is slow, got {self.kind!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slower:
    """Kernels that take longer than their code says: what a fault of the board would do to them."""

    kernel: Text
    """Those of a name like this (`conv2d*`)."""
    factor: Above0
    """How many times as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedBoard:
    """A device that is simulated: it has the limits of a real one, and times that are made up."""

    path: Path = field(default=Path(), metadata={"stated": False})
    """Its file; what happened to it so far lies beside it."""
    name: Text
    """What the records call it."""
    model: Text = ""
    """Boards of one model are of one kind: they may share a run. By default its name."""
    base: Text = "pocl"
    """The device whose limits it has, and on which bundles really run."""
    device_class: Text = ""
    """Which rules make its kernels, see `targets.devices`; by default those of the base."""
    driver: Text = "1"
    """Version of its driver: another one is another kind of device, with times of its own."""
    measure_s: AtLeast0 = 0.0
    """How long a measurement takes; nothing is computed meanwhile."""
    hang_s: AtLeast0 = 0.0
    """How long one waits for a kernel that hangs, whatever deadline its row names."""
    speed: Above0 = 1.0
    """Times are divided by it."""
    noise: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Spread of a measurement's repeats and of a bundle's rounds, as a part of the time; 0: all are
    equal."""
    wander: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Spread of a bundle's times from one comparison to the next, as a part of the time."""
    seed: Count = 0
    """Of what is random in times of bundles: another one is another night."""
    slower: tuple[Slower, ...] = ()
    """In candidates and in bundles; of several that fit a kernel all do."""
    fault: tuple[Fault, ...] = ()
    """In order: of those that fit a measurement the first one hits it."""

    def described(self, base: DeviceSpec) -> DeviceSpec:
        """The board as a device, with the limits of `base`; it has cores of its own."""
        return replace(
            base,
            name=self.name,
            model=f"simulated {self.model}",
            device_class=self.device_class or base.device_class,
            platform="simulated",
            driver=self.driver,
            host="simulated",
            affinity="",
        )


def read_board(path: Path) -> SimulatedBoard:
    """The board of that TOML file. Raises: InputError naming the file, the fault and the key."""
    board = read_toml(SimulatedBoard, path, "the TOML file of a simulated device")
    if board.name == board.base:
        raise InputError(f"{path}: name: expected one of its own, got {board.name!r}, the base's")
    return replace(board, path=path, model=board.model or board.name)
