"""A packed layer as a tensor expression: schedules are made of it, and features taken from it."""

from collections.abc import Callable

from retune.core.dtypes import INT8, INT32
from retune.ir.expr import Const, Expr, all_of, binary, cast, const, equal, select
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.workload import DATA, OUTPUT, WEIGHT, AluOp, Convolution

SUMS = "conv2d_packed"
"""The stage of the sums; its loops are those of the output, then the channels and the window."""

AXES = ("bo", "co", "i", "j", "bi", "ci")
"""Of the output: blocks of the batch and of channels, row, column, and what lies inside a block."""


def expression(work: Convolution, config: VtaConfig) -> Dag:
    """The layer: padding, sums, and the steps with the conversion to int8 as one stage."""
    shapes = work.shapes(config)
    constant = {WEIGHT, *(operand.name for operand in work.channels())}
    read = {
        name: placeholder(name, shape, dtype, constant=name in constant)
        for name, (shape, dtype) in shapes.items()
        if name != OUTPUT
    }
    total = _sums(work, config, read)
    used = [total, *(read[operand.name] for operand in work.operands)]
    body = _steps(work, total, read)
    return Dag((compute(OUTPUT, total.shape, body, used, axes=AXES),))


def _sums(work: Convolution, config: VtaConfig, read: dict[str, Tensor]) -> Tensor:
    """Every output sums over its window.

    That of a transposed convolution is turned around, over an image with zeros between its pixels.
    """
    (kh, kw), (top, left, bottom, right), weight = work.kernel, work.padding, read[WEIGHT]
    begins, ends, apart = (top, left), (bottom, right), (1, 1)
    (sh, sw), (dh, dw) = work.strides, work.dilation
    if work.transposed:
        begins, ends = (kh - 1 - top, kw - 1 - left), (kh - 1 - bottom, kw - 1 - right)
        apart, (sh, sw), (dh, dw) = work.strides, (1, 1), (1, 1)
    source = _padded(read[DATA], begins, ends, apart)
    k_o, k_i = reduce_axis("k_o", work.c), reduce_axis("k_i", config.block)
    d_i, d_j = reduce_axis("d_i", kh), reduce_axis("d_j", kw)
    taps: tuple[Expr, Expr] = d_i.var, d_j.var
    if work.transposed:
        taps = kh - 1 - d_i.var, kw - 1 - d_j.var

    def body(bo: Expr, co: Expr, i: Expr, j: Expr, bi: Expr, ci: Expr) -> Expr:
        at = (bo, k_o.var, i * sh + d_i.var * dh, j * sw + d_j.var * dw, bi, k_i.var)
        tap = weight[(co, k_o.var, *taps, ci, k_i.var)]
        return cast(source[at], INT32) * cast(tap, INT32)

    shape = work.shapes(config)[OUTPUT][0]
    return compute(SUMS, shape, body, [source, weight], reduce=[k_o, d_i, d_j, k_i], axes=AXES)


def _padded(
    data: Tensor, begins: tuple[int, int], ends: tuple[int, int], apart: tuple[int, int]
) -> Tensor:
    """The image with zeros around it, and between pixels that are then so far `apart`.

    The image itself where there is nothing to add.
    """
    if not any((*begins, *ends)) and apart == (1, 1):
        return data
    sizes = [(n - 1) * gap + 1 for n, gap in zip(data.shape[2:4], apart, strict=True)]
    around = [b + n + e for b, n, e in zip(begins, sizes, ends, strict=True)]

    def body(bo: Expr, co: Expr, y: Expr, x: Expr, bi: Expr, ci: Expr) -> Expr:
        tests: list[Expr] = []
        positions: list[Expr] = []
        for at, begin, end, size, gap in zip((y, x), begins, ends, sizes, apart, strict=True):
            inside = at - begin
            tests += [at >= begin] if begin else []
            tests += [at < begin + size] if end else []
            tests += [equal(inside % gap, 0)] if gap > 1 else []
            positions.append(inside // gap if gap > 1 else inside)
        return select(all_of(*tests), data[(bo, co, *positions, bi, ci)], const(0, data.dtype))

    return compute("PaddedInput", (*data.shape[:2], *around, *data.shape[4:]), body, [data])


def _steps(work: Convolution, total: Tensor, read: dict[str, Tensor]) -> Callable[..., Expr]:
    """One element of the output."""

    def body(*i: Expr) -> Expr:
        values: dict[str | None, Expr] = {None: total[i]}
        for operand in work.operands:
            vector = (i[1], i[5]) if len(read[operand.name].shape) == 2 else (i[1], i[4], i[5])
            at = i if operand.reach == "image" else vector
            values[operand.name] = cast(read[operand.name][at], INT32)
        for step in work.steps:
            by = const(step.imm) if step.imm is not None else values[step.operand]
            values[step.to] = _alu(step.op, values[step.to], by)
        return cast(values[None], INT8)

    return body


def _alu(op: AluOp, a: Expr, b: Expr) -> Expr:
    if op == "shr" and isinstance(b, Const) and int(b.value) < 0:
        return binary("shl", a, const(-int(b.value)))
    return binary(op, a, b)
