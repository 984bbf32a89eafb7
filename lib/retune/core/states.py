"""States of a network: inputs whose values the next call takes from outputs of this one.

Caches of keys and values, and the hidden vectors of recurrent networks and voice detectors, are
such. Read State, then `states_among`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from retune.core.errors import InputError

NO_STATES = "none"
"""What is stated where names are not to be taken for those of states."""

_NAMES: tuple[tuple[str, str], ...] = (
    (r"past_key_values\.(.+)", r"present.\1"),
    (r"past_key_values\.(.+)", r"present_key_values.\1"),
    (r"past_(key|value)_values?_(.+)", r"present_\1_values_\2"),
    (r"past_key_values_(.+)", r"present_key_values_\1"),
    (r"past_(.+)", r"present_\1"),
    (r"past(\d*)", r"present\1"),
    (r"past\.(.+)", r"present.\1"),
    (r"(h|c|.*(?:state|hidden|cell|cache|memory).*)_in", r"\1_out"),
    (r"([hc])(\d*)", r"\1n\2"),
    (r"state", r"stateN"),
    (r"([hc])0", r"\1n"),
    (r"([hc])_0", r"\1_n"),
)
"""Of the usual exporters: the whole name of an input, and that of its output. optimum and
onnxruntime-genai (past_key_values, past_0), torch's examples (h0, hn), Silero (state, h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """An input, and the output that is its value in the next call."""

    input: str
    output: str
    axis: int | None = None
    """The axis of both along which the output is longer: it begins with the input, and what is new
    follows. None: both are of one shape."""

    def __str__(self) -> str:
        return f"{self.input}={self.output}"


def shape_in_model(states: Iterable[State], name: str, shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of an input or output as the model has it, by its shape in a graph or plan: what
    grows does so along the first axis there."""
    extents = list(shape)
    for state in states:
        if name in (state.input, state.output) and state.axis is not None:
            extents.insert(state.axis, extents.pop(0))
    return tuple(extents)


def states_among(
    stated: Sequence[str], inputs: Sequence[str], outputs: Sequence[str]
) -> tuple[tuple[State, bool], ...]:
    """The states of a network with these inputs and outputs, and whether they were stated.

    `stated` are texts such as `h=hn` or `past.*=present.*`, in which `*` stands for the same text
    on both sides, or `none`. Beside them, names that usual exporters give are recognised,
    unless no other input would be left: `h` alone is not a state.
    Raises: InputError for a text that names no input, or no output.
    """
    found: dict[str, tuple[State, bool]] = {}
    taken = set[str]()
    for text in stated:
        if text == NO_STATES:
            continue
        for state in _stated(text, inputs, outputs):
            _check_once(state, found, taken)
            found[state.input] = (state, True)
            taken.add(state.output)
    by_name: dict[str, tuple[State, bool]] = {}
    for name in () if NO_STATES in stated else inputs:
        output = _usual_output(name, outputs)
        if output and name not in found and output not in taken:
            by_name[name] = (State(input=name, output=output), False)
            taken.add(output)
    if len(found) + len(by_name) < len(inputs):
        found |= by_name
    return tuple(found[name] for name in inputs if name in found)


def listed(states: Sequence[State]) -> str:
    """The states, those whose names differ in one number as a pattern: `past.*=present.*`."""
    by_pattern: dict[str, list[State]] = {}
    for state in states:
        pattern = re.sub(r"\d+", "*", str(state))
        numbers = re.findall(r"\d+", str(state))
        alike = pattern.count("*") == 2 and numbers[0] == numbers[1]
        by_pattern.setdefault(pattern if alike else str(state), []).append(state)
    texts = [text if len(each) > 1 else str(each[0]) for text, each in by_pattern.items()]
    return f"{len(states)} ({', '.join(texts)})"


def _stated(text: str, inputs: Sequence[str], outputs: Sequence[str]) -> list[State]:
    left, _, right = (part.strip() for part in text.partition("="))
    if not left or not right or left.count("*") != right.count("*") or left.count("*") > 1:
        raise InputError(
            f"--state {text}: expected INPUT=OUTPUT, or patterns with one * on each side, such as "
            "past.*=present.*"
        )
    pattern = re.compile("(.+)".join(map(re.escape, left.split("*"))))
    matches = [(name, found) for name in inputs if (found := pattern.fullmatch(name))]
    if not matches:
        raise _unknown(text, "an input", left, inputs)
    states: list[State] = []
    for name, match in matches:
        output = right.replace("*", match[1]) if "*" in right else right
        if output not in outputs:
            raise _unknown(text, f"an output for the input {name}", output, outputs)
        states.append(State(input=name, output=output))
    return states


def _unknown(text: str, expected: str, got: str, names: Sequence[str]) -> InputError:
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return InputError(f"--state {text}: expected {expected}: {listed}; got {got}")


def _check_once(state: State, found: Mapping[str, tuple[State, bool]], taken: set[str]) -> None:
    if state.input in found or state.output in taken:
        raise InputError(
            f"--state {state}: expected each input and each output in one state; got "
            f"{state.input if state.input in found else state.output} twice"
        )


def _usual_output(name: str, outputs: Sequence[str]) -> str:
    """The output that exporters give that name's value in the next call; '' for none."""
    for pattern, output in _NAMES:
        if match := re.fullmatch(pattern, name):
            wanted = match.expand(output)
            if wanted in outputs:
                return wanted
    return ""
