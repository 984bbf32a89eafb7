"""Branches and loops: what is decided while importing disappears, loops are unrolled."""

from collections.abc import Sequence

import numpy as np

from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis

_MOST_TURNS = 4096
"""Turns of a loop that are unrolled: a network of more nodes is beyond any compiler's patience."""


@onnx_op("If")
def branch(node: OnnxNode, emit: Emitter) -> None:
    """The branch that a known condition takes; otherwise both, and a choice between results."""
    condition = node.inputs[0]
    known = emit.known(condition)
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


@onnx_op("Loop", limits="fewer than 4096 turns, if they are counted while importing")
def loop(node: OnnxNode, emit: Emitter) -> None:
    """Turn after turn, while the count and the condition are known; otherwise on the host."""
    limit = emit.known(node.inputs[0]) if node.has_input(0) else np.asarray(_MOST_TURNS)
    going = emit.known(node.inputs[1]) if node.has_input(1) else np.asarray(True)
    carried: tuple[str, ...] = node.inputs[2:]
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
        _stack(emit, index, parts, 0)
    return None


@onnx_op("Scan", since=8, limits="one length for all, fewer than 4096 turns")
def scan_of_batches(node: OnnxNode, emit: Emitter) -> None:
    """Until opset 8: each sample of the batch by itself, along the second axis."""
    if node.has_input(0):
        raise emit.refuse("Scan of sequences of different lengths", "export with opset 9 or newer")
    count = node.integer("num_scan_inputs", 0)
    first = len(node.inputs) - count
    backward = node.ints("directions", (0,) * count)
    samples: list[list[str]] = []
    for sample in range(emit.shape(node.inputs[-1])[0]):
        own = [emit.single(value, 0, sample) for value in node.inputs[1:]]
        turns = _Turns(emit, own[first - 1 :], (0,) * count, backward, f"{sample}/")
        turns.run(own[: first - 1])
        scans = [_stacked(emit, parts, 0) for parts in turns.made]
        samples.append([*turns.carried, *scans])
    for index, parts in enumerate(zip(*samples, strict=True)):
        _stack(emit, index, parts, 0)


@onnx_op("Scan", since=9, limits="fewer than 4096 turns")
def scan(node: OnnxNode, emit: Emitter) -> None:
    """The body applied to slice after slice of the scanned inputs."""
    count = node.integer("num_scan_inputs", 0)
    first = len(node.inputs) - count
    scanned = node.inputs[first:]
    axes = node.ints("scan_input_axes", (0,) * count)
    axes = [positive_axis(a, len(emit.shape(v))) for a, v in zip(axes, scanned, strict=True)]
    backward = node.ints("scan_input_directions", (0,) * count)
    turns = _Turns(emit, scanned, axes, backward)
    turns.run(node.inputs[:first])
    for index, value in enumerate(turns.carried):
        emit.same(value, index)
    axes = node.ints("scan_output_axes", (0,) * len(turns.made))
    reverse = node.ints("scan_output_directions", (0,) * len(turns.made))
    for position, parts in enumerate(turns.made):
        ordered = parts[::-1] if reverse[position] else parts
        _stack(emit, first + position, ordered, axes[position])


class _Turns:
    """The turns of a Scan: what is carried out of the last one, and what each of them made."""

    def __init__(
        self,
        emit: Emitter,
        scanned: Sequence[str],
        axes: Sequence[int],
        backward: Sequence[int],
        label: str = "",
    ) -> None:
        self._emit = emit
        self._scanned = list(zip(scanned, axes, backward, strict=True))
        self._label = label
        self.carried: tuple[str, ...] = ()
        self.made: list[tuple[str, ...]] = []
        """The values of each scanned output, turn by turn."""

    def run(self, initial: Sequence[str]) -> None:
        """All turns are in the graph."""
        count = self._emit.shape(self._scanned[0][0])[self._scanned[0][1]]
        _check_turns(count)
        self.carried = tuple(initial)
        rows: list[tuple[str, ...]] = []
        for turn in range(count):
            parts = [
                self._emit.single(value, axis, count - 1 - turn if back else turn)
                for value, axis, back in self._scanned
            ]
            results = self._emit.body("body", [*self.carried, *parts], f"{self._label}{turn}")
            self.carried = results[: len(initial)]
            rows.append(results[len(initial) :])
        self.made = list(zip(*rows, strict=True))


def _check_turns(count: int) -> None:
    if count >= _MOST_TURNS:
        raise ModelError(
            f"a loop of {count} turns or more; expected fewer than {_MOST_TURNS}, since loops are "
            "unrolled; export the network with operators on whole tensors"
        )


def _stack(emit: Emitter, index: int, parts: Sequence[str], axis: int) -> None:
    """The node's output `index` is what all turns made, along a new axis."""
    if emit.node.has_output(index):
        emit.same(_stacked(emit, parts, axis), index)


def _stacked(emit: Emitter, parts: Sequence[str], axis: int) -> str:
    if not parts:
        raise emit.refuse("a loop without turns whose results are stacked", "remove the loop")
    return emit.stacked(parts, positive_axis(axis, len(emit.shape(parts[0])) + 1))
