"""Resizing along axes whose extents depend on sizes.

Where a scale is the same for all sizes, so are the coordinates: tables for the largest ones have
those of all. Elsewhere they are computed as the network runs, see `by_coordinates`.
"""

from retune.core.dtypes import INT32, DType
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


def first_indices(emit: Emitter, table: str, axis: ResizedAxis) -> str:
    """The table's indices for the axis, none behind its last element."""
    cut = emit.part(table, 0, 0, axis.made, "places")
    last = emit.numbers("last", [axis.extent - 1], INT32)
    return emit.temp("minimum", cut, last, label="inside")


def resized_by_coordinates(
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
