"""The process in which a contest runs: finalists were right alone, and may still hang or crash.

Read `ContestChild`; `main` is what its process runs.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np

from retune.bundle.build import ContestPlan
from retune.bundle.verify.contest import Contest, open_contest
from retune.core.errors import DeviceError
from retune.core.target import DeviceSpec
from retune.device.measure.child import Child
from retune.device.measure.lease import lease
from retune.device.measure.messages import Refused
from retune.device.measure.reference import Reference
from retune.device.measure.worker import serve
from retune.device.opencl.runtime import BuildFailed, Device, LaunchFailed
from retune.device.opening import open_device

_OPEN_S = 120.0
_OPEN_KERNEL_S = 10.0
"""Seconds that loading a contest may take, and more for each kernel."""
_PASSES_S = 60.0
_SLOWER = 20.0
"""Seconds that passes may take, and so many times what the slowest pass before promises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Open:
    plan: ContestPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    resolved: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    choices: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """Passes of a contest, and the reference kernel's time around them."""

    seconds: np.ndarray
    """As `Contest.times` gives them."""
    reference_us: float


class ContestChild:
    """A contest in a process of its own, on a device that is leased while it computes."""

    def __init__(self, device: str, plan: ContestPlan) -> None:
        """The contest is compiled, and has run once, when the call returns.

        Raises: ChildLostError if it takes too long or its process dies; DeviceError if the device
        refuses it.
        """
        self._child = Child(device, entry=__name__, replies=(_Opened, Passes, Refused))
        try:
            self.resolved = self._opened(plan).resolved
            """Whether passes tell the time of each slot."""
        except BaseException:  # an interrupt, too, while another process has the device
            self._child.close()
            raise
        self._slowest_s = 0.0

    def _opened(self, plan: ContestPlan) -> _Opened:
        deadline = _OPEN_S + _OPEN_KERNEL_S * len(plan.plan.kernels)
        with lease(self.spec):
            opened = self._child.request(_Open(plan=plan), deadline)
        if isinstance(opened, Refused):
            raise DeviceError(f"the network with its finalists cannot run: {opened.error}")
        assert isinstance(opened, _Opened)
        return opened

    @property
    def spec(self) -> DeviceSpec:
        """The device."""
        return self._child.spec

    def run(self, choices: np.ndarray) -> Passes:
        """Passes with these contenders; int [passes, slots].

        Raises: ChildLostError if they take too long or the process dies; DeviceError if the device
        refuses them.
        """
        deadline = _PASSES_S + _SLOWER * len(choices) * self._slowest_s
        with lease(self.spec):
            found = self._child.request(_Run(choices=choices), deadline)
        if isinstance(found, Refused):
            raise DeviceError(f"the network with its finalists cannot run: {found.error}")
        assert isinstance(found, Passes)
        self._slowest_s = max(self._slowest_s, float(found.seconds.sum(axis=1).max()))
        return found

    def close(self) -> None:
        """Ends the process."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Racer:
    """The child's side."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._contest: Contest | None = None
        self._reference: Reference | None = None

    def handle(self, request: object) -> object:
        """Carries out one request."""
        try:
            match request:
                case _Open():
                    self._contest = open_contest(request.plan, self._device)
                    self._reference = Reference(self._device)
                    return _Opened(resolved=self._contest.resolved)
                case _Run():
                    return self._run(request.choices)
                case _:
                    raise DeviceError(f"expected a request of a contest, got {request}")
        except (BuildFailed, LaunchFailed, MemoryError) as error:
            return Refused(status="launch_error", error=str(error) or "out of memory")

    def _run(self, choices: np.ndarray) -> Passes:
        assert self._contest is not None and self._reference is not None
        before = self._reference.time_us()
        seconds = self._contest.times(choices)
        after = self._reference.time_us()
        return Passes(seconds=seconds, reference_us=(before + after) / 2)


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves a ContestChild until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, _Racer, open_device)
