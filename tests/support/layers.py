"""Layers, arrays and oracles for the tests of the accelerator."""

from itertools import product

import numpy as np

from retune.core.dtypes import INT8
from retune.core.errors import InputError
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.workload import (
    DATA,
    OUTPUT,
    WEIGHT,
    Convolution,
    Operand,
    Step,
    requantized,
)

SMALL = VtaConfig(
    log_block=2, log_uop_buff_size=10, log_inp_buff_size=10, log_wgt_buff_size=12,
    log_acc_buff_size=12,
)  # fmt: skip
"""Blocks of four channels, and memories of 256 elements: limits are met by small layers."""

BATCHED = VtaConfig(
    log_batch=1, log_block=2, log_uop_buff_size=10, log_inp_buff_size=11, log_wgt_buff_size=12,
    log_acc_buff_size=13,
)  # fmt: skip

PLAIN = Convolution(
    c=2, h=6, w=6, o=4, kernel=(3, 3), padding=(1, 1, 1, 1), steps=requantized(4, 0, 127)
)

WHOLE = Convolution(
    c=2, h=6, w=4, o=4, kernel=(3, 3), padding=(1, 1, 1, 1),
    operands=(
        Operand(name="bias", reach="channel"),
        Operand(name="shortcut", reach="image", dtype=INT8),
    ),
    steps=(
        Step(op="add", operand="bias"),
        Step(op="mul", imm=3, to="shortcut"),
        Step(op="add", operand="shortcut"),
        *requantized(3),
    ),
)  # fmt: skip
"""With everything that an epilogue has."""


def arrays_of(
    work: Convolution, config: VtaConfig, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Every input, of all values of its type but for large ones of int32."""
    found: dict[str, np.ndarray] = {}
    for name, (shape, dtype) in work.shapes(config).items():
        most = 128 if dtype == INT8 else 5000
        if name != OUTPUT:
            found[name] = rng.integers(-most, most, shape).astype(dtype)
    return found


def random_layer(rng: np.random.Generator) -> Convolution:
    """A small layer of any kind."""
    while True:
        kernel = tuple(int(k) for k in rng.integers(1, 4, 2))
        transposed = bool(rng.random() < 0.3)
        dilation = (1, 1) if transposed else tuple(int(d) for d in rng.integers(1, 3, 2))
        reach = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)] * 2
        try:
            return Convolution(
                n=int(rng.integers(1, 3)), c=int(rng.integers(1, 4)), o=int(rng.integers(1, 5)),
                h=int(rng.integers(1, 9)), w=int(rng.integers(1, 9)),
                kernel=kernel, dilation=dilation, strides=tuple(rng.integers(1, 3, 2).tolist()),
                padding=tuple(int(rng.integers(0, most + 1)) for most in reach),
                transposed=transposed,
                operands=WHOLE.operands if rng.random() < 0.5 else (),
                steps=(),
            )  # fmt: skip
        except InputError:
            continue


def naive(work: Convolution, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The output, one tap of one pixel after the other, from the definition."""
    x, w = arrays[DATA].astype(np.int64), arrays[WEIGHT].astype(np.int64)
    (rows, columns), (top, left, _, _) = work.out_size, work.padding
    (sh, sw), (dh, dw) = work.strides, work.dilation
    total = np.zeros((work.n, work.o, rows, columns, *x.shape[-2:]), np.int64)
    for dy, dx in product(*map(range, work.kernel)):
        for y, z in product(range(work.h), range(work.w)):
            products = np.einsum("ncbi,ocji->nobj", x[:, :, y, z], w[:, :, dy, dx])
            if work.transposed:
                i, j, fits = y * sh + dy - top, z * sw + dx - left, True
            else:
                i, j = y + top - dy * dh, z + left - dx * dw
                fits = i % sh == 0 and j % sw == 0
                i, j = i // sh, j // sw
            if fits and 0 <= i < rows and 0 <= j < columns:
                total[:, :, i, j] += products
    return _stepped(work, total, arrays)


def _stepped(work: Convolution, total: np.ndarray, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """The epilogue in int64, which nothing here leaves 32 bits of."""
    values: dict[str | None, np.ndarray] = {None: total}
    for operand in work.operands:
        array = arrays[operand.name].astype(np.int64)
        if operand.reach == "channel":
            array = array.reshape(work.o, -1, array.shape[-1])[None, :, None, None]
        values[operand.name] = array
    for step in work.steps:
        by = step.imm if step.imm is not None else values[step.operand]
        a = values[step.to]
        values[step.to] = {
            "min": np.minimum, "max": np.maximum,
            "add": lambda a, b: a + b, "mul": lambda a, b: a * b,
            "shr": lambda a, b: np.floor_divide(a, 2**b),
        }[step.op](a, by)  # fmt: skip
    return values[None].astype(np.int8)
