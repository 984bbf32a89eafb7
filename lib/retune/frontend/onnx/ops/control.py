"""Branches and loops: what is decided while importing disappears.

A loop whose steps are all alike becomes a node `scan`; others are unrolled, as are short ones: more
is known of each of their turns.
"""

from collections.abc import Sequence

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.loops import LoopBody
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis

_FEWEST_STEPS = 8
"""Of a loop that stays one."""
_MOST_TURNS = 4096
"""Turns of a loop that are unrolled: a network of more nodes is beyond any compiler's patience."""


@onnx_op("If")
def branch(node: OnnxNode, emit: Emitter) -> None:
    """The branch that a known condition takes; otherwise both, and a choice between results."""
    condition = node.inputs[0]
    known = emit.decided(condition)
    if known is not None:
        taken = "then_branch" if bool(known.reshape(-1)[0]) else "else_branch"
        for index, value in enumerate(emit.body(taken, ())):
            emit.same(value, index)
        return None
    both = [emit.body(key, ()) for key in ("then_branch", "else_branch")]
    pairs = list(zip(*both, strict=True))
    types = emit.build.types
    if any(a not in types or b not in types or types[a] != types[b] for a, b in pairs):
        return emit.host()
    test = emit.reshaped(condition, ())
    for index, pair in enumerate(pairs):
        emit.out("where", test, *pair, index=index)
    return None


@onnx_op("Loop", limits="fewer than 4096 turns, if they differ and are counted while importing")
def loop(node: OnnxNode, emit: Emitter) -> None:
    """Turn after turn, while the count and the condition are known; otherwise on the host."""
    limit = emit.decided(node.inputs[0]) if node.has_input(0) else np.asarray(_MOST_TURNS)
    going = emit.decided(node.inputs[1]) if node.has_input(1) else np.asarray(True)
    carried: tuple[str, ...] = node.inputs[2:]
    if limit is not None and going is not None and going.all() and node.has_input(0):
        found = _counted_loop(emit, int(limit.max()), carried)
        if found is not None:
            return _name_outputs(emit, found)
    made: list[tuple[str, ...]] = []
    while limit is not None and going is not None and going.all() and len(made) < int(limit.max()):
        _check_turns(len(made))
        turn = np.asarray(len(made), np.int64)
        inputs = [emit.stored("turn", turn), emit.stored("going", going), *carried]
        results = emit.body("body", inputs, str(len(made)))
        going = emit.known(results[0])
        carried = results[1 : 1 + len(carried)]
        made.append(results[1 + len(carried) :])
    unknown = limit is None or going is None
    if unknown or any(part not in emit.build.types for parts in made for part in parts):
        return emit.host()
    for index, value in enumerate(carried):
        emit.same(value, index)
    scans = zip(*made, strict=True) if made else [()] * (len(node.outputs) - len(carried))
    for index, parts in enumerate(scans, start=len(carried)):
        _stack(emit, index, parts)
    return None


def _counted_loop(emit: Emitter, steps: int, carried: Sequence[str]) -> list[str] | None:
    """The outputs of a Loop of so many steps, none of which ends it; None where it is not a
    `scan`."""
    if steps < _FEWEST_STEPS or not set(carried) <= emit.build.types.keys():
        return None
    body = LoopBody(emit, emit.label, steps)
    states = [body.state(f"state{n}", value) for n, value in enumerate(carried)]
    numbers = emit.stored("turns", np.arange(steps, dtype=np.int64))
    turn = body.slice("turn", numbers, backward=False)
    going = body.emit.stored("going", np.asarray(True))
    try:
        goes_on, *made = emit.inside("body", body, [turn, going, *states])
        known = body.emit.known(goes_on)
        if known is None or not known.all():
            return None
        rows = [(value, False) for value in made[len(states) :]]
        return body.finish(made[: len(states)], rows)
    except ModelError:
        return None  # unrolled, it may have a meaning, or a reason why not


def _name_outputs(emit: Emitter, values: Sequence[str]) -> None:
    for index, value in enumerate(values):
        if emit.node.has_output(index):
            emit.same(value, index)


