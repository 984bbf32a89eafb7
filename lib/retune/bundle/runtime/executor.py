"""Forms of a plan on a device: the launches that run it.

Read `settle` and `make_program`. One kernel of persistent workers (`codegen/network/persistent.py`
says why, `resident.py` there for groups of several items) or of one thread (`inline.py`) where the
device allows it; single steps of it can be run as well, so a profile shows the same code and the
same workers as a run. Other devices get the launches in order on one queue.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from retune.bundle.plan import Form, NetworkPlan, Segment
from retune.bundle.runtime.allocations import Allocations
from retune.bundle.runtime.placement import Placement, sizes_at, touched
from retune.bundle.runtime.rows import befores_of, callees_of, step_rows, steps_of
from retune.codegen.network import inline
from retune.codegen.network.persistent import most_rounds
from retune.codegen.network.resident import MOST_BYTES, table_bytes
from retune.codegen.opencl.kernels import callable_only
from retune.core.dims import SizeValues, is_fixed, most
from retune.core.errors import InputError
from retune.device.opencl.persistent import Persistent, can_persist
from retune.device.opencl.resident import Resident, way_of
from retune.device.opencl.runtime import BuiltProgram, Device, DeviceMemory, PreparedKernel

_MOST_PREPARED = 1 << 10
"""Parts of a plan and numbers of times, each of which is a launch that is kept."""

Part = Callable[[int, int, int], tuple[PreparedKernel, ...]]
"""(first, end, rounds) -> what runs the plan's launches from `first` to before `end`, that many
times over, in one launch where the device allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Launches with their arguments set, ready to be enqueued any number of times."""

    segments: Callable[[int, int, SizeValues], tuple[PreparedKernel, ...]]
    """(first, end, sizes) -> what runs the plan's launches from `first` to before `end`, each as
    often as the plan's loops say for these sizes."""
    part: Part


Bind = Callable[[Allocations], Executor]
"""The launches of a program that is built, on some memory: that of the module, or of a session."""


def forms_here(plan: NetworkPlan, device: Device) -> tuple[Form, ...]:
    """The forms that this device and these kernels allow, at least one; the usual one first."""
    usual = _usual_form(plan, device)
    if way_of(device.spec) and can_stay(plan):
        return (usual, "persistent")
    return (usual, "inline") if plan.single_item and device.in_caller else (usual,)


def _usual_form(plan: NetworkPlan, device: Device) -> Form:
    """That of a plan which says none that the device has."""
    return "persistent" if plan.single_item and can_persist(device) else "queued"


def settle(plan: NetworkPlan, device: Device) -> tuple[Form, Device]:
    """The plan's form, or the usual one where it cannot be; and where buffers and launches belong.

    That is the device itself, or for one thread its part that works in the caller.
    """
    form = _usual_form(plan, device)
    if plan.form != form and plan.form in forms_here(plan, device):
        form = plan.form
    return form, (form == "inline" and device.in_caller) or device


def may_lend(form: Form, device: Device) -> bool:
    """Whether a run may use other memory than the program was bound to: its one kernel has every
    allocation as an argument, and host and device share memory."""
    alone = form == "inline" or (form == "persistent" and can_persist(device))
    return alone and device.shares_memory


def make_program(form: Form, plan: NetworkPlan, placement: Placement, device: Device) -> Bind:
    """The plan in the form and on the device that `settle` gave; the program is built.

    Its launches are made for memory that is laid out so. Raises: BuildFailed.
    """
    if not plan.launches:
        idle = Executor(segments=lambda first, end, values: (), part=lambda first, end, rounds: ())
        return lambda held: idle
    return _FORMS[form](plan, placement, device)


def launchable_segments(plan: NetworkPlan, segments: Iterable[Segment]) -> list[Segment]:
    """The segments, each of no more times than one launch can run it.

    Raises: InputError for one whose times depend on sizes, and may be more.
    """
    rounds = most_rounds(max((most(callee.count) for callee in callees_of(plan)), default=1))
    found: list[Segment] = []
    for segment in segments:
        if not is_fixed(segment.times):
            if most(segment.times) > rounds:
                raise InputError(
                    f"bundle {plan.name}: expected loops of at most {rounds} times, got "
                    f"{segment.times}; compile the model for smaller sizes"
                )
            found.append(segment)
            continue
        for done in range(0, segment.times, rounds):
            found.append(replace(segment, times=min(segment.times - done, rounds)))
    return found


