"""Traces: what was done to a program, as data that replays, prints as Python, and is JSON.

A step is a primitive's name, its arguments and the names of what it made. A sampling step makes
symbols; a decision gives them numbers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from typing import cast as typed

from retune.core.errors import RecordError, refuse_newer
from retune.ir.expr import Binary, Const, Expr, Var, binary, const, substitute, variables
from retune.ir.operators import BinaryOp

Argument = str | int | Expr | tuple["Argument", ...] | None

TRACE_VERSION = 1
VARIADIC = "names"
"""The argument that a primitive takes as `*names`."""
_SINGLE = frozenset(
    {"fuse", "cache_read", "cache_write", "parallel", "rfactor", "sample_categorical"}
)
"""Primitives that give one name or symbol rather than a list."""


PRIMITIVES = frozenset(
    {
        *("split", "tile", "fuse", "reorder", "unroll", "vectorize", "bind", "parallel"),
        *("tensorize", "annotate", "compute_inline", "cache_write", "cache_read", "compute_at"),
        *("reverse_compute_at", "decompose_reduction", "rfactor", "pack", "precompute", "restate"),
        *("read_as_image", "run_ahead", "align_rows", "rotate_rows"),
        *("sample_perfect_tile", "sample_tile", "sample_categorical", "sample_compute_location"),
    }
)
"""What a step may name: methods of `Schedule`. Traces come from files of others, too."""
STRUCTURAL = frozenset({"sample_compute_location"})
"""Primitives whose decision changes the program's structure: no symbol stands for it."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One primitive applied: `outputs = primitive(**arguments)`."""

    primitive: str
    arguments: tuple[tuple[str, Argument], ...]
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = [
            ", ".join(map(_show, value)) if key == VARIADIC and isinstance(value, tuple)
            else f"{key}={_show(value)}"
            for key, value in self.arguments
        ]  # fmt: skip
        call = f"s.{self.primitive}({', '.join(shown)})"
        names = [_identifier(o) for o in self.outputs]
        if not names:
            return call
        comma = "," if len(names) == 1 and self.primitive not in _SINGLE else ""
        return f"{', '.join(names)}{comma} = {call}"


@dataclass(frozen=True, slots=True)
class Trace:
    """Steps in order, and the numbers decided for their symbols so far."""

    steps: tuple[TraceStep, ...] = ()
    decisions: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def with_step(self, step: TraceStep) -> "Trace":
        """The trace with one more step."""
        return Trace((*self.steps, step), self.decisions)

    def with_decisions(self, decisions: Mapping[str, Sequence[int]]) -> "Trace":
        """The trace with these numbers instead of what was decided for the same names."""
        merged = dict(self.decisions) | {k: tuple(map(int, v)) for k, v in decisions.items()}
        return Trace(self.steps, tuple(merged.items()))

    @property
    def sampled(self) -> tuple[tuple[str, int], ...]:
        """Each decision that symbols stand for, in order, and the number of its symbols."""
        steps = [s for s in self.steps if s.primitive.startswith("sample_") and s.outputs]
        return tuple((_decided_by(step), len(step.outputs)) for step in steps)

    def undecided(self) -> "Trace":
        """The trace of the sketch: only what was decided about the structure is kept."""
        structural = {_decided_by(s) for s in self.steps if s.primitive in STRUCTURAL}
        return Trace(self.steps, tuple(d for d in self.decisions if d[0] in structural))

    def __str__(self) -> str:
        """Python that rebuilds the schedule on a `Schedule` named `s`."""
        lines = [str(step) for step in self.steps]
        if self.decisions:
            lines.append(f"decisions = {dict(self.decisions)!r}")
        return "\n".join(lines)

    def to_json(self) -> str:
        """The trace as one line of JSON."""
        steps = [
            [s.primitive, {k: _encode(v) for k, v in s.arguments}, list(s.outputs)]
            for s in self.steps
        ]
        return json.dumps(
            {
                "version": TRACE_VERSION,
                "steps": steps,
                "decisions": {k: list(v) for k, v in self.decisions},
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> "Trace":
        """The trace that `to_json` wrote. Raises: RecordError if it is not one."""
        try:
            data = json.loads(text)
            refuse_newer("trace", "version", data["version"], TRACE_VERSION)
            steps = tuple(_step(*written) for written in data["steps"])
            decisions = tuple((k, tuple(v)) for k, v in data["decisions"].items())
        except (KeyError, ValueError, TypeError) as error:
            raise RecordError(f"trace: not a trace in JSON ({error})") from error
        return Trace(steps, decisions)


def _step(primitive: str, arguments: dict[str, object], outputs: list[str]) -> TraceStep:
    """A step as JSON has it. Winograd's form had a primitive of its own in earlier traces."""
    if primitive == "winograd":
        primitive = "restate"
        arguments = {
            "block": arguments["block"], "form": "winograd", "sizes": [arguments["m"]],
        }  # fmt: skip
    if primitive not in PRIMITIVES:
        raise RecordError(f"trace: expected a primitive of schedules, got {str(primitive)[:80]!r}")
    stated = tuple((key, _decode(value)) for key, value in arguments.items())
    return TraceStep(primitive, stated, tuple(outputs))


def _decided_by(step: TraceStep) -> str:
    """The name of a sampling step's decision."""
    return str(dict(step.arguments)["name"])


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _show(value: Argument) -> str:
    match value:
        case Expr():
            names: dict[Var, Expr] = {v: Var(_identifier(v.name)) for v in variables(value)}
            return str(substitute(value, names))
        case tuple():
            return f"[{', '.join(map(_show, value))}]"
        case _:
            return repr(value)


def _encode(value: Argument) -> object:
    match value:
        case tuple():
            return [_encode(v) for v in value]
        case Var(name, _):
            return {"symbol": name}
        case Const(number, _):
            return number
        case Binary(op, a, b):
            return {"op": op, "a": _encode(a), "b": _encode(b)}
        case Expr():
            raise RecordError(f"trace: {value} cannot be an argument of a step")
        case _:
            return value


def _decode(value: Any) -> Argument:
    match value:
        case list():
            return tuple(_decode(v) for v in value)
        case {"symbol": str(name)}:
            return Var(name)
        case {"op": str(op), "a": a, "b": b}:
            return binary(typed(BinaryOp, op), _operand(a), _operand(b))
        case str() | int() | None:
            return value
        case _:
            raise RecordError(f"trace: unexpected argument {value!r}")


def _operand(value: object) -> Expr:
    decoded = _decode(value)
    if isinstance(decoded, Expr):
        return decoded
    if isinstance(decoded, int):
        return const(decoded)
    raise RecordError(f"trace: expected an expression, got {value!r}")
