"""Messages between an examiner of bundles and its process: frozen requests and replies.

Plain data: boards, which have no oracle, know it as well.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from retune.bundle.plan import Form
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.bundle.verify.compare import Verification
from retune.core.dims import SizeValues
from retune.core.errors import DeviceError, RetuneError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """The network that a bundle was made of, as oracles and peers read it."""

    onnx: Path
    shapes: Mapping[str, tuple[int, ...]]
    """Of every input."""
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """Of inputs whose elements are stated: what these are."""
    recipe: str = ""
    """JSON of the recipe (`graph.quantize`) that makes the integers that the bundle computes."""
    integers: bool = True
    """Whether a bundle that computes with integers is compared with numpy's; else with what other
    runtimes make of the file."""

    def of(self, inputs: Mapping[str, np.ndarray]) -> "Original":
        """The same at the sizes of these inputs."""
        shapes = {name: inputs[name].shape for name in self.shapes}
        stated = {name: tuple(inputs[name].reshape(-1).tolist()) for name in self.values}
        return replace(self, shapes=shapes, values=stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A peer that runs the network beside bundles of it."""

    peer: str
    """A name in `peers.PEERS`."""
    network: Original


Entrant = Path | Rival
"""What takes part in a comparison: a bundle (folder or zip), or a peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Load a bundle, or a peer beside it, and call it twice on random inputs of the bundle.

    The second call is timed.
    """

    bundle: Path
    rival: Rival | None = None
    """The peer; without one, the bundle is called."""
    sizes: SizeValues = field(default_factory=dict[str, int])
    """Those of the inputs; without any, they are the largest ones that the bundle is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A whole call takes so long here."""

    call_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a bundle is compared with: the network's oracle, on these samples."""

    network: Original
    samples: int | None = None
    """So many of those that are given or that the bundle has, or so many random ones. None: all
    that there are, or a few random ones."""
    given: Mapping[str, np.ndarray] = field(default_factory=dict[str, np.ndarray])
    """Samples along a first axis, instead of the bundle's own."""
    seed: int = 0
    tolerance: float | None = None
    """None: as much as `compare.tolerance_of` the bundle says."""
    sizes: SizeValues = field(default_factory=dict[str, int])
    """As of `Open`; random samples are of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify:
    """Compare the bundle with the oracle; the reply is a Verdict."""

    bundle: Path
    comparison: Comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a bundle is from an oracle."""

    oracle: str
    """Name of the oracle."""
    version: str
    """Of the oracle."""
    found: Verification
    note: str = ""
    """What the comparison leaves open, see `peers.Peer`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """All that the comparison leaves open, as sentences."""
        return (*([self.note] if self.note else []), *self.found.notes)

    def without_calls(self, reason: str) -> "Verdict":
        """The same, and the note that calls of a session were not compared, for that reason."""
        open_left = f"calls of a session, one after the other, were not compared: {reason}"
        return replace(self, note="; ".join(filter(None, (self.note, open_left))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """Time bundles and peers in turns; the reply is a Benchmark.

    Peers run on inputs of the first bundle.
    """

    bundles: Mapping[str, Path]
    rivals: Mapping[str, Rival]
    baseline: str | None
    options: BenchOptions
    calibration: str = ""
    """Name under which the calibration kernel is timed with them; empty: it is not."""
    sizes: SizeValues = field(default_factory=dict[str, int])
    """As of `Open`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Time each step, beside the device's ceilings; the reply is a Profiled."""

    bundle: Path
    repeat: int
    sizes: SizeValues = field(default_factory=dict[str, int])
    """Empty: the largest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListForms:
    """The reply is Forms: those that the bundle may run in; nothing of it is run."""

    bundle: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FindForm:
    """Time whole calls in each form; the reply is Forms with the best one."""

    bundle: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a bundle; the reply is Outputs."""

    bundle: Path
    inputs: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Hold no bundle and no peer any more; the reply is Dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """The process is as it was when its device had been opened."""


REQUESTS: tuple[type, ...] = (Open, Run, Compare, Profile, ListForms, FindForm, Drop)
"""What the process is asked on any board; with an oracle, also Verify."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a bundle makes of its inputs, by name."""

    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """The time of each step."""

    steps: tuple[LaunchProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """Forms of a bundle, the usual or the best one first."""

    forms: tuple[Form, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The request cannot be carried out, for this reason; the process is in order."""

    kind: str
    """Name of the error's class."""
    message: str
    number: int | None = None
    """Of an error of the system."""

    @staticmethod
    def of(error: RetuneError | OSError) -> "Failed":
        """The reply for that error."""
        number = error.errno if isinstance(error, OSError) else None
        return Failed(kind=type(error).__name__, message=str(error), number=number)

    @property
    def error(self) -> RetuneError | OSError:
        """The error, to be raised again; a DeviceError where its class is not known here."""
        if self.kind in _kinds(OSError):
            error = OSError(self.message)
            error.errno = self.number
            return error
        return _kinds(RetuneError).get(self.kind, DeviceError)(self.message)


def _kinds(base: type[T]) -> dict[str, type[T]]:
    """The class and all below it, by name."""
    found = {base.__name__: base}
    for kind in base.__subclasses__():
        found |= _kinds(kind)
    return found


ANSWERS: tuple[type, ...] = (Opened, Verdict, Benchmark, Profiled, Forms, Outputs, Failed, Dropped)
"""What a process in which bundles run answers."""
