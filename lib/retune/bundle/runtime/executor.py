"""How a plan's launches get onto the device: its form, and the launches of that form.

Read `settle` and `make_executor`. One kernel of persistent workers (`codegen/network/persistent.py`
says why, `resident.py` there for groups of several items) or of one thread (`inline.py`) where the
device allows it; single steps of it can be run as well, so a profile shows the same code and the
same workers as a run. Other devices get the launches in order on one queue.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod

from retune.bundle.plan import Form, NetworkPlan, Segment
from retune.bundle.runtime.allocations import Allocations
from retune.bundle.runtime.hazards import Touched, together, waits
from retune.bundle.runtime.placement import INTERFACE, Placement, sizes_at, touched
from retune.codegen.network import inline
from retune.codegen.network.chains import MOST_LINKS, Chain, chained_launch
from retune.codegen.network.persistent import Callee, CalleeLaunch, most_rounds
from retune.codegen.network.resident import MOST_BYTES, table_bytes
from retune.codegen.source import three
from retune.core.dims import most
from retune.device.opencl.persistent import Persistent, can_persist
from retune.device.opencl.resident import Resident, way_of
from retune.device.opencl.runtime import Device, DeviceMemory, PreparedKernel

Part = Callable[[int, int, int], tuple[PreparedKernel, ...]]
"""(first, end, rounds) -> what runs the plan's launches from `first` to before `end`, that many
times over, in one launch where the device allows it."""


_SMALL_BYTES, _SMALL_FLOPS = 49_152, 32_768
"""Of a kernel that takes a core no longer than waiting for others to finish it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Launches with their arguments set, ready to be enqueued any number of times."""

    segments: Callable[[int, int], tuple[PreparedKernel, ...]]
    """(first, end) -> what runs the plan's launches from `first` to before `end`, each as often as
    the plan's loops say."""
    part: Part


def forms_here(plan: NetworkPlan, device: Device) -> tuple[Form, ...]:
    """The forms that this device and these kernels allow, at least one; the usual one first."""
    if way_of(device.spec) and can_stay(plan):
        return ("queued", "persistent")
    single = plan.single_item
    usual: Form = "persistent" if single and can_persist(device) else "queued"
    return (usual, "inline") if single and device.in_caller else (usual,)


def settle(plan: NetworkPlan, device: Device) -> tuple[Form, Device]:
    """The plan's form, or the usual one where it cannot be; and where buffers and launches belong.

    That is the device itself, or for one thread its part that works in the caller.
    """
    allowed = forms_here(plan, device)
    form: Form = plan.form if plan.form in allowed else allowed[0]
    return form, (form == "inline" and device.in_caller) or device


def make_executor(form: Form, plan: NetworkPlan, held: Allocations, device: Device) -> Executor:
    """The plan in the form and on the device that `settle` gave; the program is built.

    Raises: BuildFailed.
    """
    if not plan.launches:
        return Executor(segments=lambda first, end: (), part=lambda first, end, rounds: ())
    part = _FORMS[form](plan, held, device)

    prepared = cache(part)

    def segments(first: int, end: int) -> tuple[PreparedKernel, ...]:
        every = launchable_segments(plan.segments(first, end))
        return tuple(launch for s in every for launch in prepared(s.first, s.end, s.times))

    return Executor(segments=segments, part=part)


def launchable_segments(segments: Iterable[Segment]) -> list[Segment]:
    """The segments, each of no more times than one launch can run it."""
    found: list[Segment] = []
    for segment in segments:
        left, most = segment.times, most_rounds(segment.end - segment.first)
        while left > 0:
            found.append(replace(segment, times=min(left, most)))
            left -= most
    return found


def _resident(plan: NetworkPlan, held: Allocations, device: Device) -> Part:
    """The plan as one launch of persistent workers."""
    if not can_persist(device):
        return _staying(plan, held, device)
    bases, rows = held.bases, step_rows(plan, held.placement)
    texts, sizes = [plan.text, rows.text], sizes_at(plan, held.placement)
    kernel = Persistent(
        device, texts, plan.options, rows.callees, rows.steps, len(bases), sizes=sizes
    )

    def part(first: int, end: int, rounds: int) -> tuple[PreparedKernel, ...]:
        begin, last = rows.spans.get((first, end), (first, end))
        return (kernel.launch(bases, first=begin, last=last, rounds=rounds),)

    return part


def _staying(plan: NetworkPlan, held: Allocations, device: Device) -> Part:
    """The plan as one launch of groups of items that stay."""
    placement, bases = held.placement, held.bases
    steps = steps_of(plan, placement, befores_of(plan, touched(plan, placement)))
    sizes = sizes_at(plan, placement)
    kernel = Resident(
        device, [plan.text], plan.options, callees_of(plan), steps, len(bases), sizes=sizes
    )
    return lambda first, end, rounds: (kernel.launch(bases, first=first, last=end),) * rounds


def _inline(plan: NetworkPlan, held: Allocations, device: Device) -> Part:
    """The plan as one launch of one work-item."""
    placement, bases = held.placement, held.bases
    steps = steps_of(plan, placement, [()] * len(plan.launches))
    sizes = sizes_at(plan, placement)
    own = inline.inline_text(callees_of(plan), steps, len(bases), sizes)
    program = device.build(f"{plan.text}\n{own}", options=plan.options)

    def part(first: int, end: int, rounds: int) -> tuple[PreparedKernel, ...]:
        one, numbers = (1, 1, 1), (first, end, rounds)
        return (device.prepare(program, inline.NAME, bases, one, one, numbers),)

    return part


