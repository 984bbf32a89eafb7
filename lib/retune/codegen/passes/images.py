"""Constants that kernels read through images of four channels: what they hold, and which may.

Element `i` of the constant is channel `i % 4` of texel `i // 4`, and texels fill rows of the image
one after the other. Nothing is read by coordinates beyond that: an image is a constant's other way
to a core, by the cache for images. Read `ImagePack`, then `read_otherwise`.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from retune.codegen.kernel import At, MemoryLoad, Statement, parts
from retune.codegen.network.resident import WAYS
from retune.codegen.options import CHANNELS
from retune.codegen.source import Pack
from retune.codegen.target import ONE_BASE, Groups, Target
from retune.core.dtypes import FLOAT32
from retune.ir.expr import Buffer
from retune.ir.flat import elements

Image = tuple[int, int]
"""Texels of a row, and rows."""


@dataclass(frozen=True, slots=True)
class ImagePack:
    """A constant as an image holds it: whole rows of texels, zeros behind its elements."""

    row: int
    """Texels of a row."""
    rows: int
    order: Pack | None = None
    """How the constant is packed, where a kernel wants it in its own order."""

    @property
    def elements(self) -> int:
        """Of the image."""
        return self.rows * self.row * CHANNELS

    def apply(self, *arrays: np.ndarray) -> np.ndarray:
        """The image, flat: [rows of texels of four channels], of the constant's type."""
        array = arrays[0] if self.order is None else self.order.apply(*arrays)
        image = np.zeros(self.elements, array.dtype)
        image[: array.size] = array.reshape(-1)
        return image


def image_of(buffer: Buffer, texels: int) -> Image | None:
    """Texels of a row, and rows, of a constant as an image; None if it is none of whole texels.

    What fits into one row of `texels` has a row as long as it is.
    """
    size, rest = divmod(elements(buffer), CHANNELS)
    if rest or not size or buffer.dtype != FLOAT32:
        return None
    row = min(size, texels)
    return row, -(-size // row)


def fits_image(elements: int, dtype: str, row: int) -> bool:
    """Whether so many elements are whole rows of so many texels."""
    return dtype == FLOAT32 and row > 0 and elements > 0 and not elements % (CHANNELS * row)


def takes_images(target: Target, groups: Groups) -> bool:
    """Whether kernels of such groups may have images as arguments.

    Workers and persistent kernels call the function of a group with pointers, and kernels that
    reach all memory from one address have pointers as well.
    """
    return not groups.single_item and target.offers_none(ONE_BASE, *WAYS)


def read_otherwise(body: tuple[Statement, ...]) -> frozenset[str]:
    """Names of memory that would be images, and that a statement does not read by whole texels."""
    found = list(parts(body))
    touched = Counter(p.memory.name for p in found if isinstance(p, At) and p.memory.image)
    whole = Counter(p.at.memory.name for p in found if isinstance(p, MemoryLoad) and _is_texel(p))
    return frozenset(touched - whole)


def _is_texel(load: MemoryLoad) -> bool:
    at = load.at
    return at.lanes == CHANNELS and at.aligned and load.dtype == at.memory.dtype
