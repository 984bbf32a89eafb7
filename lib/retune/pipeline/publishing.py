"""A run's bundle and report as a version of the user's folder.

Read `keep_version`. Whether the version becomes the published one, others decide.
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from retune.bundle.format import program_key, read_bundle, write_bundle
from retune.bundle.versions import (
    MODULE,
    REPORT,
    Gain,
    Verdict,
    Version,
    add_version,
    restate,
    take_over,
    version_folder,
    versions,
)
from retune.core.errors import RecordError
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.opening import spec_of
from retune.pipeline.report_data import report_data
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun


def keep_version(
    request: TuneRequest,
    run: FinishedRun,
    verdict: Verdict,
    why: str,
    gain: Gain | None = None,
) -> Version:
    """The version that the run's bundle is, which is not published by that.

    A program that is kept already is not kept twice: its version gets this report and verdict.
    """
    out, source = Path(request.out), run.tuned.file(run.tuned.module)
    known = Version(
        model_key=run.network.model_key,
        target=run.tuned.target,
        program=program_key(source),
        conditions=conditions_today(request),
        run=run.searched.run_id,
        deviation=run.verified.max_rel,
        gain=gain,
        verdict=verdict,
        notes=why,
    )
    report = _report(request, run, why)
    take_over(out)
    same = [v for v in versions(out) if v.program == known.program and _is_sound(out, v)]
    if same:
        known = replace(known, number=same[-1].number, created=same[-1].created)
        restate(out, known, report)
        return known

    def make(folder: Path) -> Version:
        write_bundle(read_bundle(source), folder / MODULE)
        (folder / REPORT).write_bytes(report)
        return known

    return add_version(out, make)


def conditions_today(request: TuneRequest) -> str:
    """Key of what a bundle's results and times depend on besides itself.

    Of the device, its driver and compiler, and of the machine's processor where that computes.
    """
    return measuring_conditions(spec_of(request.device), MeasureOptions()).key


def _is_sound(out: Path, version: Version) -> bool:
    try:
        read_bundle(version_folder(out, version.number) / MODULE)
    except RecordError:
        return False
    return True


def _report(request: TuneRequest, run: FinishedRun, why: str) -> bytes:
    from retune.report.html import render

    data = report_data(request, run, created=datetime.now(UTC), published=why)
    return render(data).encode()
