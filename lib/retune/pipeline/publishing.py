"""Stages report and promote: bundle and report become a version, perhaps the published one.

Read `stage_report`, then `stage_promote` and `_decide`. The published bundle, the champion, is
given up only for one that is right and faster beyond doubt, compared with it on the device of
tonight.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from retune.bundle.format import program_key, read_bundle, restate_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import BundleWarning
from retune.bundle.versions import (
    LOCK,
    MODULE,
    REPORT,
    Gain,
    Verdict,
    Version,
    add_version,
    current,
    promote,
    prune,
    restate,
    take_over,
    version_folder,
    versions,
)
from retune.core.errors import DeviceError, RecordError, RetuneError
from retune.core.keys import content_key
from retune.core.results import Latency
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.opening import spec_of
from retune.pipeline.delivery import latency_of
from retune.pipeline.lock import lock_of, write_lock
from retune.pipeline.manifest import CompileManifest, PublishedManifest, VerifyManifest
from retune.pipeline.report_data import report_data
from retune.pipeline.report_details import layer_details
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.summary import deviation_text
from retune.pipeline.validation import compare_bundles, verified
from retune.report.data import ReportData
from retune.report.stored import read_report


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The decision on a challenger."""

    why: str
    verdict: Verdict | None = None
    """None: it is not kept."""
    gain: Gain | None = None
    champion: Latency | None = None
    challenger: Latency | None = None

    @property
    def wins(self) -> bool:
        """Whether it replaces the champion."""
        return self.verdict not in (None, "not faster")


def stage_report(request: TuneRequest, run: FinishedRun) -> PublishedManifest:
    """Holds after the call: `out/module` is the tuned bundle and `out/report.html` the report.

    Both are published in one step, as a version beside those before it; the bundle of a run that
    a user asks for is not compared with theirs. Not cached: the folder is the user's.
    """
    why = "as asked for, without a comparison with what was published before"
    return _publish(request, run, _Decision(why=why, verdict="as asked for"), None)


def stage_promote(request: TuneRequest, run: FinishedRun) -> PublishedManifest:
    """Holds after the call: what is published is right, and the faster of champion and challenger.

    The run's bundle is kept as a version if it is right and another program than the champion. It
    replaces the champion in one step. Not cached: the folder is the user's, and times are
    tonight's. Raises: DeviceError if the device fails both bundles.
    """
    take_over(Path(request.out))
    champion = current(Path(request.out))
    return _publish(request, run, _decide(request, run, champion), champion)


def _publish(
    request: TuneRequest, run: FinishedRun, decision: _Decision, champion: Version | None
) -> PublishedManifest:
    """The decision is carried out; not if another version than the champion is published now."""
    out, why, promoted = Path(request.out), decision.why, False
    number = champion.number if champion and run.verified.passed else None
    if decision.verdict is not None:
        version = _keep_version(request, run, decision.verdict, why, decision.gain)
        number = version.number
        if decision.wins:
            over = champion.number if champion else None
            promoted = promote(out, number, over=over)
            why = why if promoted else f"{why}; but another version was published meanwhile"
        prune(out, request.keep)
    published = current(out)
    return PublishedManifest(
        module=str(request.module),
        report=str(request.report),
        promoted=promoted,
        why=why,
        number=number,
        current=published.number if published else None,
        champion=decision.champion,
        challenger=decision.challenger,
        ratio=(gain.ratio, gain.low, gain.high) if (gain := decision.gain) else None,
    )


def _decide(request: TuneRequest, run: FinishedRun, champion: Version | None) -> _Decision:
    """Whether the run's bundle replaces the champion, and why."""
    stays = f"version {champion.number} stays" if champion else "nothing is published"
    if not run.verified.passed:
        return _Decision(why=f"{deviation_text(run.verified)}: {stays}")
    if champion is None:
        why = "correct; no version before it to compare with"
        return _Decision(why=why, verdict="first")
    if champion.model_key and champion.model_key != run.network.model_key:
        why = f"correct; version {champion.number} is of another model"
        return _Decision(why=why, verdict="first")
    if program_key(run.tuned.file(run.tuned.module)) == champion.program:
        _trust(request, champion, run.verified)
        return _Decision(why=f"version {champion.number} is the same program: it stays")
    return _compare(request, run, champion)


