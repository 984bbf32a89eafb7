"""Bundles are verified and timed in a process of its own, which may hang or crash.

Read `Examiner`. The kernels of a bundle were right alone; in the network, with this driver, they
may still never come back. The device is leased while any of them runs.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from retune.bundle.format import read_outline
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime import forms
from retune.bundle.runtime.module import LaunchProfile, warn_if_foreign
from retune.bundle.verify.bench import Benchmark, BenchOptions, longest_s
from retune.bundle.verify.compare import sampling
from retune.bundle.verify.examination import (
    ANSWERS,
    Compare,
    Comparison,
    Drop,
    Dropped,
    Entrant,
    Failed,
    FindForm,
    Forms,
    ListForms,
    Open,
    Opened,
    Original,
    Outputs,
    Profile,
    Profiled,
    Rival,
    Run,
    Verdict,
    Verify,
)
from retune.core.dims import SizeValues, most
from retune.core.errors import DeviceError, InputError
from retune.core.target import DeviceSpec
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.lease import lease
from retune.device.opening import base_leased

__all__ = ["Comparison", "Entrant", "Examiner", "Original", "Patience", "Rival", "Verdict"]

_LOG = logging.getLogger(__name__)

_WITH_ORACLES = "retune.bundle.verify.examiner_child"
BUNDLES_ALONE = "retune.bundle.verify.bundle_worker"
"""The entry of an examiner that has no oracles and no peers: it needs nothing of what these do."""
_FORM_CALLS = 25
"""Whole calls by which `forms.best_form` finds out whether another form can gain anything."""
_CALIBRATION_S = 0.05
"""A call of the calibration kernel, where it takes long; usually it is about a millisecond."""
_PROFILE_CALLS = 4
"""Calls that one repeat of a profile takes at most: the steps one by one, the host's in a run of
their own, and the waiting behind other kernels (`Device.time_queued`) where that is needed."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When a process is given up: later than any machine that works would need.

    What is known beforehand is how many kernels are to be compiled and how much arithmetic a call
    is; once a bundle was loaded, also what a call takes here, and comparisons have a budget. Each
    deadline is an allowance and the time of so many kernels, calls and pauses; what is allowed is
    as generous as it is for the finalists (`in_network_child`).
    """

    open_s: float = 120.0
    """To read and load a bundle or a model, whatever its size."""
    kernel_s: float = 10.0
    """More for each kernel to be compiled."""
    answer_s: float = 60.0
    """For any other request, besides its calls."""
    slower: float = 20.0
    """Calls may take so many times what the timed one took: of a machine that others use, too."""
    gflops: float = 0.2
    """Speed below which a call of which nothing is known is taken for a hang; oracles in numpy
    are a hundred times as fast."""
    unpacked_per_s: float = 1e7
    """Bytes of weights below which an oracle is taken for a hang; numpy unpacks 60 times as many.
    """
    most_s: float = 7200.0
    """For any request, whatever arithmetic a bundle says that it is."""


class _Lost(DeviceError):
    """The process did not survive a request, or had to be killed."""


class Examiner:
    """Bundles for one device, in a process that is replaced once when it is lost.

    A bundle is read when it is first named, and is not to change afterwards. Every method but
    `close` raises RecordError for a damaged bundle, InputError for a device, peer or model that
    cannot be used, and DeviceError if the device refuses the work, or if two processes in a row
    crashed or did not answer in time.
    """

    def __init__(
        self,
        device: str,
        *,
        patience: Patience | None = None,
        make_child: Callable[..., Child] = Child,
        entry: str = _WITH_ORACLES,
    ) -> None:
        """Starts nothing yet. `entry` is what its process runs."""
        self._device = device
        self._patience = patience or Patience()
        self._child = make_child(device, entry=entry, replies=ANSWERS)
        self._plans: dict[Path, NetworkPlan] = {}
        self._calls: dict[tuple[object, ...], float] = {}
        """Seconds of a call of each entrant, by its identity and the sizes; may be of a process
        before."""

    @property
    def spec(self) -> DeviceSpec:
        """The device. Raises: InputError, DeviceError."""
        return self._child.spec

    @property
    def where(self) -> str:
        """Empty: on this machine."""
        return ""

    def verify(self, bundle: Path, comparison: Comparison) -> Verdict:
        """The bundle beside the oracle, as `verify.verify` compares them; by parts if need be."""
        from retune.bundle.verify.sequences import BEFORE, CALLS  # it reads ONNX

        request = Verify(bundle=bundle, comparison=comparison)
        self._warn_if_foreign(bundle)

        def ask() -> Verdict:
            allowed, call_s = self._patience, self._open(bundle, bundle, comparison.sizes)
            unknown_s = self._unknown_s(bundle) + self._unpacking_s(bundle)
            each = 2 * (allowed.slower * call_s + unknown_s)
            plan = self._plan(bundle)
            count = sampling(plan, comparison.samples, comparison.given).count
            if plan.states:
                count += CALLS + BEFORE
            deadline = allowed.open_s + allowed.answer_s + count * each
            return self._ask(f"{bundle}: comparison with the oracle", request, deadline, Verdict)

        return self._twice(ask)

    def compare(
        self,
        entrants: Mapping[str, Entrant],
        *,
        baseline: str | None = None,
        options: BenchOptions | None = None,
        calibration: str = "",
        sizes: SizeValues | None = None,
    ) -> Benchmark:
        """Whole calls in turns, as `bench.compare_times` takes them, on random inputs of `sizes`.

        They are the same for all bundles of a network; peers run on those of the first bundle. With
        a name for it the calibration kernel takes part. Raises: InputError also if there is no
        bundle, or the baseline is none of the names.
        """
        options = options or BenchOptions()
        bundles = {name: entry for name, entry in entrants.items() if isinstance(entry, Path)}
        if not bundles:
            raise InputError("benchmark: expected a bundle among the entrants; got none")
        for bundle in bundles.values():
            self._warn_if_foreign(bundle)
        first = next(iter(bundles.values()))
        request = Compare(
            bundles=bundles,
            rivals={name: entry for name, entry in entrants.items() if isinstance(entry, Rival)},
            baseline=baseline,
            options=options,
            calibration=calibration,
            sizes=sizes or {},
        )

        def ask() -> Benchmark:
            calls = [self._open(entry, first, sizes) for entry in entrants.values()]
            calls += [_CALIBRATION_S] if calibration else []
            deadline = self._patience.answer_s + longest_s(calls, options, self._patience.slower)
            names = ", ".join(_identity(entry)[0] for entry in entrants.values())
            return self._ask(f"{names}: timing in turns", request, deadline, Benchmark)

        return self._twice(ask)

    def profile(
        self, bundle: Path, *, repeat: int = 10, sizes: SizeValues | None = None
    ) -> tuple[LaunchProfile, ...]:
        """The time of each step at these sizes, as `Module.profile` takes it, and its share of the
        roofline; the largest ones if none are given."""
        self._warn_if_foreign(bundle)

        def ask() -> tuple[LaunchProfile, ...]:
            allowed, call_s = self._patience, self._open(bundle, bundle, sizes)
            ceilings_s = allowed.kernel_s * (1 + len(self._plan(bundle).launches))
            calls_s = _PROFILE_CALLS * (1 + repeat) * allowed.slower * call_s
            deadline = allowed.answer_s + ceilings_s + calls_s
            request = Profile(bundle=bundle, repeat=repeat, sizes=sizes or {})
            return self._ask(f"{bundle}: timing of its steps", request, deadline, Profiled).steps

        return self._twice(ask)

    def run(self, bundle: Path, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the bundle makes of its inputs."""
        self._warn_if_foreign(bundle)

        def ask() -> Outputs:
            allowed, call_s = self._patience, self._open(bundle, bundle)
            deadline = allowed.answer_s + allowed.slower * call_s
            return self._ask(
                f"{bundle}: a run", Run(bundle=bundle, inputs=inputs), deadline, Outputs
            )

        return self._twice(ask).arrays

    def best_form(self, bundle: Path) -> Form:
        """The form whose whole calls take the least time, see `forms.best_form`.

        Where one call alone shows that no other form gains a worthwhile part, none is loaded: each
        holds the weights once more.
        """

        def ask() -> Form:
            allowed = self._patience
            listing = ListForms(bundle=bundle)
            listed = self._ask(f"{bundle}: reading", listing, allowed.open_s, Forms, computes=False)
            found = listed.forms
            if len(found) == 1:
                return found[0]
            call_s = self._open(bundle, bundle)
            if found[0] == "persistent" and call_s > allowed.slower * forms.LONGEST_S:
                return found[0]
            timing_s = longest_s([call_s] * len(found), forms.OPTIONS, allowed.slower)
            loading_s = len(found) * self._opening_s(bundle)
            deadline = loading_s + timing_s + _FORM_CALLS * allowed.slower * call_s
            request = FindForm(bundle=bundle)
            best = self._ask(f"{bundle}: timing of its forms", request, deadline, Forms)
            for held in [h for h in self._child.holds if isinstance(h, tuple) and bundle in h]:
                self._child.holds.discard(held)  # forms replaced it
            return best.forms[0]

        return self._twice(ask)

    def drop(self) -> bool:
        """The process holds no bundle and no peer; false if there is no process, or it is lost."""
        self._plans.clear()
        self._calls.clear()
        if self._child.pid is None:
            return False
        self._child.holds.clear()
        try:
            return isinstance(self._child.request(Drop(), self._patience.answer_s), Dropped)
        except ChildLostError:
            return False

    def close(self) -> None:
        """Ends the process."""
        self._child.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plan(self, bundle: Path) -> NetworkPlan:
        """The bundle's plan, without its weights."""
        if bundle not in self._plans:
            self._plans[bundle] = read_outline(bundle)
        return self._plans[bundle]

    def _warn_if_foreign(self, bundle: Path) -> None:
        warn_if_foreign(self._plan(bundle), self.spec)

    def _opening_s(self, bundle: Path) -> float:
        """How long loading the bundle and its first calls may take."""
        kernels = self._patience.kernel_s * len(self._plan(bundle).kernels)
        return self._patience.open_s + kernels + 3 * self._unknown_s(bundle)

    def _unknown_s(self, bundle: Path) -> float:
        """How long a call may take of which nothing but the arithmetic is known."""
        flops = sum(most(launch.flops) for launch in self._plan(bundle).launches)
        return 1e-9 * flops / self._patience.gflops

    def _unpacking_s(self, bundle: Path) -> float:
        """How long an oracle may unpack weights in a call."""
        words = sum(entry.bytes for entry in self._plan(bundle).buffers if entry.role == "weight")
        return most(words) / self._patience.unpacked_per_s

    def _open(self, entrant: Entrant, bundle: Path, sizes: SizeValues | None = None) -> float:
        """The present process has loaded the entrant; seconds of a call of it, of these sizes."""
        name, file = _identity(entrant)
        identity = name, file, tuple((sizes or {}).items())
        if identity not in self._child.holds:
            own = entrant if isinstance(entrant, Path) else bundle
            rival = None if isinstance(entrant, Path) else entrant
            request = Open(bundle=own, rival=rival, sizes=sizes or {})
            doing = f"{file}: loading" + ("" if entrant == file else f" in {name}")
            opened = self._ask(doing, request, self._opening_s(own), Opened)
            self._child.holds.add(identity)
            self._calls[identity] = opened.call_s
        return self._calls[identity]

    def _ask(
        self,
        doing: str,
        request: object,
        deadline_s: float,
        kind: type[T],
        *,
        computes: bool = True,
    ) -> T:
        """The process' reply. Raises: _Lost; what the request failed by."""
        deadline_s = min(deadline_s, self._patience.most_s)
        spec = self.spec  # waiting for the process to start needs no lease
        try:
            if computes:
                with lease(spec), base_leased(self._device):
                    reply = self._child.request(request, deadline_s)
            else:
                reply = self._child.request(request, deadline_s)
        except ChildLostError as lost:
            late = lost.status == "timeout"
            how = f"did not answer in {deadline_s:.3g} s" if late else f"crashed ({lost})"
            raise _Lost(f"{doing} on {self._device} {how}") from lost
        if isinstance(reply, Failed):
            if isinstance(reply.error, DeviceError):
                self._child.close()  # a failed launch may poison the whole context
            raise reply.error
        assert isinstance(reply, kind), reply
        return reply

    def _twice(self, ask: Callable[[], T]) -> T:
        """What `ask` returns; it is asked once more where the process was lost."""
        try:
            return ask()
        except _Lost as lost:
            _LOG.warning("%s; it is tried once more in a fresh process", lost)
        try:
            return ask()
        except _Lost as lost:
            raise DeviceError(f"{lost}, in a second, fresh process too") from lost


def _identity(entrant: Entrant) -> tuple[str, Path]:
    """What it is called, and the file that it is of."""
    if isinstance(entrant, Path):
        return str(entrant), entrant
    return entrant.peer, entrant.network.onnx
