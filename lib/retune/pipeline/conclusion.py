"""The end of a run in sentences for people who have not read a page of the documentation.

Read `conclusion`: what the bundle's time is and what the device's ceilings allow, what the search
gained, whether searching on is worth its time, and which other options are expected to gain more.
"""

from collections.abc import Sequence

from retune.core.quantities import counted, time_text
from retune.core.results import KernelTime, Latency
from retune.device.opening import is_absent
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.slowness import busy_sentence
from retune.pipeline.summary import gain_text, micro_batches_text, task_results
from retune.pipeline.tuning import no_layouts
from retune.search.defaults import LEAST_GAIN

_EQUAL = 0.01
"""Ratios of times that are as near to 1 are called equal."""
_NEAR = 0.95
"""Part of the time from which on what the ceilings allow is not far."""
_CAUSES = 3
"""Kinds of steps that are named as the reason why the ceilings are far."""


def conclusion(request: TuneRequest, run: FinishedRun) -> tuple[str, ...]:
    """The sentences, each by itself."""
    found = (
        _speed(run),
        busy_sentence(run.bench.waited),
        _regret(run),
        ceilings(run.bench.profile),
        _layers(run),
        _batches(run),
        _outlook(request, run),
        _more(request, run),
    )
    return tuple(sentence for sentence in found if sentence)


def _speed(run: FinishedRun) -> str:
    """The bundle's time beside that of default schedules and of peers."""
    rows = {row.name: row for row in run.bench.rows}
    tuned = rows.pop("tuned", None)
    if tuned is None:
        return ""
    others = "".join(f"; {_beside(row, tuned)}" for row in rows.values())
    at = [f" at {each.sizes}" for each in run.bench.sizes if each.rows == run.bench.rows]
    return f"The bundle takes {time_text(tuned.median_us)} for one call{''.join(at[:1])}{others}."


def _beside(row: Latency, tuned: Latency) -> str:
    name = "default schedules" if row.name == "untuned" else row.name
    ratio = row.median_us / tuned.median_us
    if abs(ratio - 1.0) <= _EQUAL:
        return f"{name} take{'s' if row.name != 'untuned' else ''} as long"
    verb = "take" if row.name == "untuned" else "takes"
    return f"{name} {verb} {time_text(row.median_us)} ({ratio:.2f}x as long)"


def _batches(run: FinishedRun) -> str:
    """Which layers run for a part of the batch at a time; '' where all run for the whole one."""
    found = micro_batches_text(run.tasks)
    return f"{'; '.join(found)}." if found else ""


def _regret(run: FinishedRun) -> str:
    """What serving many sizes costs, at those that were tuned."""
    found = run.bench.regret
    if found is None:
        return ""
    return (
        f"Over {counted(found.sizes, 'size')}, it takes {found.mean:.2f} times as long as bundles "
        f"for one size each, and at most {found.worst:.2f} times."
    )


def ceilings(profile: Sequence[KernelTime]) -> str:
    """What the device allows, and where the rest of the time is spent; '' where nobody knows."""
    total = sum(step.us for step in profile)
    if not total or any(s.simulated or (s.roofline is None and not s.host) for s in profile):
        return ""
    above: dict[str, float] = {}
    for step in profile:
        kind = "host steps" if step.host else step.label.rstrip("0123456789").rstrip("_")
        own = step.us * (1.0 - min(step.roofline or 0.0, 1.0))
        above[kind] = above.get(kind, 0.0) + own
    rest = sum(above.values())
    allowed = f"{1 - rest / total:.2f}x"
    text = f"The device's ceilings, of arithmetic and of copies, allow {allowed} of that time"
    if rest <= (1.0 - _NEAR) * total:
        return f"{text}."
    causes = sorted(above, key=lambda kind: above[kind], reverse=True)[:_CAUSES]
    parts = [(kind, f"{above[kind] / total:.0%}") for kind in causes]
    most = [f"{kind} ({part})" for kind, part in parts if part != "0%"]
    return f"{text}; most of the rest is spent in {', '.join(most)}."


def _layers(run: FinishedRun) -> str:
    """For how many layers something faster than the default schedule was found."""
    tuned = [each for each in task_results(run) if each.entry.tunable]
    if not run.searched.trials_done or not tuned:
        return ""
    faster = [each for each in tuned if (each.gained or 0.0) > 0.0]
    tried = sum(each.trials > 0 for each in tuned)
    part = "" if tried == len(tuned) else f"{tried} of "
    layers = f"{part}{counted(len(tuned), 'layer')}"
    of_all = f"{counted(run.searched.trials_done, 'candidate')} of {layers}"
    measured = f"{of_all} were measured in {run.searched.seconds_done:.0f} s."
    if not faster:
        return f"{measured} No layer got faster than with its default schedule."
    rest = len(tuned) - len(faster)
    others = f"; {counted(rest, 'layer')} {'is' if rest == 1 else 'are'} not" if rest else ""
    verb = "is" if len(faster) == 1 else "are"
    return f"{measured} {counted(len(faster), 'layer')} {verb} faster than by default{others}."


def _outlook(request: TuneRequest, run: FinishedRun) -> str:
    """Whether searching on is worth its time."""
    further = run.searched.further
    if request.trials == 0:
        known = run.tuned.from_records
        earlier = f"those of earlier records ({counted(known, 'layer')}) and " if known else ""
        absent = is_absent(request.device)
        advice = "measure on the device" if absent else "`--effort quick` measures for 20 s"
        return f"Nothing was measured: schedules are {earlier}default ones; {advice}."
    if further is None:
        return ""
    if run.searched.complete:
        return (
            f"The search is complete: as many trials again are expected to save less than "
            f"{LEAST_GAIN:.0%} of the time."
        )
    option = "--effort full" if request.effort == "quick" else _longer(request)
    return (
        f"The search is not complete: as many trials again are expected to save {further:.1%} of "
        f"the time; `{option}` goes on."
    )


def _longer(request: TuneRequest) -> str:
    """The options by which the same search goes on for twice as long."""
    effort = "--effort full " if request.effort == "full" else ""
    if request.minutes is None:
        return f"{effort}--trials {2 * (request.trials or 0)}"
    return f"{effort}--minutes {2 * request.minutes:g}"


def _more(request: TuneRequest, run: FinishedRun) -> str:
    """What is expected to gain more than searching on."""
    found = [lower] if (lower := gain_text(request, run)) else []
    if request.layout == "NHWC" and not no_layouts(request):
        found.append("--layout auto (measures other activation layouts; no estimate)")
    return f"What may gain more: {'; '.join(found)}." if found else ""
