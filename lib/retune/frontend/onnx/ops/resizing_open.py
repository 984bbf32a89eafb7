"""Resizing along axes whose extents depend on sizes.

Where a scale is the same for all sizes, so are the coordinates: tables for the largest ones have
those of all. Elsewhere, read `resized_by_coordinates`: nodes compute coordinates as a network runs.
"""

import numpy as np

from retune.core.dtypes import FLOAT32, INT32, DType
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.registry import Emitter
from retune.frontend.onnx.ops.resizing import CROP, Method, ResizedAxis

_BY_SCALE_ALONE = ("half_pixel", "pytorch_half_pixel", "asymmetric", "tf_half_pixel_for_nn")
"""Coordinates that do not depend on the extents otherwise than by the scale."""


def by_coordinates(axis: ResizedAxis, method: Method, dtype: DType) -> bool:
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


def first_places(emit: Emitter, table: str, axis: ResizedAxis) -> str:
    """The table's places for the axis, none behind its last element."""
    cut = emit.part(table, 0, 0, axis.made, "places")
    last = emit.numbers("last", [axis.extent - 1], INT32)
    return emit.temp("minimum", cut, last, label="inside")


def resized_by_coordinates(
    emit: Emitter, value: str, axis: int, plan: ResizedAxis, method: Method
) -> str:
    """The value with that axis resized, by coordinates that are computed in float32."""
    x = _coordinates(emit, plan, method.coordinates)
    last = emit.numbers("last", [plan.extent - 1], INT32)
    zero = emit.stored("first", np.zeros(1, np.int32))

    def inside(places: str) -> str:
        whole = emit.cast(places, INT32)
        return emit.temp("minimum", emit.temp("maximum", whole, zero), last, label="inside")

    if method.mode == "nearest":
        return emit.temp("gather", value, inside(_rounded(emit, x, method, plan)), axis=axis)
    below = emit.temp("floor", x)
    above = emit.temp("add", below, _number(emit, 1.0))
    share = emit.temp("subtract", x, below, label="share")
    rest = emit.temp("subtract", _number(emit, 1.0), share, label="rest")
    places = emit.stacked([inside(below), inside(above)], 1)
    weights = emit.cast(emit.stacked([rest, share], 1), emit.type(value).dtype)
    return emit.temp("resample", value, places, weights, axes=(axis,))


def _number(emit: Emitter, value: float) -> str:
    return emit.stored("number", np.asarray(value, np.float32))


def _coordinates(emit: Emitter, plan: ResizedAxis, mode: str) -> str:
    """The place in the data of each element of the result, see `resizing.coordinates`."""
    i = emit.counted("i", (plan.made,), (1,), dtype=FLOAT32)
    extent, made = (emit.numbers("extent", [e], FLOAT32) for e in (plan.extent, plan.made))
    if mode == "align_corners":
        last, steps = (
            emit.numbers("last", [e], FLOAT32)
            for e in (plan.extent - 1, plan.made - 1 if plan.made > 1 else 1)
        )
        return emit.temp("quotient", emit.temp("multiply", i, last), steps, label="x")
    half = _number(emit, 0.5)
    shifted = i if mode == "asymmetric" else emit.temp("add", i, half)
    if plan.scaled:
        x = emit.temp("quotient", shifted, _number(emit, plan.scale), label="x")
    else:
        x = emit.temp("quotient", emit.temp("multiply", shifted, extent), made, label="x")
    return x if mode in ("asymmetric", "tf_half_pixel_for_nn") else emit.temp("subtract", x, half)


def _rounded(emit: Emitter, x: str, method: Method, plan: ResizedAxis) -> str:
    half = _number(emit, 0.5)
    match method.rounding:
        case "round_prefer_floor":
            return emit.temp("ceil", emit.temp("subtract", x, half))
        case "round_prefer_ceil":
            return emit.temp("floor", emit.temp("add", x, half))
        case "floor":
            return emit.temp("floor", x)
        case "ceil":
            return emit.temp("ceil", x)
        case _:
            return emit.temp("ceil" if plan.made < plan.extent else "floor", x)
