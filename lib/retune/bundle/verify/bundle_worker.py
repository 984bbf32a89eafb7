"""The process in which bundles run and are timed, without an oracle beside them: on any board.

Read `BundleWorker.handle`. `examiner_child` adds what compares them with the network that they are
of; its parent's side is `examiner.Examiner`.
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from retune.bundle.format import open_bundle, read_bundle, read_outline
from retune.bundle.plan import Form
from retune.bundle.runtime.forms import best_form, forms_worth_timing
from retune.bundle.runtime.module import Module
from retune.bundle.runtime.simulated import module_on, simulated_times
from retune.bundle.verify.bench import LONG_S, Benchmark, CountingClock, compare_times
from retune.bundle.verify.examination import (
    REQUESTS,
    Compare,
    Drop,
    Dropped,
    Entrant,
    Failed,
    FindForm,
    Forms,
    ListForms,
    Open,
    Opened,
    Outputs,
    Profile,
    Profiled,
    Run,
)
from retune.core.dims import SizeValues
from retune.core.errors import DeviceError, InputError, RetuneError
from retune.device.measure.ceilings import Ceilings
from retune.device.measure.reference import Reference
from retune.device.measure.worker import serve
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.device.simulated.runner import SimulatedDevice


class BundleWorker:
    """An open device with the bundles that were asked for so far."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._modules: dict[Path, Module] = {}

    def handle(self, request: object) -> object:
        """Carries out one request."""
        try:
            return self._carry_out(request)
        except (RetuneError, OSError) as error:
            return Failed.of(error)
        except MemoryError as error:
            return Failed.of(DeviceError(str(error) or "out of memory"))

    def _carry_out(self, request: object) -> object:
        match request:
            case Open():
                return self._open(request)
            case Run():
                return Outputs(arrays=self._module(request.bundle).run(request.inputs))
            case Compare():
                return self._compare(request)
            case Profile():
                module = self._module(request.bundle)
                inputs = module.random_inputs(sizes=request.sizes or None)
                ceilings = Ceilings(self._device)
                return Profiled(steps=module.profile(request.repeat, inputs, ceilings))
            case ListForms():
                return Forms(forms=forms_worth_timing(read_outline(request.bundle), self._device))
            case FindForm():
                return Forms(forms=(self._best_form(request.bundle),))
            case Drop():
                self._modules.clear()
                return Dropped()
            case _:
                raise DeviceError(f"expected a request of an examiner, got {request}")

    def _module(self, bundle: Path) -> Module:
        if bundle not in self._modules:
            with open_bundle(bundle) as opened:
                self._modules[bundle] = module_on(opened, self._device)
        return self._modules[bundle]

    def _call(self, entrant: Entrant, bundle: Path, sizes: SizeValues) -> Callable[[], object]:  # noqa: ARG002
        """A whole call of the entrant, on random inputs: a bundle's own, which are the same for all
        bundles of a network, and a peer's those of the bundle. Raises: InputError."""
        if not isinstance(entrant, Path):
            raise InputError(f"expected bundles alone on a board, got {entrant.peer}")
        module = self._module(entrant)
        feeds = module.random_inputs(sizes=sizes)
        return lambda: module.run(feeds)

    def _timed(
        self, entrant: Entrant, bundle: Path, sizes: SizeValues, clock: CountingClock
    ) -> Callable[[], object]:
        """The same, to be timed by that clock: what an accelerator does is counted, not run."""
        module = self._module(entrant) if isinstance(entrant, Path) else None
        if module is None or not module.plan.simulated_s:
            return self._call(entrant, bundle, sizes)
        counted_s = module.plan.simulated_s

        def call() -> None:
            module.run_launches()
            clock.count(counted_s)

        return call

    def _open(self, request: Open) -> Opened:
        call = self._call(request.rival or request.bundle, request.bundle, request.sizes)
        first_s = _seconds(call)
        return Opened(call_s=first_s if first_s > LONG_S else _seconds(call))

    def _compare(self, request: Compare) -> Benchmark:
        if isinstance(self._device, SimulatedDevice):
            plans = {name: self._module(bundle).plan for name, bundle in request.bundles.items()}
            return simulated_times(
                plans,
                self._device.board,
                baseline=request.baseline,
                calibration=request.calibration,
            )
        clock = CountingClock()
        entrants: dict[str, Entrant] = {**request.bundles, **request.rivals}
        first = next(iter(request.bundles.values()))
        calls = {
            name: self._timed(entrant, first, request.sizes, clock)
            for name, entrant in entrants.items()
        }
        if request.calibration:
            calls[request.calibration] = Reference(self._device).run
        return compare_times(calls, baseline=request.baseline, options=request.options, clock=clock)

    def _best_form(self, bundle: Path) -> Form:
        self._modules.pop(bundle, None)  # each form holds the weights once more
        return best_form(read_bundle(bundle), self._device).form


def _seconds(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def main(channel: int, lifeline: int, device: str) -> None:
    """Serves an Examiner until it closes the `channel`, or is gone."""
    serve(channel, lifeline, device, BundleWorker, open_device, REQUESTS)
