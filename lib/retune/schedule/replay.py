"""A trace applied to a program anew, with the decisions that it holds or with others."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import cast

from retune.core.errors import ScheduleError
from retune.ir.expr import Expr, Var, substitute, variables
from retune.ir.stmt import Program
from retune.schedule.decisions import Given, symbols_of
from retune.schedule.schedule import Schedule
from retune.schedule.trace import PRIMITIVES, VARIADIC, Argument, Trace, TraceStep


def replay(program: Program, trace: Trace, decisions: Given | None = None) -> Schedule:
    """The schedule that the trace made of `program`, with other decisions where given.

    Raises: ScheduleError where a step is not legal for this program or these decisions.
    """
    given = dict(trace.decisions) | {k: tuple(v) for k, v in (decisions or {}).items()}
    _check_symbolic(trace, given)
    schedule = Schedule(program, given)
    bound: dict[Var, Expr] = {}
    for step in trace.steps:
        arguments = {k: _bind(v, bound) for k, v in step.arguments}
        names = arguments.pop(VARIADIC, None)
        positional = tuple(names) if isinstance(names, tuple) else ()
        result = _primitive(schedule, step, positional, arguments)()
        if step.primitive.startswith("sample_") and step.outputs:
            values = cast("list[Expr]", result if isinstance(result, list) else [result])
            bound |= {Var(n): v for n, v in zip(step.outputs, values, strict=True)}
    return schedule


def _primitive(
    schedule: Schedule, step: TraceStep, positional: Sequence[object], named: Mapping[str, object]
) -> Callable[[], object]:
    """The call of the step. Raises: ScheduleError if it is of no primitive."""
    if step.primitive not in PRIMITIVES:
        raise ScheduleError(f"replay: expected a primitive of schedules, got {step.primitive!r}")
    method = getattr(schedule, step.primitive)
    try:
        signature(method).bind(*positional, **named)
    except TypeError as error:
        raise ScheduleError(f"replay: {step.primitive}: {error}") from None
    return partial(method, *positional, **named)


def _check_symbolic(trace: Trace, given: Given) -> None:
    """Decisions that differ from those of the trace stand as symbols in its steps.

    Those about structure are taken anew by the step that samples them.
    """
    structural = dict(trace.undecided().decisions)
    used = {v for step in trace.steps for _, value in step.arguments for v in _symbols_in(value)}
    for name, values in trace.decisions:
        symbols = symbols_of(name, len(values))
        if name in structural:
            continue
        if tuple(given[name]) != values and not used.intersection(symbols):
            raise ScheduleError(
                f"replay: {name!r} was decided as {values} before this trace was recorded; "
                "replay the trace of a sketch to decide anew"
            )


def _symbols_in(value: Argument) -> frozenset[Var]:
    if isinstance(value, tuple):
        return frozenset(v for item in value for v in _symbols_in(item))
    return variables(value) if isinstance(value, Expr) else frozenset()


def _bind(value: Argument, bound: Mapping[Var, Expr]) -> Argument:
    if isinstance(value, tuple):
        return tuple(_bind(v, bound) for v in value)
    if isinstance(value, Expr):
        return substitute(value, bound)
    return value
