"""Resize and Upsample: along each axis, elements that are repeated, picked, or mixed.

What is computed of each axis while importing is in `resizing`; here it becomes the cheapest ops
that do it. Axes of which each result mixes a few elements in all share one op, which reads the data
once; those that mix more follow each other, the ones that shrink first.

Extents may depend on sizes. Where a scale is the same for all sizes, so are the coordinates: tables
for the largest sizes hold those of all. Elsewhere they are computed as the network runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from retune.core.dims import always_empty, always_same, example, is_fixed
from retune.core.dtypes import FLOAT32, INT32, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op, positive_axis
from retune.frontend.onnx.ops.resizing import BY_SCALE, CROP, Method, ResizedAxis, Taps, taps
from retune.frontend.onnx.ops.windows import from_image, to_image
from retune.ops import Array
from retune.ops.extents import Ratio, array_of_extents

_SHARED_TAPS = 4
"""Elements that axes which are resized together may mix: as many as in bilinear images."""
_BY_SCALE_ALONE = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
"""Coordinates that do not depend on the extents otherwise than by the scale."""


@onnx_op("Upsample")
def upsample_by_attribute(node: OnnxNode, emit: Emitter) -> None:
    """Scales as an attribute, until opset 8."""
    scales = np.asarray(node.attrs.get("scales", ()), np.float32)
    _resize_first_version(node, emit, scales)


@onnx_op("Upsample", since=9, limits="scales known while importing")
@onnx_op("Resize", since=10, limits="scales known while importing")
def resize_by_scales(node: OnnxNode, emit: Emitter) -> None:
    """Scales as an input, and no other choice than the mode."""
    _resize_first_version(node, emit, emit.contents(1, "the scales"))


def _resize_first_version(node: OnnxNode, emit: Emitter, scales: Array) -> None:
    shape = emit.shape(node.inputs[0])
    mode = node.text("mode", "nearest")
    method = Method(mode=mode, coordinates="asymmetric", rounding=BY_SCALE)
    axes = _by_scales(shape, tuple(range(len(shape))), scales)
    _resize(node, emit, axes, method)


@onnx_op("Resize", since=11, limits="scales or sizes known while importing")
def resize(node: OnnxNode, emit: Emitter) -> None:
    """By scales or to sizes, of all axes or of some; the region of interest belongs to crops."""
    shape = emit.shape(node.inputs[0])
    rank = len(shape)
    stated = node.ints("axes", tuple(range(rank)))
    axes = tuple(positive_axis(axis, rank) for axis in stated)
    method = Method(
        mode=node.text("mode", "nearest"),
        coordinates=node.text("coordinate_transformation_mode", "half_pixel"),
        rounding=node.text("nearest_mode", "round_prefer_floor"),
        cubic=node.number("cubic_coeff_a", -0.75),
        exclude_outside=bool(node.integer("exclude_outside", 0)),
        antialias=bool(node.integer("antialias", 0)),
    )
    scales, sizes = (_given(node, emit, i, w) for i, w in ((2, "the scales"), (3, "the sizes")))
    if sizes is not None:
        found = _by_sizes(shape, axes, sizes, node.text("keep_aspect_ratio_policy", "stretch"))
    elif scales is not None:
        found = _by_scales(shape, axes, scales)
    else:
        raise ModelError("neither scales nor sizes are given; expected one of them")
    roi = _given(node, emit, 1, "the region of interest") if method.coordinates == CROP else None
    if method.coordinates == CROP:
        found = _cropped(found, axes, roi)
    _resize(node, emit, found, method)


def _given(node: OnnxNode, emit: Emitter, index: int, what: str) -> Array | None:
    """The contents of an optional input; None if it is left out, or has no elements."""
    if not node.has_input(index) or always_empty(emit.shape(node.inputs[index])):
        return None
    if node.inputs[index] in emit.build.extents:
        return array_of_extents(emit.index_list(index, what))
    return emit.contents(index, what).reshape(-1)


def _check_count(what: str, found: Sequence[Any] | Array, axes: Sequence[int], each: int) -> None:
    if len(found) != each * len(axes):
        raise ModelError(f"{len(found)} {what} for {len(axes)} axes; expected {each} for each axis")


def _by_scales(shape: Sequence[int], axes: Sequence[int], scales: Array) -> dict[int, ResizedAxis]:
    _check_count("scales", scales, axes, 1)
    found: dict[int, ResizedAxis] = {}
    for axis, scale in zip(axes, scales.astype(np.float32), strict=True):
        if not scale > 0:
            raise ModelError(f"the scale of axis {axis} is {scale}; expected a positive number")
        extent = shape[axis]
        if not is_fixed(extent):
            share = Ratio.of(float(scale))
            made = extent * share.top // share.bottom
            found[axis] = ResizedAxis(
                extent=extent, made=made, scale=float(scale), whole=float(example(made))
            )
            continue
        whole = np.float32(scale) * np.float32(extent)
        found[axis] = ResizedAxis(
            extent=extent, made=int(np.floor(whole)), scale=float(scale), whole=float(whole)
        )
    return found


def _by_sizes(
    shape: Sequence[int], axes: Sequence[int], sizes: Array, policy: str
) -> dict[int, ResizedAxis]:
    _check_count("sizes", sizes, axes, 1)
    wanted = dict(zip(axes, sizes.tolist(), strict=True))
    if policy != "stretch" and not all(map(is_fixed, (*shape, *wanted.values()))):
        shape, wanted = [int(e) for e in shape], {axis: int(e) for axis, e in wanted.items()}
    shares = {axis: example(size) / example(shape[axis]) for axis, size in wanted.items()}
    match policy:
        case "stretch":
            return {
                axis: ResizedAxis(
                    extent=shape[axis], made=size, scale=shares[axis], whole=float(example(size))
                )
                for axis, size in wanted.items()
            }
        case "not_larger" | "not_smaller":
            scale = (min if policy == "not_larger" else max)(shares.values())
            return {
                axis: ResizedAxis(
                    extent=shape[axis],
                    made=int(np.floor(scale * shape[axis] + 0.5)),
                    scale=scale,
                    whole=scale * shape[axis],
                )
                for axis in wanted
            }
        case _:
            raise ModelError(
                f"keep_aspect_ratio_policy '{policy}' is not known; expected stretch, not_larger "
                "or not_smaller"
            )


def _cropped(
    found: Mapping[int, ResizedAxis], axes: Sequence[int], roi: Array | None
) -> dict[int, ResizedAxis]:
    """The axes with their regions of interest, which are stated as starts, then ends."""
    if roi is None:
        raise ModelError(f"{CROP} without a region of interest; expected it as the second input")
    _check_count("bounds of the region of interest", roi, axes, 2)
    sides = zip(axes, roi[: len(axes)], roi[len(axes) :], strict=True)
    return {
        axis: replace(found[axis], start=float(start), end=float(end)) for axis, start, end in sides
    }


@dataclass(frozen=True, slots=True)
class _Step:
    """One op of the result, with the constants that it reads after the data."""

    op: str
    attrs: Mapping[str, Any]
    constants: Sequence[Array] = ()
    axis: ResizedAxis | None = None
    """The one whose elements are picked by a table."""


def _resize(node: OnnxNode, emit: Emitter, axes: Mapping[int, ResizedAxis], method: Method) -> None:
    """The node's output, from its first input; rows become images, as the layers beside them do."""
    rank, dtype = len(emit.shape(node.inputs[0])), emit.type(node.inputs[0]).dtype
    value = to_image(emit, node.inputs[0])
    shape = emit.shape(value)
    if rank == 3:
        axes = {axis + (axis == 2): plan for axis, plan in axes.items()}
    for axis, plan in axes.items():
        if plan.made < 1 or plan.extent < 1:
            raise ModelError(
                f"axis {axis} of {plan.extent} elements would have {plan.made}; expected one at "
                "least, before and after"
            )
    axes = {axis: plan for axis, plan in axes.items() if not plan.keeps}
    moving = {axis for axis, plan in axes.items() if _by_coordinates(plan, method, dtype)}
    for axis in moving:
        value = _resized_by_coordinates(emit, value, axis, axes[axis], method)
    axes = {axis: plan for axis, plan in axes.items() if axis not in moving}
    shape = emit.shape(value)
    found = {axis: taps(plan, method) for axis, plan in axes.items()}
    picked = {axis: t.picks for axis, t in found.items() if t.picks is not None}
    mixed = {axis: t for axis, t in found.items() if axis not in picked}
    steps = _picking(shape, picked, axes)
    if mixed and dtype.is_float:
        steps += _mixing(shape, mixed, dtype, axes)
    elif mixed:
        limits = np.iinfo(dtype)
        steps += [_Step("cast", {"to": FLOAT32}), *_mixing(shape, mixed, FLOAT32, axes)]
        steps += [_Step("round", {})]
        steps += [_Step("clip", {"min": float(limits.min), "max": float(limits.max)})]
        steps += [_Step("cast", {"to": dtype})]
    for step in steps:
        value = _applied(emit, value, step)
    shown = _shown(found, len(shape))
    if shown is not None:
        mask = emit.stored("shown", shown)
        beyond = emit.scalar(node.number("extrapolation_value", 0.0), value, "beyond")
        value = emit.temp("where", mask, value, beyond)
    emit.out("identity", from_image(emit, value, rank - 2))


