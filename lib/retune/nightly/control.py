"""Absolute times of a night: a published bundle beside two controls that nobody tunes.

Read `stage_champion`. In every night each network's champion, the bundle that is published when the
night comes to it, is timed in turns with a control network and the calibration kernel, whatever the
search finds later and whether it fails. The control network is compiled once for a device, with
default schedules, and kept below the work folder: as long as it is the same program, only the
machine and its driver can change its time. What changed instead says `retune.nightly.verdicts`.
"""

import logging
import subprocess
import warnings
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from retune import __version__
from retune.bundle.format import program_key, read_bundle, write_bundle
from retune.bundle.runtime.module import BundleWarning
from retune.bundle.verify.bench import Benchmark, BenchOptions, Timing, median_interval
from retune.bundle.verify.farm_examiner import open_examiner
from retune.bundle.versions import MODULE, Version, current, take_over, version_folder
from retune.core.errors import RecordError, RetuneError
from retune.core.keys import content_key
from retune.core.locking import exclusive
from retune.core.names import slug
from retune.core.quantities import time_text
from retune.core.target import DeviceSpec
from retune.device.opening import is_absent, spec_of
from retune.pipeline.delivery import stage_compile
from retune.pipeline.manifest import Selection
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.request import TuneRequest
from retune.records.nights import NightRow, read_nights, write_nights

CONTROL = "zoo:squeezenet_v1.1"
"""Convolutions in 5 MB: they fit every board, and take as long as networks do, not as launches."""

_CHAMPION, _CONTROL, _KERNEL = "champion", "control", "kernel"
_TIMING = BenchOptions(budget_s=6.0, precision=0.004)

_NO_CHAMPION = "no bundle was published before"
_GIT_S = 20.0

_LOG = logging.getLogger("retune.nightly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The control network of a device."""

    bundle: Path
    program: str
    """Its program key."""


def stage_champion(request: TuneRequest, row: NightRow) -> NightRow:
    """Tonight's row with the times of the champion of the request's folder and of the controls.

    It is in the table of nights of the request's records when the call returns. What was timed in
    this night before is not timed again. Without a champion the controls alone are timed; where
    nothing can be, `problem` says why. `row` says which night, network and device it is.
    """
    for known in read_nights(request.records, row.fleet, row.night):
        if known.key == row.key and known.time_us is not None:
            return known
    found = _timed(request, row)
    level = logging.INFO if found.time_us or found.problem == _NO_CHAMPION else logging.WARNING
    _LOG.log(level, "%s on %s, absolute time: %s", *row.key, found.problem or _text(found))
    write_nights(request.records, [found])
    return found


def control_of(request: TuneRequest, device: str) -> Control:
    """The control network of the request's device, which the configuration calls `device`.

    It is compiled where there is none, or it is damaged. Raises: as the stages that compile it.
    """
    spec = spec_of(request.device)
    own = f"{slug(device)}-{content_key(spec.model, spec.device_class)[:8]}"
    folder = Path(request.work).resolve() / "controls" / own / MODULE
    with exclusive(folder.with_name(".lock"), f"the control network of {device} is being compiled"):
        if not _is_sound(folder):
            write_bundle(read_bundle(_compiled(request, spec)), folder)
    return Control(bundle=folder, program=program_key(folder))


def _compiled(request: TuneRequest, spec: DeviceSpec) -> Path:
    """The bundle of its default schedules, for the request's device."""
    own = TuneRequest(
        CONTROL,
        request.out,
        records=request.records,
        work=request.work,
        device=request.device,
        trials=0,
    )
    network = stage_import(own)
    tasks = stage_extract(own, network)
    selection = Selection(target=spec.fingerprint)
    made = stage_compile(own, network, tasks, selection, "untuned")
    return made.file(made.module)


def _timed(request: TuneRequest, row: NightRow) -> NightRow:
    row = replace(row, measured=datetime.now(UTC), retune=__version__, commit=_commit())
    try:
        spec = spec_of(request.device)
        row = replace(row, driver=spec.driver, opencl=spec.opencl, host=_processor(spec))
        if is_absent(request.device):
            return replace(row, problem=f"{request.device} is not here: nothing is timed on it")
        control = control_of(request, row.device)
        row = replace(row, control_program=control.program)
        champion = _champion(Path(request.out))
        if champion is None:
            found = _with_times(row, _compared(request.device, control, None))
            return replace(found, problem=_NO_CHAMPION)
    except RetuneError as error:
        return replace(row, problem=str(error))
    row = replace(row, version=champion.number, program=champion.program)
    bundle = version_folder(Path(request.out), champion.number) / MODULE
    try:
        return _with_times(row, _compared(request.device, control, bundle))
    except RetuneError as error:
        return replace(row, problem=f"version {champion.number}: {error}")


def _champion(out: Path) -> Version | None:
    """The version that is published there."""
    take_over(out)
    return current(out)


def _compared(device: str, control: Control, champion: Path | None) -> Benchmark:
    """Whole calls in turns, whatever driver the bundles were compiled for."""
    bundles = {_CONTROL: control.bundle} | ({_CHAMPION: champion} if champion else {})
    with warnings.catch_warnings(), open_examiner(device) as examiner:
        warnings.simplefilter("ignore", BundleWarning)
        return examiner.compare(
            bundles,
            baseline=_CHAMPION if champion else _CONTROL,
            options=_TIMING,
            calibration=_KERNEL,
        )


def _with_times(row: NightRow, found: Benchmark) -> NightRow:
    controls = _times("control", found.timing(_CONTROL)) | _times("kernel", found.timing(_KERNEL))
    row = replace(row, rounds=found.rounds, **controls)
    if _CHAMPION not in {timing.name for timing in found.timings}:
        return row
    own, ratio = _times("time", found.timing(_CHAMPION)), found.ratio(_CONTROL)
    return replace(row, ratio=ratio.ratio, ratio_low=ratio.low, ratio_high=ratio.high, **own)


def _text(row: NightRow) -> str:
    assert row.time_us is not None and row.control_us is not None
    return f"{time_text(row.time_us)}, control network {time_text(row.control_us)}"


def _times(name: str, timing: Timing) -> dict[str, Any]:
    """The columns of that name: median and bounds of its 95 % interval, in microseconds."""
    low, high = median_interval(timing.times_s)
    times = {"_us": timing.median_s, "_low_us": low, "_high_us": high}
    return {f"{name}{unit}": 1e6 * seconds for unit, seconds in times.items()}


def _processor(spec: DeviceSpec) -> str:
    """What computes: cores that a user takes away are a change of it."""
    return f"{spec.host}, of which {spec.affinity}" if spec.affinity else spec.host


@cache
def _commit() -> str:
    """Of the checkout that this program runs from, and whether it is changed; empty if it is
    installed, or there is no git."""
    folder = Path(__file__).parent
    tracked = ["ls-files", "--error-unmatch", Path(__file__).name]
    named = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        said = [
            subprocess.run(
                ["git", "-C", str(folder), *command],
                capture_output=True,
                check=True,
                timeout=_GIT_S,
            )
            for command in (tracked, named)
        ]
    except (OSError, subprocess.SubprocessError):
        return ""
    return said[-1].stdout.decode(errors="replace").strip()


def _is_sound(folder: Path) -> bool:
    if not folder.exists():
        return False
    try:
        read_bundle(folder)
    except RecordError as error:
        _LOG.warning("%s: the control network is damaged (%s) and compiled again", folder, error)
        return False
    return True
