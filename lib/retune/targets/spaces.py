"""The space of a task: what the rules know, and what templates add, as one union of sketches."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

from retune.core.dims import remembered
from retune.core.errors import ScheduleError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program, sizes_in
from retune.schedule.space import Rule, Sketch, Space, sketches_of
from retune.targets.devices import Rules, device_classes, rules_for
from retune.targets.template import Decided, Template, TemplateWorkload
from retune.targets.templates import templates
from retune.targets.vta.rules import BY_RULE

_log = logging.getLogger("retune.targets")


def space_of(program: Program, op: str, spec: DeviceSpec, *, max_error: float) -> Space:
    """All sketches that the rules and the operator's templates make of a program.

    Those whose error is more than `max_error`, a part of the output's range, are left out; where
    that is of a type that is only stored, one rounding of it may be more. Those of templates for
    images in blocks are `blocked`, and made when someone asks for them.
    """
    rules = rules_for(spec).rules
    return _made(program, spec, rules, tuple(templates(op, spec.device_class)), max_error)


@remembered(maxsize=1024)
def _made(
    program: Program,
    spec: DeviceSpec,
    rules: tuple[Rules, ...],
    found: tuple[Template, ...],
    max_error: float,
) -> Space:
    """Made once for equal programs: networks share layers.

    Where sizes are at hand, nothing waits until someone asks: then others may be.
    """
    stored = [b.dtype.roundoff for b in program.outputs if b.dtype.is_small_float]
    limit = max([max_error, *stored])
    ruled = (sketches(program, spec, limit) for sketches in rules)
    written = (_template_sketches(t, program, spec) for t in found if t.blocks is None)
    known = chain.from_iterable((*ruled, *written))

    def more() -> tuple[Sketch, ...]:
        return tuple(
            replace(sketch, blocks=entry.blocks)
            for entry in found
            if entry.blocks is not None
            for sketch in _template_sketches(entry, program, spec)
        )

    space = Space(tuple(entry for entry in known if entry.error <= limit), more)
    return Space(space.sketches, more) if sizes_in(program) else space


def written_sketches(program: Program, rule: Rule, name: str) -> tuple[Sketch, ...]:
    """The sketches of a schedule function written by hand: one for each structure that it samples.

    They are called `name`, what was chosen of the structure, and a digest of what they do: records
    name their sketch, so that those of an edited function do not speak for the new one.
    Raises: ScheduleError where the function does not fit the program.
    """
    made = sketches_of(program, rule, name)
    return tuple(s.renamed(f"{s.name}.{content_key(s.trace.to_json())[:8]}") for s in made)


def strategy(sketch: str) -> str:
    """How the kernels of a sketch of that name work, comparable over tasks and devices.

    `cpu.v16.winograd4` -> `cpu.winograd4`: vectors may be of any length. What is written by hand
    is a template: `conv2d_nchwc.774b80c8` -> `template conv2d_nchwc`, without its digest.
    """
    plain = re.sub(r"\.[0-9a-f]{8}$", "", sketch)
    device_class, _, rest = plain.partition(".")
    if device_class not in device_classes() and not plain.startswith(BY_RULE):
        return f"template {plain}"
    return f"{device_class}.{re.sub(r'^v[0-9]+[.]', '', rest)}"


def _template_sketches(entry: Template, program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    """The template's sketches; none, and a word in the log, where it does not fit."""
    work = TemplateWorkload(op=entry.op, program=program, spec=spec)
    try:
        made = written_sketches(program, lambda s: entry.function(s, work), entry.name)
        return made if entry.untuned is None else _starting(made, entry.untuned(work))
    except ScheduleError as error:
        _log.debug("template %s does not fit %s: %s", entry.name, program.name, error)
        return ()


def _starting(sketches: Sequence[Sketch], decided: Decided) -> tuple[Sketch, ...]:
    """The sketches; the one of the decided structure (by default option 0) starts as decided."""
    return tuple(
        sketch.starting_at(decided)
        if all(tuple(decided.get(n, (0,))) == chosen for n, chosen in sketch.trace.decisions)
        else sketch
        for sketch in sketches
    )
