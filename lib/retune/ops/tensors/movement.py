"""Movements: each output element is one input element."""

from collections.abc import Sequence

from retune.core.dtypes import INT32
from retune.ir import te
from retune.ir.expr import Expr, cast, const, select
from retune.ir.te import Tensor, compute
from retune.ops.registry import integer, ints, number
from retune.ops.tensors.convolution import padded
from retune.ops.tensors.registry import OpCall, read, tensors_of


@tensors_of("transpose")
def transpose(c: OpCall) -> Tensor:
    """T_transpose(i...) = x[i in the input's order]."""
    (x,) = c.inputs
    perm = ints(c.attrs, "perm")
    return compute(
        c.name("T_transpose"),
        c.output.shape,
        lambda *i: x[tuple(i[perm.index(d)] for d in range(len(perm)))],
        [x],
    )


@tensors_of("reshape")
def reshape(c: OpCall) -> Tensor:
    """T_reshape(i...) = x at the same flat position."""
    (x,) = c.inputs
    made = c.output.shape

    def body(*i: Expr) -> Expr:
        axes = [axis for axis, n in zip(i, made, strict=True) if n != 1]
        if [n for n in x.shape if n != 1] == [n for n in made if n != 1]:
            own = iter(axes)
            return x[tuple(const(0) if n == 1 else next(own) for n in x.shape)]
        return x[_unflatten(_flatten(i, made), x.shape)]

    return compute(c.name("T_reshape"), made, body, [x])


def _flatten(axes: Sequence[Expr], shape: Sequence[int]) -> Expr:
    flat: Expr = const(0)
    for axis, extent in zip(axes, shape, strict=True):
        flat = flat * extent + (const(0) if extent == 1 else axis)
    return flat


def _unflatten(flat: Expr, shape: Sequence[int]) -> tuple[Expr, ...]:
    index: list[Expr] = []
    stride = 1
    for position in reversed(range(len(shape))):
        extent = shape[position]
        whole = flat // stride
        outermost = all(e == 1 for e in shape[:position])
        index.append(const(0) if extent == 1 else whole if outermost else whole % extent)
        stride *= extent
    return tuple(reversed(index))


@tensors_of("concat")
def concat(c: OpCall) -> Tensor:
    """The inputs side by side; an input that is there twice is copied first."""
    parts: list[Tensor] = []
    for part in c.inputs:
        parts.append(_copy(c, part) if part in parts else part)
    return te.concat(c.name("T_concat"), parts, integer(c.attrs, "axis"))


def _copy(c: OpCall, x: Tensor) -> Tensor:
    return compute(c.name("T_copy"), x.shape, lambda *i: x[i], [x])


@tensors_of("pad")
def pad(c: OpCall) -> Tensor:
    """T_pad(i...) = x where there is data, else the value."""
    (x,) = c.inputs
    return padded(x, ints(c.attrs, "pads"), c.name, number(c.attrs, "value"), "T_pad")


@tensors_of("slice")
def strided_slice(c: OpCall) -> Tensor:
    """T_slice(i...) = x[begins + i * steps]."""
    (x,) = c.inputs
    begins, steps = ints(c.attrs, "begins"), ints(c.attrs, "steps")

    def body(*i: Expr) -> Expr:
        return x[tuple(a * s + b for a, b, s in zip(i, begins, steps, strict=True))]

    return compute(c.name("T_slice"), c.output.shape, body, [x])


@tensors_of("gather")
def gather(c: OpCall) -> Tensor:
    """T_gather(a..., i..., b...) = x[a..., indices[i...], b...]; negative ones from the end."""
    x, indices = c.inputs
    axis, rank = integer(c.attrs, "axis"), len(indices.shape)
    extent = x.shape[axis]

    def body(*i: Expr) -> Expr:
        which = cast(indices[i[axis : axis + rank]], INT32)
        place = select(which < 0, which + extent, which)
        return x[(*i[:axis], place, *i[axis + rank :])]

    return compute(c.name("T_gather"), c.output.shape, body, [x, indices])


@tensors_of("broadcast_to")
def broadcast_to(c: OpCall) -> Tensor:
    """T_broadcast(i...) = x[i...], dimensions of extent 1 read at 0."""
    (x,) = c.inputs
    return compute(
        c.name("T_broadcast_to"), c.output.shape, lambda *i: read(x, i, c.output.shape), [x]
    )