def _looping(
    plan: NetworkPlan,
    part: Part,
    segments_of: Callable[[int, int], Iterable[Segment]] | None = None,
) -> Executor:
    """Loops as parts that run several times over; `segments_of` says which, if not the plan."""
    prepared, stated = lru_cache(_MOST_PREPARED)(part), cache(segments_of or plan.segments)

    def segments(first: int, end: int, values: SizeValues) -> tuple[PreparedKernel, ...]:
        every = launchable_segments(plan, (s.at(values) for s in stated(first, end)))
        return tuple(launch for s in every for launch in prepared(s.first, s.end, s.times))

    return Executor(segments=segments, part=part)


def _resident(plan: NetworkPlan, placement: Placement, device: Device) -> Bind:
    """The plan as one launch of persistent workers, or as one for each loop that all work at."""
    if not can_persist(device):
        return _staying(plan, placement, device)
    bases, rows = len(placement.base_bytes), step_rows(plan, placement)
    texts, sizes = [plan.text, rows.text], sizes_at(plan, placement)
    kernel = Persistent(device, texts, plan.options, rows.callees, rows.steps, bases, sizes=sizes)

    def bind(held: Allocations) -> Executor:
        def part(first: int, end: int, rounds: int) -> tuple[PreparedKernel, ...]:
            return (kernel.launch(held.bases, first=first, last=end, rounds=rounds),)

        return _looping(plan, part, rows.segments_of)

    return bind


def _staying(plan: NetworkPlan, placement: Placement, device: Device) -> Bind:
    """The plan as one launch of a persistent kernel."""
    steps = steps_of(plan, placement, befores_of(plan, touched(plan, placement)))
    bases, sizes = len(placement.base_bytes), sizes_at(plan, placement)
    kernel = Resident(
        device, [plan.text], plan.options, callees_of(plan), steps, bases, sizes=sizes
    )

    def bind(held: Allocations) -> Executor:
        def part(first: int, end: int, rounds: int) -> tuple[PreparedKernel, ...]:
            return (kernel.launch(held.bases, first=first, last=end),) * rounds

        return _looping(plan, part)

    return bind


def _inline(plan: NetworkPlan, placement: Placement, device: Device) -> Bind:
    """The plan as one launch of one work-item."""
    steps = steps_of(plan, placement, [()] * len(plan.launches))
    bases, sizes = len(placement.base_bytes), sizes_at(plan, placement)
    own = inline.inline_text(callees_of(plan), steps, bases, sizes)
    program = device.build(f"{callable_only(plan.text)}\n{own}", options=plan.options)

    def bind(held: Allocations) -> Executor:
        def part(first: int, end: int, rounds: int) -> tuple[PreparedKernel, ...]:
            one, numbers = (1, 1, 1), (first, end, rounds)
            return (device.prepare(program, inline.NAME, held.bases, one, one, numbers),)

        return _looping(plan, part)

    return bind


def _queued(plan: NetworkPlan, _: Placement, device: Device) -> Bind:
    """Launches on the in-order queue, without events: 2 to 3 us each for the host.

    One program: what a build costs before its first kernel (90 ms on PoCL) is paid once.
    """
    program = device.build(plan.text, options=plan.options)

    def bind(held: Allocations) -> Executor:
        launches = _on(plan, program, held, device)
        return _looping(plan, lambda first, end, rounds: launches[first:end] * rounds)

    return bind


_FORMS: Mapping[Form, Callable[[NetworkPlan, Placement, Device], Bind]] = {
    "persistent": _resident,
    "inline": _inline,
    "queued": _queued,
}


def queued_launches(
    plan: NetworkPlan, held: Allocations, device: Device
) -> tuple[PreparedKernel, ...]:
    """The plan's launches, each by itself."""
    return _on(plan, device.build(plan.text, options=plan.options), held, device)


def _on(
    plan: NetworkPlan, program: BuiltProgram, held: Allocations, device: Device
) -> tuple[PreparedKernel, ...]:
    """The launches of a program that is built, on this memory."""
    windows: dict[tuple[int, int, int], DeviceMemory] = {}
    parts: dict[str, DeviceMemory] = dict(held.images)
    for name, found in held.placement.memory.items():
        window = found.base, found.offset, max(1, found.bytes)
        if window not in windows:  # a second one makes each launch dearer (NVIDIA: 32 us, not 10)
            windows[window] = device.part(held.bases[found.base], *window[1:])
        parts[name] = windows[window]
    return device.prepare_all(program, plan.launches, parts)


def can_stay(plan: NetworkPlan) -> bool:
    """Whether a persistent kernel can run every kernel of the plan, where the device has one."""
    if not plan.launches or not all(
        kernel.single_item or kernel.arena_bytes is not None for kernel in plan.kernels
    ):
        return False
    return table_bytes(callees_of(plan), len(plan.launches)) <= MOST_BYTES
