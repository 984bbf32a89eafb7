"""A convolution of bytes by the dot-product instruction, beside the same tile in float32.

    python -m benchmarks.dot_product

A 3x3 convolution of 64 to 64 channels on 56 x 56 pixels, in a register tile of 14 pixels by two
vectors of channels: uint8 data and int8 weights with int32 sums, the weights in words of four
input channels. Every result is verified before it is timed. Prints 10^9 operations a second of
both, medians, measured in turns.
"""

from functools import partial
from statistics import median
from tempfile import TemporaryDirectory

import retune
from retune.core.dtypes import FLOAT32, INT8, INT32, UINT8
from retune.ir.expr import Expr, cast
from retune.ir.te import Tensor, compute, placeholder, reduce_axis

CHANNELS, SIZE, WINDOW = 64, 56, 3
PIXELS, LANES, VECTORS = 14, 16, 2
ROUNDS = 5


def convolution(dtype: str) -> Tensor:
    """NHWC on data that is padded already; bytes are summed as int32."""
    whole = SIZE + WINDOW - 1
    x = placeholder("x", (1, whole, whole, CHANNELS), UINT8 if dtype == INT8 else dtype)
    w = placeholder("w", (WINDOW, WINDOW, CHANNELS, CHANNELS), dtype, constant=True)
    ry, rx = reduce_axis("ry", WINDOW), reduce_axis("rx", WINDOW)
    rc = reduce_axis("rc", CHANNELS)
    result = INT32 if dtype == INT8 else dtype

    def product(n: Expr, yy: Expr, xx: Expr, ff: Expr) -> Expr:
        pixel = x[n, yy + ry.var, xx + rx.var, rc.var]
        return cast(pixel, result) * cast(w[ry.var, rx.var, rc.var, ff], result)

    shape = (1, SIZE, SIZE, CHANNELS)
    return compute("conv", shape, product, [x, w], reduce=(ry, rx, rc))


def tile(s: retune.Schedule, *, dots: bool) -> None:
    """Rows of pixels and blocks of channels are work-groups; the tile is written out."""
    out = s.cache_write("conv")
    _, rows, columns, channels = s.loops(out)
    strip, pixel = s.split(columns, [PIXELS])
    block, vector, lane = s.split(channels, [VECTORS, LANES])
    s.reorder(rows, strip, block, pixel, vector, lane)
    s.compute_at("conv", block)
    for loop, axis in ((rows, "group.2"), (strip, "group.1"), (block, "group.0")):
        s.bind(loop, axis)
    ry, rx, deep = (n for n in s.loops("conv") if s.loop(n).reduce)
    words: list[str] = []
    if dots:
        deep, *words = s.split(deep, [4])
        s.tensorize(words[0], "dot4")
    vectors, lanes = s.split("conv.ff", [LANES])
    s.reorder(ry, rx, deep, "conv.xx", vectors, lanes, *words)
    s.vectorize(lanes)
    s.vectorize(lane)
    for loop in ("conv.xx", vectors, pixel, vector):
        s.unroll(loop)
    s.pack("w")


def main() -> None:
    """Measures both in turns and prints the rates."""
    operations = 2 * SIZE * SIZE * CHANNELS * CHANNELS * WINDOW * WINDOW
    kinds = {FLOAT32: False, INT8: True}
    times: dict[str, list[float]] = {dtype: [] for dtype in kinds}
    with TemporaryDirectory() as folder:
        for _ in range(ROUNDS):
            for dtype, dots in kinds.items():
                program = convolution(dtype)
                space = retune.space_for(program, partial(tile, dots=dots))
                only = space.candidate(space.everyone(), 0)
                (found,) = retune.measure(program, [only], space=space, records=folder)
                assert found.median_us is not None, found.error
                times[dtype].append(found.median_us)
    rates = {dtype: operations / median(values) / 1e3 for dtype, values in times.items()}
    for dtype, rate in rates.items():
        print(f"{dtype:8} {rate:8.0f} GOP/s")
    print(f"ratio    {rates['int8'] / rates['float32']:8.2f}")


if __name__ == "__main__":
    main()
