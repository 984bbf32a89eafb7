"""Is a bundle slower than its peer, or mostly on the host? One sentence, with the first cause.

Read `slow_sentence`; `busy_sentence` says whether the times are to be trusted.
"""

from collections.abc import Sequence

from retune.core.results import KernelTime
from retune.device.measure.contention import NOTICEABLE
from retune.pipeline.manifest import BenchManifest
from retune.targets.vta.step import TITLE

NOISE = 1.02
"""Times a peer's time from which a bundle counts as slower: medians vary by a percent or two."""
_MOSTLY = 0.5
"""Share of the time that host steps may take before it is said."""
_OWN = ("untuned", "tuned")


def slower_than(bench: BenchManifest, peer: str) -> float | None:
    """The peer's time over the bundle's where the bundle is slower beyond noise; else None."""
    ours, theirs = bench.median_us("tuned"), bench.median_us(peer)
    if ours is None or theirs is None or ours <= NOISE * theirs:
        return None
    return theirs / ours


def slow_sentence(bench: BenchManifest) -> str:
    """What is slow of a bundle, and the step that takes the largest part of its time; '' for a
    bundle that is neither slower than a peer nor mostly on the host."""
    names = [row.name for row in bench.rows if row.name not in _OWN]
    ratios = {name: ratio for name in names if (ratio := slower_than(bench, name)) is not None}
    peers = " and ".join(f"{name} ({ratio:.2g}x)" for name, ratio in ratios.items())
    total = sum(step.us for step in bench.profile)
    on_host = sum(step.us for step in bench.profile if _is_on_host(step))
    if not peers and (not total or on_host <= _MOSTLY * total):
        return ""
    start = f"slower than {peers}" if peers else f"{on_host / total:.0%} of the time is on the host"
    cause = _cause(bench.profile)
    return f"{start}: {cause}" if cause else start


def busy_sentence(waited: float) -> str:
    """What it means that threads waited for cores for this part of what was measured; '' where it
    is too little to matter."""
    if waited <= NOTICEABLE:
        return ""
    return (
        f"Other programs used the processor: threads waited for cores for {waited:.0%} of the time "
        "that was measured, so times are too long, and ratios less certain."
    )


def required_speed(bench: BenchManifest, peer: str | None) -> str:
    """Why the bundle is not as fast as the peer that it has to be as fast as; '' if it is."""
    if peer is None:
        return ""
    if bench.median_us(peer) is None or bench.median_us("tuned") is None:
        return f"expected times of the bundle and of {peer} to compare, got none for both"
    if slower_than(bench, peer) is None:
        return ""
    return f"expected a bundle that is as fast as {peer}, got one that is {slow_sentence(bench)}"


def _cause(profile: Sequence[KernelTime]) -> str:
    """The step or the group of launches that takes the largest part of the time."""
    groups: dict[str, list[KernelTime]] = {}
    for step in profile:
        groups.setdefault(step.kernel if _is_on_host(step) else step.label, []).append(step)
    total = sum(step.us for step in profile)
    if not total:
        return ""
    name, steps = max(groups.items(), key=lambda group: sum(step.us for step in group[1]))
    spent = sum(step.us for step in steps)
    part = f"{spent / total:.0%} of the time is spent in"
    if _is_on_host(steps[0]):
        return f"{part} host step {name}"
    if any(step.roofline is None for step in steps):
        return f"{part} task {name}"
    reached = sum((step.roofline or 0.0) * step.us for step in steps) / spent
    return f"{part} task {name}, which reached {min(reached, 1.0):.0%} of the peak"


def _is_on_host(step: KernelTime) -> bool:
    return step.host and step.kernel != TITLE