def _applied(emit: Emitter, value: str, step: _Step) -> str:
    tables = [emit.stored("table", array) for array in step.constants]
    if step.op == "gather":
        plan = step.axis
        tables = [_first_indices(emit, tables[0], plan)] if plan and not plan.fixed else tables
    return emit.temp(step.op, value, *tables, **step.attrs)


def _picking(
    shape: Sequence[int], picked: Mapping[int, Array], axes: Mapping[int, ResizedAxis]
) -> list[_Step]:
    """Axes of which each result is one element: repeated, cut at even steps, or by a table."""
    repeats, begins = [1] * len(shape), [0] * len(shape)
    strides, extents = [1] * len(shape), list(shape)
    gathers: list[_Step] = []
    for axis, indices in picked.items():
        rows, made = np.arange(len(indices)), axes[axis].made
        step = int(indices[1] - indices[0]) if len(indices) > 1 else 1
        factor = axes[axis].factor
        if factor and np.array_equal(indices, rows // factor):
            repeats[axis] = factor
        elif step and np.array_equal(indices, indices[0] + step * rows):
            begins[axis], strides[axis], extents[axis] = int(indices[0]), step, made
        else:
            gathers.append(_Step("gather", {"axis": axis}, [indices], axes[axis]))
    steps: list[_Step] = []
    if not always_same(extents, shape) or any(begins):
        cut = {"begins": tuple(begins), "steps": tuple(strides), "extents": tuple(extents)}
        steps.append(_Step("slice", cut))
    steps += sorted(
        gathers, key=lambda s: len(s.constants[0]) / example(shape[int(s.attrs["axis"])])
    )
    if any(factor > 1 for factor in repeats):
        steps.append(_Step("repeat", {"repeats": tuple(repeats)}))
    return steps


def _mixing(
    shape: Sequence[int], mixed: Mapping[int, Taps], dtype: DType, axes: Mapping[int, ResizedAxis]
) -> list[_Step]:
    """Axes of which each result is a weighted sum, in as few ops as pay."""
    runs: list[list[int]] = []
    for axis in sorted(mixed, key=lambda axis: len(mixed[axis].indices) / example(shape[axis])):
        if runs and prod(mixed[d].count for d in (*runs[-1], axis)) <= _SHARED_TAPS:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return [
        _Step(
            "resample",
            {"axes": tuple(run), **_results(run, axes)},
            [
                table
                for axis in run
                for table in (mixed[axis].indices, mixed[axis].weights.astype(dtype))
            ],
        )
        for run in runs
    ]


def _results(run: Sequence[int], axes: Mapping[int, ResizedAxis]) -> dict[str, Any]:
    """The attribute that says how many results there are, where that depends on sizes."""
    if all(axes[axis].fixed for axis in run):
        return {}
    return {"results": tuple(axes[axis].made for axis in run)}


def _shown(found: Mapping[int, Taps], rank: int) -> Array | None:
    """bool, of the result's rank: where it shows the data at all; None if everywhere."""
    masks = {axis: ~t.outside for axis, t in found.items() if t.outside.any()}
    if not masks:
        return None
    sides = [
        mask.reshape([-1 if d == axis else 1 for d in range(rank)]) for axis, mask in masks.items()
    ]
    return np.asarray(reduce(np.logical_and, sides))


def _by_coordinates(axis: ResizedAxis, method: Method, dtype: DType) -> bool:
    """Whether coordinates are to be computed as the network runs.

    Raises: ModelError where nothing here does that.
    """
    if axis.fixed:
        return False
    alone = method.coordinates in _BY_SCALE_ALONE or (
        method.coordinates == "half_pixel_symmetric" and axis.factor
    )
    if method.coordinates == "pytorch_half_pixel" and axis.made == 1:
        raise ModelError("an axis that sometimes has one element; expected more for all sizes")
    edges = method.exclude_outside or method.antialias or method.coordinates == CROP
    if axis.scaled and alone and not edges:
        return False
    if edges or method.mode == "cubic" or not (dtype.is_float or method.mode == "nearest"):
        raise ModelError(
            f"resizing {axis.extent} elements to {axis.made} (mode '{method.mode}', coordinates "
            f"'{method.coordinates}'): expected extents that are the same for all sizes, or scales "
            "that are; fix the sizes that they depend on"
        )
    return True


def _first_indices(emit: Emitter, table: str, axis: ResizedAxis) -> str:
    """The table's indices for the axis, none behind its last element."""
    cut = emit.part(table, 0, 0, axis.made, "places")
    last = emit.numbers("last", [axis.extent - 1], INT32)
    return emit.temp("minimum", cut, last, label="inside")


def _resized_by_coordinates(
    emit: Emitter, value: str, axis: int, plan: ResizedAxis, method: Method
) -> str:
    """The value with that axis resized, by coordinates that are computed in float32."""
    return emit.temp(
        "resize_along",
        value,
        axis=axis,
        made=plan.made,
        mode=method.mode,
        coordinates=method.coordinates,
        rounding=method.rounding,
        scale=plan.scale if plan.scaled else 0.0,
    )
