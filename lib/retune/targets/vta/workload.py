"""Workloads of the accelerator: packed layers, and the ALU steps that follow them.

Read `Convolution` and `Step`. Channels lie in blocks: images are [n/B, c/C, h, w, B, C] with the
batch B and the block C of the configuration (NCHWnc), weights [o/C, i/C, kh, kw, C, C] (OIHWoi).
Sums are int32; the ALU's steps bring them to int8, which is all that is stored.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from retune.core.dtypes import INT8, INT32
from retune.core.errors import InputError
from retune.targets.vta.config import PAD_BITS, VtaConfig

DATA, WEIGHT, OUTPUT = "data", "weight", "output"
"""Names of arrays; operands of steps have their own."""

AluOp = Literal["min", "max", "add", "shr", "mul"]
Reach = Literal["channel", "image"]

IMM_LIMITS = (-(1 << 15), (1 << 15) - 1)
"""Of immediates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """An array that steps of the epilogue read."""

    name: str
    reach: Reach
    """`channel`: one number for each output channel, int32 [o/C, C]; with batches of more than one
    row [o/C, B, C], the same in each row. `image`: as the output, [n/B, o/C, h, w, B, C]."""
    dtype: Literal["int8", "int32"] = "int32"
    """int8 only for images, which are widened while they are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """`to = op(to, imm)`, or `to = op(to, operand)`, on the ALU in int32.

    `shr` rounds down; by a negative number it goes to the left.
    """

    op: AluOp
    imm: int | None = None
    operand: str | None = None
    to: str | None = None
    """An operand of reach `image` that is changed; None: the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A convolution of packed images, or its transpose, and its epilogue.

    A dense layer is a window of one by one over an image of one pixel. Sizes of channels and batch
    are counted in blocks.
    """

    n: int = 1
    c: int
    h: int
    w: int
    o: int
    kernel: tuple[int, int] = (1, 1)
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Top, left, bottom, right; of a transposed one what is cut off its result."""
    dilation: tuple[int, int] = (1, 1)
    transposed: bool = False
    steps: tuple[Step, ...] = ()
    operands: tuple[Operand, ...] = ()
    name: str = "conv2d"

    def __post_init__(self) -> None:
        """Raises: InputError for what the accelerator does not compute."""
        check(self)

    @property
    def window(self) -> tuple[int, int]:
        """Rows and columns that the kernel reaches over."""
        (kh, kw), (dh, dw) = self.kernel, self.dilation
        return (kh - 1) * dh + 1, (kw - 1) * dw + 1

    @property
    def out_size(self) -> tuple[int, int]:
        """Rows and columns of the result."""
        top, left, bottom, right = self.padding
        (sh, sw), (wh, ww) = self.strides, self.window
        if self.transposed:
            return (self.h - 1) * sh + wh - top - bottom, (self.w - 1) * sw + ww - left - right
        return (self.h + top + bottom - wh) // sh + 1, (self.w + left + right - ww) // sw + 1

    @property
    def zeros_around(self) -> tuple[int, int, int, int]:
        """Rows and columns of zeros that lie around its data on chip: top, left, bottom, right."""
        if not self.transposed:
            return self.padding
        top, left, bottom, right = (
            (k - 1 - cut) // s
            for k, s, cut in zip(2 * self.kernel, 2 * self.strides, self.padding, strict=True)
        )
        return top, left, bottom, right

    @property
    def taps(self) -> int:
        """Elements of the window."""
        return self.kernel[0] * self.kernel[1]

    def macs(self, config: VtaConfig) -> int:
        """Multiply-adds of the layer; of a transposed one without those by inserted zeros."""
        rows, columns = (self.h, self.w) if self.transposed else self.out_size
        return config.macs * self.n * self.o * self.c * rows * columns * self.taps

    def operand(self, name: str) -> Operand:
        """The operand of that name."""
        return next(operand for operand in self.operands if operand.name == name)

    def images(self) -> tuple[Operand, ...]:
        """The operands that are as large as the output."""
        return tuple(operand for operand in self.operands if operand.reach == "image")

    def channels(self) -> tuple[Operand, ...]:
        """The operands of one number for each channel."""
        return tuple(operand for operand in self.operands if operand.reach == "channel")

    def shapes(self, config: VtaConfig) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and type of every array by name: those read in order, then the output."""
        b, c = config.batch, config.block
        out = (self.n, self.o, *self.out_size, b, c)
        found: dict[str, tuple[tuple[int, ...], str]] = {
            DATA: ((self.n, self.c, self.h, self.w, b, c), INT8),
            WEIGHT: ((self.o, self.c, *self.kernel, c, c), INT8),
        }
        for operand in self.operands:
            rows = (b,) if b > 1 else ()
            shape = out if operand.reach == "image" else (self.o, *rows, c)
            found[operand.name] = (shape, operand.dtype)
        return {**found, OUTPUT: (out, INT8)}


def requantized(shift: int, low: int = -128, high: int = 127) -> tuple[Step, ...]:
    """The steps of a sum to a byte: `clip(sum >> shift, low, high)`."""
    return (
        *((Step(op="shr", imm=shift),) if shift else ()),
        Step(op="min", imm=high),
        Step(op="max", imm=low),
    )


# -- meaning -----------------------------------------------------------------------------------

_SAME = {"min": np.minimum, "max": np.maximum, "add": np.add, "mul": np.multiply}


def alu(op: str, a: np.ndarray, b: np.ndarray | int) -> np.ndarray:
    """What the ALU makes of int32 and int32, or an immediate; results keep their low 32 bits."""
    if op in _SAME:
        return _SAME[op](a, b)
    if isinstance(b, int):
        return a >> min(b, 31) if b >= 0 else np.left_shift(a, min(-b, 31))
    right = a >> np.clip(b, 0, 31)
    return np.where(b < 0, np.left_shift(a, np.clip(np.negative(b), 0, 31)), right)


# -- what is valid -----------------------------------------------------------------------------


def check(work: Convolution) -> None:
    """Raises: InputError naming what the accelerator does not compute."""
    sizes = (work.n, work.c, work.h, work.w, work.o, *work.kernel, *work.strides, *work.dilation)
    top, left, bottom, right = work.padding
    if min(sizes) < 1 or min(work.padding) < 0:
        raise _refused(
            work, "sizes, strides and dilations of at least 1, and padding of at least 0"
        )
    if min(work.out_size) < 1:
        raise _refused(work, f"a window that fits into the image; its result is {work.out_size}")
    if work.transposed and work.dilation != (1, 1):
        raise _refused(work, f"dilation (1, 1) of a transposed one; got {work.dilation}")
    wh, ww = work.window
    if max(top, bottom) >= wh or max(left, right) >= ww:
        raise _refused(work, f"padding {work.padding} smaller than the window {work.window}")
    most, found = (1 << PAD_BITS) - 1, work.zeros_around
    if max(found) > most:
        raise _refused(work, f"at most {most} rows and columns of zeros on a side, got {found}")
    names = [operand.name for operand in work.operands]
    if len({DATA, WEIGHT, OUTPUT, *names}) != 3 + len(names):
        raise _refused(work, f"operands of different names, got {names}")
    for operand in work.operands:
        if operand.reach == "channel" and operand.dtype != INT32:
            raise _refused(work, f"operand {operand.name!r} by channel to be int32")
    for step in work.steps:
        _check_step(work, step)


def _check_step(work: Convolution, step: Step) -> None:
    names = {operand.name: operand.reach for operand in work.operands}
    if (step.imm is None) == (step.operand is None):
        raise _refused(work, f"either an immediate or an operand, got {step}")
    if step.imm is not None and not IMM_LIMITS[0] <= step.imm <= IMM_LIMITS[1]:
        raise _refused(work, f"an immediate of 16 bits, got {step.imm}")
    if step.operand is not None and step.operand not in names:
        raise _refused(work, f"a step's operand among {list(names)}, got {step.operand!r}")
    if step.to is not None and names.get(step.to) != "image":
        raise _refused(work, f"a step to change an operand of reach image, got {step.to!r}")


def _refused(work: Convolution, expected: str) -> InputError:
    return InputError(f"VTA {work.name}: expected {expected}")
