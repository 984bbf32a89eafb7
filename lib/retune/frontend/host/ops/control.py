"""Branches, loops, sequences and optionals on the host, as ONNX states them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from retune.core.errors import ModelError
from retune.frontend.host.ops.registry import NodeCall, Value, host_op
from retune.ops import Array


@host_op("If")
def branch(call: NodeCall) -> Sequence[Value]:
    """The branch that the condition takes."""
    taken = bool(call.array(0).reshape(-1)[0])
    return call.bodies["then_branch" if taken else "else_branch"]()


@host_op("Loop")
def loop(call: NodeCall) -> Sequence[Value]:
    """Turn after turn; what each turn makes lies along a new first axis."""
    limit = None if call.given(0) is None else int(np.max(call.array(0)))
    going = np.asarray(True) if call.given(1) is None else call.array(1)
    state, body = tuple(call.args[2:]), call.bodies["body"]
    made: list[tuple[Value, ...]] = []
    while going.all() and (limit is None or len(made) < limit):
        going, *results = body(np.asarray(len(made), np.int64), going, *state)
        state = tuple(results[: len(state)])
        made.append(tuple(results[len(state) :]))
    columns = zip(*made, strict=True) if made else ()
    return (*state, *_stacked(list(columns), body.stated[1 + len(state) :]))


@host_op("Scan", since=8)
def scan_of_batches(call: NodeCall) -> Sequence[Value]:
    """Until opset 8: each sample of the batch by itself, as many steps as its length says."""
    lengths, given = call.given(0), list(call.args[1:])
    count = call.node.integer("num_scan_inputs", 0)
    first = len(given) - count
    directions = call.node.ints("directions", (0,) * count)
    batch, steps = given[first].shape[:2]
    rows: list[Sequence[Value]] = []
    for sample in range(batch):
        length = steps if lengths is None else int(lengths[sample])
        entries = zip(given[first:], directions, strict=True)
        scanned = [_ordered(value[sample, :length], 0, back) for value, back in entries]
        state, made = _scan(call, [value[sample] for value in given[:first]], scanned, length)
        rows.append([*state, *(_padded(array, steps) for array in made)])
    return [np.stack(column) for column in zip(*rows, strict=True)]


def _padded(array: Array, extent: int) -> Array:
    """The array with zeros up to that extent of its first axis."""
    missing = np.zeros((extent - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, missing])


@host_op("Scan", since=9)
def scan(call: NodeCall) -> Sequence[Value]:
    """The body applied to slice after slice of the scanned inputs."""
    count = call.node.integer("num_scan_inputs", 0)
    first = len(call.args) - count
    axes = call.node.ints("scan_input_axes", (0,) * count)
    directions = call.node.ints("scan_input_directions", (0,) * count)
    entries = zip(call.args[first:], axes, directions, strict=True)
    scanned = [_ordered(value, axis, direction) for value, axis, direction in entries]
    state, made = _scan(call, call.args[:first], scanned, len(scanned[0]))
    axes = call.node.ints("scan_output_axes", (0,) * len(made))
    directions = call.node.ints("scan_output_directions", (0,) * len(made))
    outputs = zip(made, axes, directions, strict=True)
    return [
        *state,
        *(np.moveaxis(a[::-1] if back else a, 0, axis) for a, axis, back in outputs),
    ]


def _ordered(value: Array, axis: int, direction: int) -> Array:
    """The slices along the axis, in the order in which they are scanned."""
    slices = np.moveaxis(value, axis, 0)
    return slices[::-1] if direction else slices


def _scan(
    call: NodeCall, state: Sequence[Value], scanned: Sequence[Array], count: int
) -> tuple[Sequence[Value], list[Array]]:
    """What is carried out of the last step, and what the steps made, along a first axis."""
    body, made = call.bodies["body"], list[Sequence[Value]]()
    for step in range(count):
        parts = [np.asarray(value[step], order="C") for value in scanned]
        results = body(*state, *parts)
        state, results = results[: len(state)], results[len(state) :]
        made.append(results)
    columns = list(zip(*made, strict=True)) if made else []
    return state, _stacked(columns, body.stated[len(state) :])


def _stacked(columns: Sequence[Sequence[Array]], stated: Sequence[Any]) -> list[Array]:
    """What all turns made of each output, along a new first axis."""
    if columns:
        return [np.stack(parts) for parts in columns]
    return [_nothing(kind) for kind in stated]


def _nothing(kind: Any) -> Array:
    """No rows of the ONNX type; extents that it leaves open are 0. Raises: ModelError."""
    tensor = kind.tensor_type
    if not tensor.elem_type or not tensor.HasField("shape"):
        raise ModelError(
            "a loop without turns, of whose body's outputs the model does not state the types; "
            "run onnx.shape_inference before importing it"
        )
    shape = (0, *(dim.dim_value for dim in tensor.shape.dim))
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


@host_op("Identity")
def identity(call: NodeCall) -> Sequence[Value]:
    """The input, whatever it is."""
    return (call.given(0),)


@host_op("SequenceConstruct")
def construct(call: NodeCall) -> Sequence[Value]:
    """The inputs as a sequence."""
    return (tuple(call.args),)


@host_op("SequenceEmpty")
def empty(_: NodeCall) -> Sequence[Value]:
    """A sequence of nothing."""
    return ((),)


@host_op("SequenceLength")
def length(call: NodeCall) -> Sequence[Value]:
    """The number of tensors."""
    return (np.asarray(len(call.sequence(0)), np.int64),)


@host_op("SequenceAt")
def at(call: NodeCall) -> Sequence[Value]:
    """The tensor at a position; negative ones count from the end."""
    parts = call.sequence(0)
    return (parts[_position(call, 1, len(parts))],)


@host_op("SequenceInsert")
def insert(call: NodeCall) -> Sequence[Value]:
    """The sequence with one more tensor, at its end or before a position."""
    parts = call.sequence(0)
    position = len(parts)
    if call.given(2) is not None:
        position = _position(call, 2, len(parts), len(parts) + 1)
    return ((*parts[:position], call.args[1], *parts[position:]),)


@host_op("SequenceErase")
def erase(call: NodeCall) -> Sequence[Value]:
    """The sequence without its last tensor, or the one at a position."""
    parts = call.sequence(0)
    position = len(parts) - 1 if call.given(1) is None else _position(call, 1, len(parts))
    return ((*parts[:position], *parts[position + 1 :]),)


def _position(call: NodeCall, index: int, count: int, end: int | None = None) -> int:
    """The position in a sequence of `count` that an input names. Raises: ModelError if outside."""
    (position,) = (int(item) for item in call.array(index).reshape(-1))
    if not -count <= position < (count if end is None else end):
        raise ModelError(f"position {position} in a sequence of {count}")
    return position + count if position < 0 else position


@host_op("SplitToSequence")
def split_to_sequence(call: NodeCall) -> Sequence[Value]:
    """Slices along an axis; of extent 1 each and without the axis by default."""
    data, axis = call.array(0), call.node.integer("axis", 0)
    extent = data.shape[axis]
    if call.given(1) is None:
        parts = np.split(data, extent, axis) if extent else []
        if not call.node.integer("keepdims", 1):
            parts = [np.squeeze(part, axis) for part in parts]
        return (tuple(parts),)
    split = call.array(1)
    if split.ndim:
        ends = np.cumsum(split)
        if ends[-1:].sum() != extent or (split < 0).any():
            raise ModelError(
                f"split: expected extents that add up to {extent}, got {split.tolist()}"
            )
    else:
        ends = np.arange(int(split), extent + int(split), int(split))
    return (tuple(np.split(data, ends[:-1], axis)),)


@host_op("ConcatFromSequence")
def concat_from_sequence(call: NodeCall) -> Sequence[Value]:
    """The tensors side by side along an axis, or along a new one. Raises: ModelError for none."""
    parts, axis = call.sequence(0), call.node.integer("axis", 0)
    if not parts:
        raise ModelError("a sequence of nothing: expected tensors to put side by side")
    joined = np.stack if call.node.integer("new_axis", 0) else np.concatenate
    return (joined(parts, axis),)


@host_op("Optional")
def optional(call: NodeCall) -> Sequence[Value]:
    """The input, or nothing."""
    return (call.given(0),)


@host_op("OptionalHasElement")
def has_element(call: NodeCall) -> Sequence[Value]:
    """Whether there is something."""
    return (np.asarray(call.given(0) is not None),)


@host_op("OptionalGetElement")
def get_element(call: NodeCall) -> Sequence[Value]:
    """What the optional holds. Raises: ModelError if that is nothing."""
    if call.given(0) is None:
        raise ModelError("an optional that holds nothing; expected a tensor or a sequence")
    return (call.args[0],)
