"""How a plan's launches get onto the device: as one persistent kernel, or one by one.

Persistent where the device allows it (codegen/persistent.py says why); its single steps can be run
as well, so a profile shows the same code and the same workers as a run. Other devices get the
launches in order on one queue.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.bundle.plan import NetworkPlan
from retune.bundle.storage import Storage, touched
from retune.codegen.hazards import waits
from retune.codegen.opencl import defines_group
from retune.codegen.persistent import Callee, Step
from retune.device.launching import prepare_launches
from retune.device.persistent import Persistent, can_persist
from retune.device.runtime import Buffer, Device, Launch


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Launches with their arguments set, ready to be enqueued any number of times."""

    whole: tuple[Launch, ...]
    """The plan."""
    part: Callable[[int, int, int], tuple[Launch, ...]]
    """(first, end, rounds) -> what runs the plan's launches from `first` to before `end`, that
    many times over, in one launch where the device allows it."""


def make_executor(
    plan: NetworkPlan, storage: Storage, bases: Sequence[Buffer], device: Device
) -> Executor:
    """The best executor that this device and these kernels allow; the program is built.

    `bases` are the allocations of `storage`, in the order of their numbers. Raises: BuildFailed.
    """
    if not plan.launches:
        return Executor(whole=(), part=lambda first, end, rounds: ())
    if can_persist(device) and is_solitary(plan):
        return _resident(plan, storage, bases, device)
    return _queued(plan, storage, bases, device)


def _resident(
    plan: NetworkPlan, storage: Storage, bases: Sequence[Buffer], device: Device
) -> Executor:
    """The plan as one launch of persistent workers."""
    steps = _steps(plan, storage)
    kernel = Persistent(device, [text_of(plan)], plan.options, callees_of(plan), steps, len(bases))
    return Executor(
        whole=(kernel.launch(bases),),
        part=lambda first, end, rounds: (
            kernel.launch(bases, first=first, last=end, rounds=rounds),
        ),
    )


def _queued(
    plan: NetworkPlan, storage: Storage, bases: Sequence[Buffer], device: Device
) -> Executor:
    """Launches on the in-order queue, without events: 2 to 3 us each for the host.

    One program: what a build costs before its first kernel (90 ms on PoCL) is paid once.
    """
    program = device.build(text_of(plan), options=plan.options)
    parts = {
        name: device.part(bases[place.base], place.offset, max(1, place.bytes))
        for name, place in storage.places.items()
    }
    launches = prepare_launches(device, program, plan.launches, parts)
    return Executor(
        whole=launches,
        part=lambda first, end, rounds: launches[first:end] * rounds,
    )


def is_solitary(plan: NetworkPlan) -> bool:
    """Whether persistent workers can run every kernel of the plan."""
    return all(defines_group(name, text) for name, text in plan.kernels.items())


def text_of(plan: NetworkPlan) -> str:
    """The plan's kernels as one text."""
    return "\n".join(dict.fromkeys(plan.kernels.values()))


def callees_of(plan: NetworkPlan) -> list[Callee]:
    """The plan's kernels, each once."""
    found: dict[str, Callee] = {}
    for launch in plan.launches:
        x, y, z = (*launch.global_size, 1, 1)[:3]
        found[launch.kernel] = Callee(
            kernel=launch.kernel,
            parameters=len(launch.args),
            groups=(x, y, z),
        )
    return list(found.values())


def _steps(plan: NetworkPlan, storage: Storage) -> list[Step]:
    places = storage.places
    return [
        Step(
            kernel=launch.kernel,
            args=tuple((places[name].base, places[name].offset) for name in launch.args),
            waits=before,
            label=launch.label,
        )
        for launch, before in zip(plan.launches, waits(touched(plan, storage)), strict=True)
    ]