def _queued(plan: NetworkPlan, held: Allocations, device: Device) -> Part:
    """Launches on the in-order queue, without events: 2 to 3 us each for the host."""
    launches = queued_launches(plan, held, device)
    return lambda first, end, rounds: launches[first:end] * rounds


_FORMS: Mapping[Form, Callable[[NetworkPlan, Allocations, Device], Part]] = {
    "persistent": _resident,
    "inline": _inline,
    "queued": _queued,
}


def queued_launches(
    plan: NetworkPlan, held: Allocations, device: Device
) -> tuple[PreparedKernel, ...]:
    """The plan's launches, each by itself.

    One program: what a build costs before its first kernel (90 ms on PoCL) is paid once.
    """
    program = device.build(plan.text, options=plan.options)
    windows: dict[tuple[int, int, int], DeviceMemory] = {}
    parts: dict[str, DeviceMemory] = dict(held.images)
    for name, place in held.placement.places.items():
        window = place.base, place.offset, max(1, place.bytes)
        if window not in windows:  # a second one makes each launch dearer (NVIDIA: 32 us, not 10)
            windows[window] = device.part(held.bases[place.base], *window[1:])
        parts[name] = windows[window]
    return device.prepare_all(program, plan.launches, parts)


def can_stay(plan: NetworkPlan) -> bool:
    """Whether a persistent kernel can run every kernel of the plan, where the device has one."""
    if not plan.launches or not all(
        kernel.single_item or kernel.arena_bytes is not None for kernel in plan.kernels
    ):
        return False
    return table_bytes(callees_of(plan), len(plan.launches)) <= MOST_BYTES


def callees_of(plan: NetworkPlan) -> list[Callee]:
    """The plan's kernels, each once, by the functions of their groups."""
    found: dict[str, Callee] = {}
    for kernel, launch in plan.runs:
        pairs = zip(launch.global_size, launch.local_size, strict=True)
        found[launch.kernel] = Callee(
            kernel=launch.kernel,
            parameters=len(launch.args),
            groups=three([size // local for size, local in pairs]),
            items=prod(launch.local_size),
            arena=None if kernel.single_item else kernel.arena_bytes,
        )
    return list(found.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRows:
    """What a persistent kernel can run: the plan's launches, then those of its loops once more, in
    which small ones are chained."""

    callees: Sequence[Callee]
    text: str
    """Of the chains."""
    steps: Sequence[CalleeLaunch]
    spans: Mapping[tuple[int, int], tuple[int, int]]
    """The launches of a loop -> the steps that run them in chains: from the first to before the
    second of the numbers."""


def step_rows(plan: NetworkPlan, placement: Placement) -> StepRows:
    """The steps of a persistent kernel that runs the plan."""
    callees, accesses = {c.kernel: c for c in callees_of(plan)}, touched(plan, placement)
    steps = steps_of(plan, placement, befores_of(plan, accesses))
    sizes = sizes_at(plan, placement)
    chains: dict[tuple[str, ...], Chain] = {}
    spans: dict[tuple[int, int], tuple[int, int]] = {}
    for first, end in dict.fromkeys((loop.first, loop.end) for loop in plan.innermost):
        runs, begin = _chainable(plan, first, end), len(steps)
        befores = waits([together([accesses[i] for i in run]) for run in runs])
        for run, before in zip(runs, befores, strict=True):
            own = [steps[i] for i in run]
            names = tuple(step.kernel for step in own)
            if len(run) > 1 and names not in chains:
                links = tuple(callees[n] for n in names)
                chains[names] = Chain(f"chain_{len(chains)}", links, sizes)
            chain = chains.get(names) if len(run) > 1 else None
            name = chain.name if chain else names[0]
            more = [(INTERFACE, 0)] if chain and chain.reads_sizes else []
            steps.append(chained_launch(name, own, tuple(begin + b for b in before), more))
        spans[first, end] = begin, len(steps)
    return StepRows(
        callees=[*callees.values(), *(chain.callee for chain in chains.values())],
        text="\n".join(chain.text for chain in chains.values()),
        steps=steps,
        spans=spans,
    )


def _chainable(plan: NetworkPlan, first: int, end: int) -> list[list[int]]:
    """The launches in order, those together that one worker should run."""
    found: list[list[int]] = []
    small = [most(n.bytes) <= _SMALL_BYTES and most(n.flops) <= _SMALL_FLOPS for n in plan.launches]
    for number in range(first, end):
        joins = number > first and small[number] and small[number - 1]
        if joins and len(found[-1]) < MOST_LINKS:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def befores_of(plan: NetworkPlan, accesses: Sequence[Touched]) -> list[tuple[int, ...]]:
    """What each launch waits for, among those of its variant."""
    return [
        tuple(variant.first + before for before in befores)
        for variant in plan.alternatives
        for befores in waits(accesses[variant.first : variant.end])
    ]


def steps_of(
    plan: NetworkPlan, placement: Placement, befores: Sequence[tuple[int, ...]]
) -> list[CalleeLaunch]:
    """The plan's launches as steps, each of which waits for those before it."""
    places = placement.places
    return [
        CalleeLaunch(
            kernel=launch.kernel,
            args=tuple((places[name].base, places[name].offset) for name in launch.args),
            waits=before,
            label=launch.label,
        )
        for launch, before in zip(plan.launches, befores, strict=True)
    ]
