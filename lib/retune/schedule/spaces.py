"""The space of a task: what the rules know, and what templates add, as one union of sketches."""

import logging

from retune.core.errors import ScheduleError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.ir.stmt import Program
from retune.schedule.cpu import cpu_space
from retune.schedule.cpu_winograd import winograd_sketches
from retune.schedule.gpu import gpu_space
from retune.schedule.space import Rule, Sketch, Space, sketch_of
from retune.schedule.template import Template, Workload
from retune.schedule.templates import templates

_log = logging.getLogger("retune.schedule")


def space_of(program: Program, op: str, spec: DeviceSpec, *, winograd: bool = False) -> Space:
    """All sketches that the rules and the operator's templates make of a program.

    Those of Winograd convolution, which rounds differently, only where `winograd` allows it.
    """
    is_cpu = spec.device_class == "cpu"
    rules = (cpu_space if is_cpu else gpu_space)(program, spec).sketches
    allowed = winograd_sketches(program, spec) if winograd and is_cpu else ()
    made = [_template_sketch(t, program, spec) for t in templates(op, spec.device_class)]
    return Space((*rules, *allowed, *(s for s in made if s is not None)))


def written_sketch(program: Program, rule: Rule, name: str) -> Sketch:
    """The sketch of a schedule function written by hand: `name`, and a digest of what it does.

    Records name their sketch, so that those of an edited function do not speak for the new one.
    Raises: ScheduleError where the function does not fit the program.
    """
    sketch = sketch_of(program, rule, name)
    return sketch.renamed(f"{name}.{content_key(sketch.trace.to_json())[:8]}")


def _template_sketch(entry: Template, program: Program, spec: DeviceSpec) -> Sketch | None:
    work = Workload(op=entry.op, program=program, spec=spec)
    try:
        sketch = written_sketch(program, lambda s: entry.function(s, work), entry.name)
        return sketch.starting_at(entry.untuned(work)) if entry.untuned else sketch
    except ScheduleError as error:
        _log.debug("template %s does not fit %s: %s", entry.name, program.name, error)
        return None
