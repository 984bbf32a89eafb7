"""Bundles are verified and timed on a board of a farm; the oracle runs here.

Read `FarmExaminer`, which is asked as `examiner.Examiner` is, and `open_examiner`.
"""

import logging
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from retune.bundle.format import pack_zip, read_bundle
from retune.bundle.plan import Form
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.bundle.verify.examination import Comparison, Entrant, Verdict
from retune.bundle.verify.examiner import Examiner
from retune.bundle.verify.reach import OutputReach
from retune.bundle.verify.remote_requests import (
    BUNDLE,
    BundleAnswer,
    BundleJob,
    SentBundle,
    input_arrays,
    outputs_in,
)
from retune.core.dims import SizeValues
from retune.core.errors import DeviceError, InputError
from retune.core.schema import to_json
from retune.core.target import DeviceSpec
from retune.device.opening import asking_of, spec_of
from retune.device.remote.names import farm_name, is_farm
from retune.device.remote.wire import MessageParts, RefusedError, digest_of, read_json

if TYPE_CHECKING:
    from retune.device.remote.runner import Answer

_LOG = logging.getLogger("retune.farm")


_IDLE: ContextVar[dict[str, Examiner] | None] = ContextVar("retune_idle", default=None)
"""By device, the examiner that the next one to open one gets; None outside of `sharing_processes`.
"""


@contextmanager
def sharing_processes() -> Generator[None]:
    """In the context, whoever opens an examiner gets the process of one that was left before.

    It holds nothing of that one's, and its start, of a second, is saved. Nothing is to be searched
    meanwhile: the device stays open.
    """
    idle: dict[str, Examiner] = {}
    token = _IDLE.set(idle)
    try:
        yield
    finally:
        _IDLE.reset(token)
        for examiner in idle.values():
            examiner.close()


@contextmanager
def open_examiner(device: str) -> Generator["Examiner | FarmExaminer"]:
    """Who examines bundles on the device of that name. Raises: InputError, as `spec_of`."""
    if is_farm(device):
        with FarmExaminer(device) as boards:
            yield boards
        return
    idle = _IDLE.get()
    left = idle.pop(device, None) if idle is not None else None
    examiner = left or Examiner(device)
    try:
        yield examiner
    except BaseException:
        examiner.close()
        raise
    if idle is not None and device not in idle and examiner.drop():
        idle[device] = examiner
    else:
        examiner.close()


class FarmExaminer:
    """Bundles for the boards of a key; each answer comes from whichever board is free.

    Methods raise as Examiner's do, and DeviceError if no board could do it.
    """

    def __init__(self, device: str) -> None:
        """`device` is a farm's. Raises: InputError for a key that no board has."""
        self._name = farm_name(device)
        self._spec = spec_of(device)
        self._asking = asking_of(device)
        self._sent: dict[Path, tuple[str, bytes]] = {}
        """Digest and zip of each bundle."""
        self._where = ""

    @property
    def spec(self) -> DeviceSpec:
        """The boards' device."""
        return self._spec

    @property
    def where(self) -> str:
        """The board that answered last; its clock, temperature and governor, if it shows them."""
        return self._where

    def verify(self, bundle: Path, comparison: Comparison) -> Verdict:
        """What the bundle computes on a board, beside what the oracle computes here.

        A network with host steps is compared by its outputs alone, and one with states by single
        calls, which the verdict says.
        """
        from retune.bundle.verify.examiner_child import Judged
        from retune.bundle.verify.oracles import oracle_of

        plan, network = read_bundle(bundle), comparison.network
        oracle, _ = oracle_of(plan, network, self._spec)
        reach = OutputReach(plan, lambda inputs: self.run(bundle, inputs))
        judged = Judged(plan=plan, network=network, spec=self._spec, oracle=oracle)
        verdict = judged.verdict(reach, comparison)
        if not plan.has_sessions:
            return verdict
        return verdict.without_calls("boards of a farm answer single calls")

    def run(self, bundle: Path, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """What the bundle makes of its inputs on a board."""
        job = BundleJob(deed="run", bundles=(self._of("bundle", bundle),))
        answer, _ = self._asked(job, [bundle], MessageParts(arrays=input_arrays(inputs)))
        return outputs_in(answer.parts.arrays)

    def compare(
        self,
        entrants: Mapping[str, Entrant],
        *,
        baseline: str | None = None,
        options: BenchOptions | None = None,
        calibration: str = "",
        sizes: SizeValues | None = None,
    ) -> Benchmark:
        """Whole calls in turns, all on one board. Raises: InputError for peers, too."""
        bundles = {name: entry for name, entry in entrants.items() if isinstance(entry, Path)}
        if len(bundles) < len(entrants) or not bundles:
            raise InputError(f"{self._name}: expected bundles alone, got {', '.join(entrants)}")
        job = BundleJob(
            deed="compare",
            bundles=tuple(self._of(name, bundle) for name, bundle in bundles.items()),
            baseline=baseline,
            options=options or BenchOptions(),
            calibration=calibration,
            sizes=dict(sizes or {}),
        )
        answer, found = self._asked(job, list(bundles.values()))
        names = {*bundles, *([calibration] if calibration else [])}
        if found.benchmark is None or {t.name for t in found.benchmark.timings} != names:
            raise _strange(answer)
        return found.benchmark

    def profile(
        self, bundle: Path, *, repeat: int = 10, sizes: SizeValues | None = None
    ) -> tuple[LaunchProfile, ...]:
        """The time of each step on a board, and its share of the roofline there."""
        job = BundleJob(
            deed="profile",
            bundles=(self._of("bundle", bundle),),
            repeat=repeat,
            sizes=dict(sizes or {}),
        )
        return self._asked(job, [bundle])[1].profile

    def best_form(self, bundle: Path) -> Form:
        """The form whose whole calls take the least time on a board."""
        answer, found = self._asked(
            BundleJob(deed="form", bundles=(self._of("bundle", bundle),)), [bundle]
        )
        if found.form is None:
            raise _strange(answer)
        return found.form

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _of(self, name: str, bundle: Path) -> SentBundle:
        if bundle not in self._sent:
            self._sent[bundle] = _zipped(bundle)
        return SentBundle(name=name, digest=self._sent[bundle][0])

    def _asked(
        self, job: BundleJob, bundles: list[Path], parts: MessageParts | None = None
    ) -> "tuple[Answer, BundleAnswer]":
        blobs = dict(self._sent[bundle] for bundle in bundles)
        answer = self._asking.answer(
            BUNDLE, to_json(job), parts or MessageParts(), tuple(blobs), lambda: blobs
        )
        try:
            found = read_json(BundleAnswer, answer.body)
        except RefusedError as error:
            raise _strange(answer) from error
        vitals = str(found.vitals)
        self._where = f"{answer.board} ({vitals})" if vitals else answer.board
        _LOG.debug("%s of %s on board %s", job.deed, bundles[0], self._where)
        return answer, found


def _zipped(bundle: Path) -> tuple[str, bytes]:
    """Digest and bytes of the bundle's zip."""
    if bundle.is_file():
        data = bundle.read_bytes()
        return digest_of(data), data
    with tempfile.TemporaryDirectory() as folder:
        data = pack_zip(bundle, Path(folder) / "bundle.zip").read_bytes()
    return digest_of(data), data


def _strange(answer: "Answer") -> DeviceError:
    return DeviceError(f"board {answer.board}: expected what came of a bundle, got something else")
