"""Tables of resizing: the elements and weights that make up each resized element.

`taps` is the name to read first. Everything is computed while importing, in float64; but where a
coordinate decides which element is meant (the nearest one, or whether it lies outside of a crop) it
is computed in float32, the type of the scales in the file: 1 / float32(1 / 3) is then 3 again.
"""

from dataclasses import dataclass, replace

import numpy as np

from retune.core.dims import always_equal, is_fixed, most
from retune.core.errors import ModelError
from retune.ops import Array
from retune.ops.extents import Ratio

CROP = "tf_crop_and_resize"
"""The coordinates that depend on a region of interest, and may lie outside of the data."""
COORDINATES = (
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners"),
    *("asymmetric", "tf_half_pixel_for_nn", CROP),
)
"""The ways from an element of the result to a coordinate of the data."""
BY_SCALE = "by_scale"
"""The rounding of the first versions: down where an axis grows, up where it shrinks."""
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", BY_SCALE)
_BEHIND = 8
"""Elements behind the last one, more than a filter reaches there."""
_RADIUS = {"linear": 1, "cubic": 2}
"""Mode -> how many elements on each side of a coordinate make up its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How values between elements are made: the attributes of a Resize node."""

    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    cubic: float = -0.75
    """The coefficient of the cubic filter."""
    exclude_outside: bool = False
    """Elements past the edges count for nothing, instead of being those at the edges."""
    antialias: bool = False
    """The filter is as wide as an element of the result, where that is more than one."""

    def __post_init__(self) -> None:
        for what, found, known in (
            ("mode", self.mode, ("nearest", *_RADIUS)),
            ("coordinate_transformation_mode", self.coordinates, COORDINATES),
            ("nearest_mode", self.rounding, ROUNDINGS),
        ):
            if found not in known:
                raise ModelError(f"{what} '{found}' is not known; expected one of {list(known)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedAxis:
    """A dimension to be resized; its extents may depend on sizes."""

    extent: int
    made: int
    """Its extent afterwards."""
    scale: float
    whole: float
    """What the extent would be if it could be a fraction."""
    start: float = 0.0
    end: float = 1.0
    """The region of interest, as parts of the extent; used by crops alone."""

    @property
    def fixed(self) -> bool:
        """Whether it is the same for all sizes."""
        return is_fixed(self.extent) and is_fixed(self.made)

    @property
    def factor(self) -> int:
        """How many results there are for each element; 0 if that is not a whole number for all
        sizes."""
        found = self.made // self.extent
        return found if is_fixed(found) and always_equal(found * self.extent, self.made) else 0

    @property
    def keeps(self) -> bool:
        """Whether its extent, which depends on sizes, stays what it is."""
        return not self.fixed and always_equal(self.extent, self.made)

    @property
    def scaled(self) -> bool:
        """Whether the scale is the same for all sizes."""
        share = Ratio.of(self.scale)
        return always_equal(self.extent * share.top // share.bottom, self.made)

    @property
    def longest(self) -> "ResizedAxis":
        """The same for the largest sizes, with more elements than are read.

        Where coordinates depend on the scale alone, it has the coordinates of all of them.
        """
        made, read = most(self.made), int(np.ceil(most(self.made) / self.scale))
        extent = max(most(self.extent), read) + _BEHIND
        return replace(self, extent=extent, made=made, whole=float(made))


@dataclass(frozen=True, slots=True, eq=False)
class Taps:
    """Each element of a result as a weighted sum: arrays [result, taps], `outside` [result]."""

    indices: Array
    """int32: elements of the data."""
    weights: Array
    """float64; those of an element add up to 1."""
    outside: Array
    """bool: the element shows nothing of the data, but a value that is stated."""

    @property
    def count(self) -> int:
        """Elements of the data for each one of the result, at most."""
        return self.indices.shape[1]

    @property
    def picks(self) -> Array | None:
        """int32 [result]: the element that each one is equal to; None where values are mixed."""
        single = self.count == 1 and bool(np.all(self.weights == 1))
        return self.indices[:, 0] if single else None


def taps(axis: ResizedAxis, method: Method) -> Taps:
    """How the axis is resized by the method.

    If its extents depend on sizes: for the largest ones, and as if there were elements behind the
    last one.
    """
    axis = axis if axis.fixed else axis.longest
    crop = method.coordinates == CROP
    exact = np.float32 if crop or method.mode == "nearest" else np.float64
    x = coordinates(axis, method.coordinates, exact)
    outside = (x < 0) | (x > axis.extent - 1) if crop else np.zeros(len(x), np.bool_)
    if method.mode == "nearest":
        indices = _rounded(x, method.rounding, axis.scale < 1)[:, None]
        weights = np.ones(indices.shape)
    else:
        indices, weights = _filtered(x.astype(np.float64), axis, method)
    indices = np.clip(indices, 0, axis.extent - 1).astype(np.int32)
    used = weights.any(axis=0)
    return Taps(indices[:, used], weights[:, used], outside)


def coordinates(axis: ResizedAxis, mode: str, exact: type[np.floating]) -> Array:
    """The index in the data of each element of the result, computed in the type `exact`.

    Corners are aligned with those of the result, as onnxruntime and PyTorch do: where a scale makes
    no whole number, ONNX's reference takes the fraction and meets no corner.
    """
    i = np.arange(axis.made, dtype=exact)
    scale, whole, last = exact(axis.scale), exact(axis.whole), exact(axis.extent - 1)
    half = exact(0.5)
    match mode:
        case "asymmetric":
            return i / scale
        case "tf_half_pixel_for_nn":
            return (i + half) / scale
        case "pytorch_half_pixel" if axis.made == 1:
            return np.zeros_like(i)
        case "half_pixel_symmetric":
            offset = exact(axis.extent) / 2 * (1 - exact(axis.made) / whole)
            return offset + (i + half) / scale - half
        case "align_corners":
            return i * last / exact(max(axis.made - 1, 1))
        case "tf_crop_and_resize":
            start, end = exact(axis.start), exact(axis.end)
            if axis.made == 1:
                return np.full_like(i, half * (start + end) * last)
            return start * last + i * (end - start) * last / exact(axis.made - 1)
        case _:
            return (i + half) / scale - half


def _rounded(x: Array, rounding: str, shrinks: bool) -> Array:
    match rounding:
        case "round_prefer_floor":
            return np.ceil(x - np.float32(0.5))
        case "round_prefer_ceil":
            return np.floor(x + np.float32(0.5))
        case "floor":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
        case _:
            return np.ceil(x) if shrinks else np.floor(x)


def _filtered(x: Array, axis: ResizedAxis, method: Method) -> tuple[Array, Array]:
    """Indices, which may lie outside of the data, and weights."""
    stretch = max(1.0, 1.0 / axis.scale) if method.antialias else 1.0
    radius = int(np.ceil(_RADIUS[method.mode] * stretch))
    indices = np.floor(x)[:, None] + np.arange(1 - radius, radius + 1)
    distance = np.abs(indices - x[:, None]) / stretch
    if method.mode == "linear":
        weights = np.maximum(1 - distance, 0)
    else:
        weights = cubic_weights(distance, method.cubic)
    if method.exclude_outside:
        weights = np.where((indices < 0) | (indices >= axis.extent), 0, weights)
    if method.exclude_outside or method.antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    return indices, weights


def cubic_weights(distance: Array, a: float) -> Array:
    """The cubic convolution filter at these distances, which are not negative.

    Source: R. Keys, Cubic convolution interpolation for digital image processing, 1981, eq. 4
    """
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
