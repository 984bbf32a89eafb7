"""Stage promote: of the bundle of a night and the published one, the better one is published.

Read `stage_promote` and `_decide`. The published bundle, the champion, is given up only for one
that is right and faster beyond doubt, measured beside it on the device of tonight.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from retune.bundle.format import program_key
from retune.bundle.runtime.module import BundleWarning
from retune.bundle.versions import (
    MODULE,
    Gain,
    Verdict,
    Version,
    current,
    promote,
    prune,
    restate,
    take_over,
    version_folder,
)
from retune.core.errors import DeviceError, RetuneError
from retune.core.keys import content_key
from retune.pipeline.delivery import latency_of, stage_verify
from retune.pipeline.manifest import (
    CompileManifest,
    Latency,
    PublishedManifest,
    TuneRequest,
    VerifyManifest,
)
from retune.pipeline.publishing import conditions_today, keep_version
from retune.pipeline.results import FinishedRun
from retune.pipeline.validation import compare_bundles


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """What becomes of a challenger."""

    wins: bool
    why: str
    verdict: Verdict | None = None
    """None: it is not kept."""
    gain: Gain | None = None
    champion: Latency | None = None
    challenger: Latency | None = None


def stage_promote(request: TuneRequest, run: FinishedRun) -> PublishedManifest:
    """Holds after the call: what is published is right, and the faster of champion and challenger.

    The run's bundle is kept as a version if it is right and another program than the champion. It
    takes the champion's place in one step. Not cached: the folder is the user's, and times are
    tonight's. Raises: DeviceError if the device fails both bundles.
    """
    out = Path(request.out)
    take_over(out)
    champion = current(out)
    decision = _decide(request, run, champion)
    number, promoted, why = champion and champion.number, False, decision.why
    if decision.verdict is not None:
        version = keep_version(request, run, decision.verdict, why, decision.gain)
        if decision.wins:
            promoted = promote(out, version.number, over=number)
            why = why if promoted else f"{why}; but another version was published meanwhile"
        number = version.number
        prune(out, request.keep)
    elif not run.verified.passed:
        number = None
    published = current(out)
    return PublishedManifest(
        module=str(request.module),
        report=str(request.report),
        promoted=promoted,
        why=why,
        number=number,
        current=published and published.number,
        champion=decision.champion,
        challenger=decision.challenger,
        ratio=(gain.ratio, gain.low, gain.high) if (gain := decision.gain) else None,
    )


def _decide(request: TuneRequest, run: FinishedRun, champion: Version | None) -> _Decision:
    """Whether the run's bundle takes the champion's place, and why."""
    stays = f"version {champion.number} stays" if champion else "nothing is published"
    verified = run.verified
    if not verified.passed:
        return _Decision(
            wins=False,
            why=f"{verified.max_rel:.1e} of the range from {verified.oracle}'s outputs, "
            f"{verified.tolerance:.0e} is allowed: {stays}",
        )
    if champion is None:
        why = "right, and there is none to compare it with"
        return _Decision(wins=True, why=why, verdict="first")
    if champion.model_key and champion.model_key != run.network.model_key:
        why = f"right, and version {champion.number} is of another model"
        return _Decision(wins=True, why=why, verdict="first")
    if program_key(run.tuned.file(run.tuned.module)) == champion.program:
        _trust(request, champion, verified)
        return _Decision(wins=False, why=f"version {champion.number} is the same program: it stays")
    return _contest(request, run, champion)


def _contest(request: TuneRequest, run: FinishedRun, champion: Version) -> _Decision:
    """Which of two right bundles is faster; a champion that is wrong tonight loses to any.

    One that was verified under other conditions than tonight's is verified anew, and so is one
    where the comparison fails: then one of the two does not run.
    """
    name, compiled = f"version {champion.number}", _as_compiled(request, run, champion)
    if champion.conditions != conditions_today(request):
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
    both = {name: latency_of(times.timing(name)) for name in ("untuned", "tuned")}
    said = f"{gain.ratio:.3f}x the time of {name}, 95 % interval {gain.low:.3f} to {gain.high:.3f}"
    if gain.high < 1.0:
        found = _Decision(wins=True, why=f"{said}: faster", verdict="faster", gain=gain)
    else:
        why = f"{said}: not faster beyond the noise, {name} stays"
        found = _Decision(wins=False, why=why, verdict="not faster", gain=gain)
    return replace(found, champion=both["untuned"], challenger=both["tuned"])


def _fallen(request: TuneRequest, run: FinishedRun, name: str, fault: str) -> _Decision:
    """The champion loses; the challenger has run on the device after it. Raises: DeviceError."""
    compare_bundles(request, replace(run.tuned, variant="untuned"), run.tuned)
    return _Decision(wins=True, why=f"right, and {name} is not: {fault}", verdict="only right one")


def _as_compiled(request: TuneRequest, run: FinishedRun, champion: Version) -> CompileManifest:
    """The champion as if tonight's run had compiled it, which verifying and timing it takes.

    Its key says where it runs: what it was verified to under other conditions is not believed.
    """
    return replace(
        run.tuned,
        variant="untuned",
        key=content_key(champion.program, conditions_today(request)),
        folder=str(version_folder(Path(request.out), champion.number)),
        module=MODULE,
        outputs=(),
    )


def _verified(
    request: TuneRequest, run: FinishedRun, champion: CompileManifest
) -> VerifyManifest | str:
    """How far the champion is from the oracle tonight; why it is no champion, if it is none.

    One that the device fails is tried twice: it may have been the device's fault.
    """
    fault = ""
    for _ in range(2):
        try:
            with _any_driver():
                found = stage_verify(request, run.network, champion)
        except DeviceError as error:
            fault = f"it does not run ({error})"
            continue
        except RetuneError as error:
            return f"it cannot be loaded ({error})"
        if found.passed:
            return found
        return (
            f"it is {found.max_rel:.1e} of the range from {found.oracle}'s outputs, "
            f"{found.tolerance:.0e} is allowed"
        )
    return fault


@contextmanager
def _any_driver() -> Generator[None, None, None]:
    """No warning of a champion that was compiled for another driver: that is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BundleWarning)
        yield


def _trust(request: TuneRequest, champion: Version, verified: VerifyManifest) -> None:
    """The champion counts as verified under tonight's conditions."""
    today = conditions_today(request)
    if champion.conditions != today:
        known = replace(champion, conditions=today, deviation=verified.max_rel)
        restate(Path(request.out), known)
