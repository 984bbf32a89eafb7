"""Bundles on a board: run, timed in turns and profiled, in a process of their own.

What arrives is a zip of a bundle; it is read as any bundle is, with all its hashes, and lies in the
board's temporary folder for as long as it is among the latest. A bundle is a program.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from retune.bundle.format import read_bundle
from retune.bundle.verify.bench import BenchOptions
from retune.bundle.verify.examiner import BUNDLES_ALONE, Examiner
from retune.bundle.verify.remote_requests import (
    BundleAnswer,
    BundleJob,
    inputs_in,
    output_arrays,
)
from retune.core.errors import InputError
from retune.core.schema import to_json
from retune.device.measure.vitals import read_vitals
from retune.device.remote.wire import MessageParts, RefusedError, read_json

_MOST = 8
"""Bundles of one comparison, and those that lie on the disk."""
_MOST_OPTIONS = BenchOptions(
    budget_s=600.0,
    min_rounds=10_000,
    max_rounds=10_000,
    precision=1.0,
    settle_s=10.0,
    min_sample_s=10.0,
    warmup=1000,
    seed=(1 << 63) - 1,
)
"""What a job may ask for at most, each for itself."""
_LIMITED = tuple(field.name for field in fields(BenchOptions))
_MOST_REPEAT = 1000


class Bundles:
    """Carries out jobs of kind `bundle`."""

    def __init__(self, folder: Path, open_examiner: Callable[[], Examiner]) -> None:
        """Bundles are written to `folder`."""
        self._folder = folder
        self._open = open_examiner
        self._examiner: Examiner | None = None
        self._written: OrderedDict[str, Path] = OrderedDict()
        """By digest, the latest at the end."""

    def carry_out(
        self, body: str, parts: MessageParts, blob: Callable[[str], bytes]
    ) -> tuple[str, MessageParts]:
        """What came of the job. Raises: RefusedError, DeviceError."""
        job = read_json(BundleJob, body)
        _check(job)
        try:
            paths = {sent.name: self._path(sent.digest, blob) for sent in job.bundles}
            answer, made = self._answer(job, paths, parts)
        except InputError as error:
            raise RefusedError(str(error)) from error
        except ModuleNotFoundError as error:
            raise RefusedError(
                f"the bundle has steps on the host, which need {error.name}, and this board has "
                f"none; type there: pip install {error.name}"
            ) from error
        return to_json(answer), made

    def close(self) -> None:
        """Ends the process in which bundles run."""
        if self._examiner is not None:
            self._examiner.close()
            self._examiner = None

    def _answer(
        self, job: BundleJob, paths: dict[str, Path], parts: MessageParts
    ) -> tuple[BundleAnswer, MessageParts]:
        first, examiner = next(iter(paths.values())), self._opened()
        match job.deed:
            case "run":
                made = examiner.run(first, inputs_in(parts.arrays))
                return BundleAnswer(vitals=read_vitals()), MessageParts(arrays=output_arrays(made))
            case "compare":
                found = examiner.compare(
                    dict(paths),
                    baseline=job.baseline,
                    options=job.options,
                    calibration=job.calibration,
                    sizes=job.sizes,
                )
                return BundleAnswer(vitals=read_vitals(), benchmark=found), MessageParts()
            case "profile":
                rows = examiner.profile(first, repeat=job.repeat, sizes=job.sizes)
                return BundleAnswer(vitals=read_vitals(), profile=rows), MessageParts()
            case "form":
                form = examiner.best_form(first)
                return BundleAnswer(vitals=read_vitals(), form=form), MessageParts()

    def _opened(self) -> Examiner:
        if self._examiner is None:
            self._examiner = self._open()
        return self._examiner

    def _path(self, digest: str, blob: Callable[[str], bytes]) -> Path:
        """The bundle's zip, sound."""
        if digest not in self._written:
            path = self._folder / f"{digest}.zip"
            path.write_bytes(blob(digest))
            try:
                read_bundle(path)
            except BaseException:
                path.unlink()
                raise
            self._written[digest] = path
        self._written.move_to_end(digest)
        while len(self._written) > _MOST:
            self.close()  # it has the oldest one loaded
            self._written.popitem(last=False)[1].unlink(missing_ok=True)
        return self._written[digest]


def _check(job: BundleJob) -> None:
    """Raises: RefusedError if it asks for more than a board gives."""
    names = [sent.name for sent in job.bundles]
    if not names or len(names) > _MOST or len(set(names)) != len(names):
        raise RefusedError(f"expected 1 to {_MOST} bundles with names of their own, got {names}")
    for name in _LIMITED:
        found, most = getattr(job.options, name), getattr(_MOST_OPTIONS, name)
        if not 0 <= found <= most:
            raise RefusedError(f"{name}: expected 0 to {most}, got {found}")
    if not 1 <= job.repeat <= _MOST_REPEAT:
        raise RefusedError(f"repeat: expected 1 to {_MOST_REPEAT}, got {job.repeat}")


def open_handler(device: str, folder: Path) -> Bundles:
    """Who runs bundles on the board's device."""
    return Bundles(folder, lambda: Examiner(device, entry=BUNDLES_ALONE))
