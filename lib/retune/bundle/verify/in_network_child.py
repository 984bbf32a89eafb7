"""The process in which finalists run in their network: each was right alone, and may still hang.

Read `FinalistsChild`; `main` is what its process runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Self, TypeVar

import numpy as np

from retune.bundle.build import FinalistsPlan, Slot
from retune.bundle.manifest import BundleManifest, from_manifest, to_manifest
from retune.bundle.verify.in_network import FinalistsRunner, open_finalists
from retune.bundle.weights import map_file, view_weights
from retune.core.errors import DeviceError
from retune.core.schema import from_json, to_json
from retune.core.target import DeviceSpec
from retune.device.measure.child import Child
from retune.device.measure.contention import Waiting
from retune.device.measure.lease import lease
from retune.device.measure.messages import Refused
from retune.device.measure.reference import Reference
from retune.device.measure.worker import serve
from retune.device.opencl.runtime import BuildFailed, Device, LaunchFailed
from retune.device.opening import open_device

T = TypeVar("T")

_OPEN_S = 120.0
_OPEN_KERNEL_S = 10.0
"""Seconds that loading the network may take, and more for each kernel."""
_RUN_S = 60.0
_SLOWER = 20.0
"""Seconds that iterations may take, and so many times what the slowest one before promises."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Iterations:
    """Times of some iterations of a network, and of the calibration kernel around them."""

    seconds: np.ndarray
    """As `FinalistsRunner.times` gives them."""
    reference_us: float
    waited: float = 0.0
    """Part of the time that some thread was ready and had no core. 0 to 1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFinalists:
    """Compile a plan of finalists, whose weights lie in a file, and run it once."""

    manifest: str
    """JSON of the plan, see `bundle.manifest`."""
    texts: Mapping[str, str]
    """Of its kernels, by name."""
    models: tuple[bytes, ...]
    """Of its host steps."""
    slots: tuple[Slot, ...]
    weights: Path

    @staticmethod
    def of(finalists: FinalistsPlan, weights: Path) -> "OpenFinalists":
        """The request for that plan."""
        plan = finalists.plan
        return OpenFinalists(
            manifest=to_json(to_manifest(plan)),
            texts={kernel.name: kernel.text for kernel in plan.kernels},
            models=tuple(host.model for host in plan.hosts),
            slots=finalists.slots,
            weights=weights,
        )

    @property
    def finalists(self) -> FinalistsPlan:
        """The plan that it is of, with its weights."""
        weights = view_weights(map_file(self.weights))
        stated = from_json(BundleManifest, self.manifest)
        plan = from_manifest(stated, self.texts, weights, self.models)
        return FinalistsPlan(plan=plan, slots=self.slots)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunFinalists:
    """Run iterations; the reply is Iterations."""

    choices: np.ndarray
    """As of `FinalistsRunner.times`."""


REQUESTS: tuple[type, ...] = (OpenFinalists, RunFinalists)
"""What the process is asked."""


class FinalistsChild:
    """A network with its finalists in a process of its own, on a device that is leased while it
    computes."""

    def __init__(self, device: str, plan: FinalistsPlan, weights: Path) -> None:
        """The network is compiled, and has run once, when the call returns.

        The plan has no weights: they lie in the file `weights`, see `save_weights`, which is not
        read afterwards. A message with all of them would take their memory twice more.
        Raises: ChildLostError if it takes too long or its process dies; DeviceError if the device
        refuses it.
        """
        replies = (bool, Iterations, Refused)
        self._child = Child(device, entry=__name__, replies=replies)
        self._slowest_s = 0.0
        deadline = _OPEN_S + _OPEN_KERNEL_S * len(plan.plan.kernels)
        try:
            self.resolved = self._ask(OpenFinalists.of(plan, weights), deadline, bool)
            """Whether iterations give the time of each slot."""
        except BaseException:  # an interrupt, too, while another process has the device
            self._child.close()
            raise

    @property
    def spec(self) -> DeviceSpec:
        """The device."""
        return self._child.spec

    def run(self, choices: np.ndarray) -> Iterations:
        """Iterations with these finalists; int [iterations, slots].

        Raises: ChildLostError if they take too long or the process dies; DeviceError if the device
        refuses them.
        """
        deadline = _RUN_S + _SLOWER * len(choices) * self._slowest_s
        found = self._ask(RunFinalists(choices=choices), deadline, Iterations)
        self._slowest_s = max(self._slowest_s, float(found.seconds.sum(axis=1).max()))
        return found

    def _ask(self, request: object, deadline: float, expected: type[T]) -> T:
        with lease(self.spec):
            found = self._child.request(request, deadline)
        if isinstance(found, Refused):
            raise DeviceError(f"the network with its finalists cannot run: {found.error}")
        assert isinstance(found, expected)
        return found

    def close(self) -> None:
        """Ends the process."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Handler:
    """The child's side."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._runner: FinalistsRunner | None = None
        self._reference: Reference | None = None

    def handle(self, request: object) -> object:
        """Carries out one request: a plan is opened, or its iterations are run."""
        try:
            match request:
                case OpenFinalists():
                    self._runner = open_finalists(request.finalists, self._device)
                    self._reference = Reference(self._device)
                    return self._runner.resolved
                case RunFinalists(choices=choices):
                    return self._run(choices)
                case _:
                    raise DeviceError(f"expected a plan or choices of finalists, got {request}")
        except (BuildFailed, LaunchFailed, MemoryError) as error:
            return Refused(status="launch_error", error=str(error) or "out of memory")

    def _run(self, choices: np.ndarray) -> Iterations:
        assert self._runner is not None and self._reference is not None
        before = self._reference.time_us()
        waiting, start = Waiting(), perf_counter()
        seconds = self._runner.times(choices)
        waited = waiting.share(perf_counter() - start)
        after = self._reference.time_us()
        return Iterations(seconds=seconds, reference_us=(before + after) / 2, waited=waited)


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves a FinalistsChild until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, _Handler, open_device, REQUESTS)
