"""Templates: schedules written by hand for one kind of operator, in the language of the rules.

A template is a schedule function with named sampling instructions ("knobs"). Registering it makes
its sketch part of the space of every task of that operator on that class of device, beside the
sketches of the rules; search, records and replay know no difference. See `template`, and
`retune.targets.spaces` for who asks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from retune.core.target import DeviceClass, DeviceSpec
from retune.ir.stmt import Program
from retune.schedule.schedule import Schedule

Decided = Mapping[str, Sequence[int]]
"""Values of decisions by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateWorkload:
    """What a template is told of the task; shapes are the extents of the program's loops."""

    op: str
    """Operator, such as `conv2d_nhwc`; for a user's expression, its heaviest stage's name."""
    program: Program
    """Unscheduled."""
    spec: DeviceSpec


TemplateFunction = Callable[[Schedule, TemplateWorkload], None]
Untuned = Callable[[TemplateWorkload], Decided]
"""Decisions for a task of which nothing was measured yet."""


Blocks = tuple[str, str]
"""Names of the knobs that say how many channels the blocks of the image have that a template reads,
and those of the image that it makes: NCHW{c}."""


@dataclass(frozen=True, slots=True)
class Template:
    """A registered template."""

    name: str
    op: str
    device_class: DeviceClass
    function: TemplateFunction
    untuned: Untuned | None
    blocks: Blocks | None


_TEMPLATES: dict[tuple[str, str, str], Template] = {}
"""(op, device class, name) -> template."""


def template(
    op: str,
    device_class: DeviceClass = "cpu",
    *,
    untuned: Untuned | None = None,
    blocks: Blocks | None = None,
) -> Callable[[TemplateFunction], TemplateFunction]:
    """Registers the decorated function (schedule, workload) as a template for an operator.

    The function applies primitives and sampling to the schedule; each `sample_*` call with a name
    is a knob. For a workload that it cannot serve it raises ScheduleError, and is left out of that
    task's space. `untuned` gives the decisions to start with where nothing was measured. A template
    with `blocks` is for images that lie in such blocks: only the search for layouts tries it.

    Raises: ValueError if a template of that name is registered for the operator already.
    """

    def register(function: TemplateFunction) -> TemplateFunction:
        entry = Template(function.__name__, op, device_class, function, untuned, blocks)
        key = (op, device_class, entry.name)
        if key in _TEMPLATES:
            raise ValueError(f"template {entry.name!r} for {op} on {device_class} exists already")
        _TEMPLATES[key] = entry
        return function

    return register


def templates(op: str, device_class: DeviceClass) -> list[Template]:
    """The templates for an operator, in order of registration."""
    return [t for t in _TEMPLATES.values() if (t.op, t.device_class) == (op, device_class)]