def _compare(request: TuneRequest, run: FinishedRun, champion: Version) -> _Decision:
    """Compare two right bundles by speed; a champion that is wrong tonight loses to any.

    One that was verified under other conditions than tonight's is verified anew, and so is one
    where the comparison fails: then one of the two does not run.
    """
    name, compiled = f"version {champion.number}", _as_compiled(request, run, champion)
    if champion.conditions != _conditions_today(request):
        found = _verified(request, run, compiled)
        if isinstance(found, str):
            fault = f"{found}; it was not verified on this device as it is today"
            return _fallen(request, run, name, fault)
        _trust(request, champion, found)
    try:
        with _any_driver():
            times = compare_bundles(request, compiled, run.tuned)
    except RetuneError:
        found = _verified(request, run, compiled)
        if isinstance(found, str):
            return _fallen(request, run, name, found)
        raise
    ratio = times.ratio("tuned")
    gain = Gain(over=champion.number, ratio=1 / ratio.ratio, low=1 / ratio.high, high=1 / ratio.low)
    before, after = (latency_of(times.timing(name)) for name in ("untuned", "tuned"))
    said = f"{gain.ratio:.3f}x the time of {name}, 95 % interval {gain.low:.3f} to {gain.high:.3f}"
    faster = gain.high < 1.0
    why = f"{said}: faster" if faster else f"{said}: not faster beyond the noise, {name} stays"
    return _Decision(
        why=why,
        verdict="faster" if faster else "not faster",
        gain=gain,
        champion=before,
        challenger=after,
    )


def _fallen(request: TuneRequest, run: FinishedRun, name: str, fault: str) -> _Decision:
    """The champion loses; the challenger has run on the device after it. Raises: DeviceError."""
    compare_bundles(request, replace(run.tuned, variant="untuned"), run.tuned)
    return _Decision(why=f"right, and {name} is not: {fault}", verdict="only right one")


def _as_compiled(request: TuneRequest, run: FinishedRun, champion: Version) -> CompileManifest:
    """The champion as if tonight's run had compiled it, which verifying and timing it takes.

    Its key says where it runs: what it was verified to under other conditions is not believed.
    """
    return replace(
        run.tuned,
        variant="untuned",
        key=content_key(champion.program, _conditions_today(request)),
        folder=str(version_folder(Path(request.out), champion.number)),
        module=MODULE,
        outputs=(),
    )


def _verified(
    request: TuneRequest, run: FinishedRun, champion: CompileManifest
) -> VerifyManifest | str:
    """The champion's deviation from the oracle tonight, or why it cannot stay the champion."""
    try:
        with _any_driver():
            found = verified(request, run.network, lambda: champion)
    except RetuneError as error:
        return f"it cannot be loaded ({error})"
    if isinstance(found, DeviceError):
        return f"it does not run ({found})"
    return found if found.passed else f"it is {deviation_text(found)}"


@contextmanager
def _any_driver() -> Generator[None, None, None]:
    """No warning of a champion that was compiled for another driver: that is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BundleWarning)
        yield


def _trust(request: TuneRequest, champion: Version, verified: VerifyManifest) -> None:
    """The champion counts as verified under tonight's conditions."""
    today = _conditions_today(request)
    if champion.conditions != today:
        known = replace(champion, conditions=today, deviation=verified.max_rel)
        restate(Path(request.out), known)


def _keep_version(
    request: TuneRequest,
    run: FinishedRun,
    verdict: Verdict,
    why: str,
    gain: Gain | None = None,
) -> Version:
    """The run's bundle is a version of the user's folder, and not published yet.

    A program that is kept already is not kept twice: its version gets this report and verdict.
    """
    out, source = Path(request.out), run.tuned.file(run.tuned.module)
    known = Version(
        model_key=run.network.model_key,
        target=run.tuned.target,
        program=program_key(source),
        conditions=_conditions_today(request),
        run=run.searched.run_id,
        deviation=run.verified.max_rel,
        gain=gain,
        verdict=verdict,
        notes=why,
        complete=run.searched.complete,
    )
    report = _report(request, run, why)
    take_over(out)
    same = [v for v in versions(out) if v.program == known.program and _is_sound(out, v)]
    if same:
        known = replace(known, number=same[-1].number, created=same[-1].created)
        restate(out, known, report)
        return known

    def named(plan: NetworkPlan) -> NetworkPlan:
        return replace(plan, name=request.name, notes={**plan.notes, "model": request.model})

    def make(folder: Path) -> Version:
        restate_bundle(source, folder / MODULE, named)
        (folder / REPORT).write_bytes(report)
        write_lock(lock_of(request, run, folder / MODULE), folder / LOCK)
        return known

    return add_version(out, make)


def _conditions_today(request: TuneRequest) -> str:
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
    data = replace(data, details=layer_details(request, run))
    return render(data, _published_report(Path(request.out))).encode()


def _published_report(out: Path) -> ReportData | None:
    """The published report; None where there is none, or an earlier retune wrote it."""
    try:
        return read_report(out / REPORT)
    except RetuneError:
        return None