@onnx_op("Scan", since=8, limits="one length for all, fewer than 4096 turns if they differ")
def scan_of_batches(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 8: each sample of the batch by itself, along the second axis."""
    if node.has_input(0):
        raise emit.refuse("Scan of sequences of different lengths", "export with opset 9 or newer")
    count = node.integer("num_scan_inputs", 0)
    first = len(node.inputs) - count
    backward = node.ints("directions", (0,) * count)
    samples: list[list[str]] = []
    forward = (0,) * (emit.results("body") - first + 1)
    for sample in range(emit.shape(node.inputs[-1])[0]):
        own = [emit.single(value, 0, sample) for value in node.inputs[1:]]
        states, scanned = own[: first - 1], own[first - 1 :]
        samples.append(_scanned(emit, states, scanned, backward, forward, f"{sample}/"))
    for index, parts in enumerate(zip(*samples, strict=True)):
        _stack(emit, index, parts)


@onnx_op("Scan", since=9, limits="fewer than 4096 turns, if they differ")
def scan(node: OnnxNode, emit: Emitter) -> None:
    """The body applied to slice after slice of the scanned inputs."""
    count = node.integer("num_scan_inputs", 0)
    first = len(node.inputs) - count
    scanned = node.inputs[first:]
    axes = node.ints("scan_input_axes", (0,) * count)
    axes = [positive_axis(a, len(emit.shape(v))) for a, v in zip(axes, scanned, strict=True)]
    first_axes = [_axis_first(emit, v, axis) for v, axis in zip(scanned, axes, strict=True)]
    backward = node.ints("scan_input_directions", (0,) * count)
    rows = emit.results("body") - first
    reverse = node.ints("scan_output_directions", (0,) * rows)
    made = _scanned(emit, node.inputs[:first], first_axes, backward, reverse)
    stacked = zip(made[first:], node.ints("scan_output_axes", (0,) * rows), strict=True)
    _name_outputs(emit, [*made[:first], *(_axis_moved(emit, v, axis) for v, axis in stacked)])


def _axis_first(emit: Emitter, value: str, axis: int) -> str:
    """The value with an axis before all others."""
    others = [d for d in range(len(emit.shape(value))) if d != axis]
    return emit.temp("transpose", value, perm=(axis, *others)) if axis else value


def _axis_moved(emit: Emitter, value: str, axis: int) -> str:
    """The value with its first axis where `axis` says; '' stays ''."""
    if not value:
        return ""
    perm = list(range(1, rank := len(emit.shape(value))))
    perm.insert(positive_axis(axis, rank), 0)
    return value if perm[0] == 0 else emit.temp("transpose", value, perm=tuple(perm))


def _scanned(
    emit: Emitter,
    initial: Sequence[str],
    scanned: Sequence[str],
    backward: Sequence[int],
    reverse: Sequence[int],
    label: str = "",
) -> list[str]:
    """The states after a Scan along the first axes, and its stacked rows."""
    steps = emit.shape(scanned[0])[0]
    if steps >= _FEWEST_STEPS:
        body = LoopBody(emit, f"{emit.label}{label}", steps)
        inputs = [body.state(f"state{n}", value) for n, value in enumerate(initial)]
        inputs += [
            body.slice(f"slice{n}", value, backward=bool(back))
            for n, (value, back) in enumerate(zip(scanned, backward, strict=True))
        ]
        try:
            made = emit.inside("body", body, inputs)
            rows = zip(made[len(initial) :], map(bool, reverse), strict=True)
            return body.finish(made[: len(initial)], rows)
        except ModelError:
            pass  # unrolled, it may have a meaning, or a reason why not
    return _unrolled(emit, initial, scanned, backward, reverse, label)


def _unrolled(
    emit: Emitter,
    initial: Sequence[str],
    scanned: Sequence[str],
    backward: Sequence[int],
    reverse: Sequence[int],
    label: str,
) -> list[str]:
    """The same, with all turns in the graph."""
    count = emit.shape(scanned[0])[0]
    _check_turns(count)
    carried, made = tuple(initial), list[tuple[str, ...]]()
    for turn in range(count):
        parts = [
            emit.single(value, 0, count - 1 - turn if back else turn)
            for value, back in zip(scanned, backward, strict=True)
        ]
        results = emit.body("body", [*carried, *parts], f"{label}{turn}")
        carried = results[: len(initial)]
        made.append(results[len(initial) :])
    rows = zip(zip(*made, strict=True), reverse, strict=True)
    return [*carried, *(_stacked(emit, parts[::-1] if back else parts) for parts, back in rows)]


def _check_turns(count: int) -> None:
    if count >= _MOST_TURNS:
        raise ModelError(
            f"a loop of {count} different turns or more; expected fewer than {_MOST_TURNS}, since "
            "they are unrolled; export the network with operators on whole tensors"
        )


def _stack(emit: Emitter, index: int, parts: Sequence[str]) -> None:
    """The node's output `index` is what all turns made, along a new first axis."""
    if emit.node.has_output(index):
        emit.same(_stacked(emit, parts), index)


def _stacked(emit: Emitter, parts: Sequence[str]) -> str:
    if not parts:
        raise emit.refuse("a loop without turns whose results are stacked", "remove the loop")
    return emit.stacked(parts, 0)
