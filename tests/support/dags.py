"""Tensor expressions for tests: fixed ones by name, random small ones, and one tiled by hand."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from retune.core.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    INT8,
    INT32,
    UINT8,
    DType,
    TensorType,
)
from retune.ir.expr import (
    Buffer,
    Expr,
    Load,
    all_of,
    binary,
    cast,
    const,
    equal,
    maximum,
    minimum,
    redirect,
    select,
)
from retune.ir.functions import call
from retune.ir.moved import moved_as_stored
from retune.ir.stmt import from_dag
from retune.ir.te import (
    Compute,
    Dag,
    Tensor,
    compute,
    concat,
    placeholder,
    reduce_axis,
    remade,
    stored,
)
from retune.ops.packed import dense_blocks
from retune.ops.registry import Names, OpCall
from retune.schedule.schedule import Schedule

Choose = Callable[[int], int]
"""`choose(n)` gives an integer in [0, n): from hypothesis, or from a seeded generator."""


def pick(choose: Choose, options: list[int]) -> int:
    """One of the options."""
    return options[choose(len(options))]


def dense(rows: int, inner: int, outer: int, *, epilogue: bool = True) -> Dag:
    """`relu(x @ w.T + b)`, or the product alone."""
    x = placeholder("x", (rows, inner))
    w = placeholder("w", (outer, inner), constant=True)
    b = placeholder("b", (outer,), constant=True)
    k = reduce_axis("k", inner)
    y = compute("y", (rows, outer), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))
    if not epilogue:
        return Dag((y,))
    z = compute("z", (rows, outer), lambda i, j: maximum(y[i, j] + b[j], 0.0), [y, b])
    return Dag((z,))


def packed_product(
    rows: int, blocks: int, words: int, outer: int, bits: int, *, integers: bool = False
) -> Dag:
    """Rows times a weight of codes in `blocks` of `words`, then a rectifier.

    With `integers` rows are quantized, too.
    """
    x = placeholder("x", (rows, blocks * words * 32 // bits))
    w = placeholder("w", (outer, blocks, words), INT32, constant=True)
    scale = placeholder("scale", (outer, blocks), constant=True)
    zero = placeholder("zero", (outer, blocks), UINT8, constant=True)
    made = OpCall(
        op="dense_blocks",
        inputs=(x, w, scale, zero),
        attrs={"bits": bits} | ({"rows": INT8} if integers else {}),
        output=TensorType((rows, outer)),
        name=Names(),
    )
    y = dense_blocks(made)
    return Dag((compute("out", y.shape, lambda i, j: maximum(y[i, j], 0.0), [y]),))


def batched_product(batch: int, rows: int, inner: int, outer: int) -> Dag:
    """`a @ b * 0.125` of matrices, none of them known before."""
    a, b = placeholder("a", (batch, rows, inner)), placeholder("b", (batch, inner, outer))
    k = reduce_axis("k", inner)
    shape = (batch, rows, outer)
    y = compute("y", shape, lambda h, i, j: a[h, i, k] * b[h, k, j], [a, b], reduce=(k,))
    return Dag((compute("z", shape, lambda h, i, j: y[h, i, j] * 0.125, [y]),))


def byte_product(
    rows: int, inner: int, outer: int, *, first: str = UINT8, second: str = INT8
) -> Dag:
    """`int32(x) @ int32(w).T` of bytes."""
    x = placeholder("x", (rows, inner), first)
    w = placeholder("w", (outer, inner), second, constant=True)
    return product_of_bytes(x, w)


def pair_product(rows: int, inner: int, outer: int) -> Dag:
    """`x @ w.T` of bfloat16, added up in float32."""
    x = placeholder("x", (rows, inner), BFLOAT16)
    w, k = placeholder("w", (outer, inner), BFLOAT16, constant=True), reduce_axis("k", inner)
    product = compute("y", (rows, outer), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))
    return Dag((product,))


def attended(rows: int, inner: int, outer: int, *, keys: bool) -> Dag:
    """`x @ w` of bfloat16, neither of which is a constant; w has rows of keys, or of values."""
    x = placeholder("x", (rows, inner), BFLOAT16)
    given = placeholder("w", (outer, inner) if keys else (inner, outer), BFLOAT16)
    w, k = given, reduce_axis("k", inner)
    if keys:
        turned = compute("turned", (inner, outer), lambda i, j: given[j, i], [given])
        w = stored(turned, BFLOAT16)
    return Dag((compute("y", (rows, outer), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,)),))


def attended_by_heads(heads: int, rows: int, inner: int, outer: int) -> Dag:
    """Values of several heads that each row attends to, of bfloat16; the heads are side by side."""
    p = placeholder("p", (heads, rows, inner), BFLOAT16)
    v, k = placeholder("v", (inner, heads, outer), BFLOAT16), reduce_axis("k", inner)
    made = compute(
        "y",
        (rows, heads, outer),
        lambda i, h, j: p[h, i, k] * v[k, h, j],
        [p, v],
        reduce=(k,),
    )
    return Dag((made,))


def in_bfloat16(dag: Dag) -> Dag:
    """The DAG with all that it reads and makes in bfloat16."""

    def change(tensor: Tensor, made: Mapping[Buffer, Tensor]) -> Tensor:
        ends = tensor.op is None or tensor in dag.outputs
        buffer = replace(tensor.buffer, dtype=BFLOAT16) if ends else tensor.buffer
        if not isinstance(tensor.op, Compute):
            return Tensor(buffer)
        body = redirect(tensor.op.body, lambda x: Load(made[x.buffer].buffer, x.indices))
        inputs = tuple(made[t.buffer] for t in tensor.op.inputs)
        return Tensor(buffer, replace(tensor.op, body=body, inputs=inputs))

    return moved_as_stored(remade(dag, change))


def product_of_bytes(x: Tensor, w: Tensor) -> Dag:
    """`int32(x) @ int32(w).T` of two given matrices."""
    k = reduce_axis("k", w.shape[1])

    def product(i, j):
        return cast(x[i, k], INT32) * cast(w[j, k], INT32)

    shape = (x.shape[0], w.shape[0])
    return Dag((compute("y", shape, product, [x, w], reduce=(k,)),))


def byte_conv2d(h: int, w: int, c: int, f: int, window: int = 3, stride: int = 1) -> Dag:
    """NHWC convolution of uint8 with int8, a border of the zero point around, back to uint8."""
    x = placeholder("x", (1, h, w, c), UINT8)
    k = placeholder("k", (window, window, c, f), INT8, constant=True)
    scale, pad = placeholder("s", (f,), INT32, constant=True), window // 2
    source = padded(x, pad, 5.0) if pad else x
    ry, rx, rc = (reduce_axis(n, e) for n, e in (("ry", window), ("rx", window), ("rc", c)))

    def product(nn, yy, xx, ff):
        pixel = source[nn, yy * stride + ry.var, xx * stride + rx.var, rc.var]
        return cast(pixel, INT32) * cast(k[ry.var, rx.var, rc.var, ff], INT32)

    oh, ow = ((size + 2 * pad - window) // stride + 1 for size in (h, w))
    y = compute("conv", (1, oh, ow, f), product, [source, k], reduce=(ry, rx, rc))

    def code(nn, yy, xx, ff):
        scaled = binary("shr", y[nn, yy, xx, ff] * scale[ff], const(6))
        return cast(minimum(maximum(scaled, const(0)), const(255)), UINT8)

    return Dag((compute("out", (1, oh, ow, f), code, [y, scale], axes=AXES),))


def half_product(
    rows: int, inner: int, outer: int, dtype: DType = FLOAT16, *, beside: bool = False
) -> Dag:
    """`relu(x @ w.T)` of 16-bit floats, or `relu(x @ w.T + r)`, in float32."""
    x = placeholder("x", (rows, inner), dtype)
    w = placeholder("w", (outer, inner), dtype, constant=True)
    k = reduce_axis("k", inner)
    y = compute("y", (rows, outer), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=(k,))
    if beside:
        r = placeholder("r", y.shape, dtype)
        return Dag((compute("z", y.shape, lambda *i: maximum(y[*i] + r[*i], 0.0), [y, r]),))
    return Dag((compute("z", y.shape, lambda i, j: maximum(y[i, j], 0.0), [y]),))


def half_products(
    heads: int, rows: int, inner: int, outer: int, *, turned: bool, dtype: DType = FLOAT16
) -> Dag:
    """`x @ w` of two activations for each head, or `x @ w.T`, of 16-bit floats, in float32."""
    x = placeholder("x", (heads, rows, inner), dtype)
    w = placeholder("w", (heads, outer, inner) if turned else (heads, inner, outer), dtype)
    k = reduce_axis("k", inner)

    def product(b, i, j):
        return x[b, i, k] * (w[b, j, k] if turned else w[b, k, j])

    y = compute("y", (heads, rows, outer), product, [x, w], reduce=(k,))
    return Dag((compute("z", y.shape, lambda b, i, j: y[b, i, j] * 0.125, [y]),))


def half_conv2d(
    h: int,
    w: int,
    c: int,
    f: int,
    window: int = 3,
    stride: int = 1,
    dtype: DType = FLOAT16,
    groups: int = 1,
    images: int = 1,
) -> Dag:
    """NHWC convolution of 16-bit floats with zeros around, and a bias, in float32."""
    x, own = placeholder("x", (images, h, w, c), dtype), c // groups
    k = placeholder("k", (window, window, own, f), dtype, constant=True)
    b, pad = placeholder("b", (f,), dtype, constant=True), window // 2
    source = stored(padded(x, pad), dtype) if pad else x
    ry, rx, rc = (reduce_axis(n, e) for n, e in (("ry", window), ("rx", window), ("rc", own)))

    def product(nn, yy, xx, ff):
        channel = rc.var if groups == 1 else ff // (f // groups) * own + rc.var
        pixel = source[nn, yy * stride + ry.var, xx * stride + rx.var, channel]
        return pixel * k[ry.var, rx.var, rc.var, ff]

    oh, ow = ((size + 2 * pad - window) // stride + 1 for size in (h, w))
    y = compute("conv", (images, oh, ow, f), product, [source, k], reduce=(ry, rx, rc))
    added = compute("out", y.shape, lambda n, i, j, m: y[n, i, j, m] + b[m], [y, b], axes=AXES)
    return Dag((added,))


def conv2d(
    n: int, h: int, w: int, c: int, f: int, window: int = 3,
    *, stride: int = 1, pad: int = 1, dilation: int = 1, groups: int = 1, residual: bool = False,
    gated: bool = False,
) -> Dag:  # fmt: skip
    """NHWC convolution with bias, optional residual input, and rectifier.

    `gated`: of data whose channels are scaled before, and rectified.
    """
    x = _data((n, h, w, c), gated=gated)
    k = placeholder("k", (window, window, c // groups, f), constant=True)
    b = placeholder("b", (f,), constant=True)
    reach = dilation * (window - 1) + 1
    oh, ow = ((size + 2 * pad - reach) // stride + 1 for size in (h, w))
    source = padded(x, pad) if pad else x
    taps = [reduce_axis(name, window) for name in ("ry", "rx")] if window > 1 else []
    ry, rx = [axis.var for axis in taps] or [const(0), const(0)]
    rc = reduce_axis("rc", c // groups)
    per_group = f // groups

    def product(nn, yy, xx, ff):
        channel = rc.var if groups == 1 else (ff // per_group) * (c // groups) + rc.var
        row, column = yy * stride + ry * dilation, xx * stride + rx * dilation
        return source[nn, row, column, channel] * k[ry, rx, rc, ff]

    shape = (n, oh, ow, f)
    y = compute("conv", shape, product, [source, k], reduce=(*taps, rc))
    inputs = [y, b]
    total = partial(_biased, y, b)
    if residual:
        r = placeholder("r", shape)
        inputs.append(r)
        z = compute("out", shape, lambda *i: maximum(total(*i) + r[i], 0.0), inputs, axes=AXES)
    else:
        z = compute("out", shape, lambda *i: maximum(total(*i), 0.0), inputs, axes=AXES)
    return Dag((z,))


def strip(
    n: int, h: int, w: int, c: int, f: int, window: tuple[int, int],
    *, same: bool = True, residual: bool = False, channels_first: bool = False,
) -> Dag:  # fmt: skip
    """Convolution by a window of one row or column, with rectifier and optional residual input.

    `same`: with as many zeros around that the output is as large as the input.
    """
    dim = window.index(1) ^ 1
    at = 2 + dim if channels_first else 1 + dim
    taps, sizes = max(window), [h, w]
    x = placeholder("x", (n, c, h, w) if channels_first else (n, h, w, c))
    k = placeholder("k", (f, c, *window) if channels_first else (*window, c, f), constant=True)
    source = _bordered(x, at, taps // 2) if same else x
    sizes[dim] -= 0 if same else taps - 1
    tap, rc = reduce_axis("r", taps), reduce_axis("rc", c)

    def product(nn, *i):
        ff, *place = i if channels_first else (i[2], *i[:2])
        place[dim] = place[dim] + tap.var
        moved = [const(0), const(0)]
        moved[dim] = tap.var
        if channels_first:
            return source[nn, rc.var, place[0], place[1]] * k[ff, rc.var, moved[0], moved[1]]
        return source[nn, place[0], place[1], rc.var] * k[moved[0], moved[1], rc.var, ff]

    shape = (n, f, *sizes) if channels_first else (n, *sizes, f)
    y = compute("conv", shape, product, [source, k], reduce=(tap, rc))
    if not residual:
        return Dag((compute("out", shape, lambda *i: maximum(y[i], 0.0), [y]),))
    r = placeholder("r", shape)
    return Dag((compute("out", shape, lambda *i: maximum(y[i] + r[i], 0.0), [y, r]),))


def _bordered(x: Tensor, dim: int, pad: int) -> Tensor:
    """`x` with zeros around one dimension."""
    shape = list(x.shape)
    extent, shape[dim] = shape[dim], shape[dim] + 2 * pad

    def value(*i):
        inside = all_of(i[dim] >= pad, i[dim] < extent + pad)
        return select(inside, x[(*i[:dim], i[dim] - pad, *i[dim + 1 :])], 0.0)

    return compute("bordered", shape, value, [x])


AXES = ("nn", "yy", "xx", "ff")


def _biased(y: Tensor, b: Tensor, *i):
    return y[i] + b[i[3]]


def padded(x: Tensor, pad: int, border: float = 0.0) -> Tensor:
    """`x` [n, h, w, c] with a border around h and w."""
    n, h, w, c = x.shape

    def value(nn, yy, xx, cc):
        inside = all_of(yy >= pad, yy < h + pad, xx >= pad, xx < w + pad)
        return select(inside, x[nn, yy - pad, xx - pad, cc], const(border, x.dtype))

    return compute("padded", (n, h + 2 * pad, w + 2 * pad, c), value, [x])


def _data(shape: tuple[int, int, int, int], *, gated: bool) -> Tensor:
    x = placeholder("x", shape)
    if not gated:
        return x
    g = placeholder("g", (shape[0], shape[-1]))
    return compute("gated", shape, lambda n, *i: maximum(x[n, *i] * g[n, i[-1]], 0.0), [x, g])


def depthwise(
    n: int, h: int, w: int, c: int, *, stride: int = 1, window: int = 3, gated: bool = False
) -> Dag:
    """NHWC depthwise convolution with zeros around the map, half a window wide, and relu6."""
    x = _data((n, h, w, c), gated=gated)
    k = placeholder("k", (window, window, c), constant=True)
    source = padded(x, window // 2)
    ry, rx = reduce_axis("ry", window), reduce_axis("rx", window)
    shape = (n, (h - 1) // stride + 1, (w - 1) // stride + 1, c)
    y = compute(
        "conv",
        shape,
        lambda nn, yy, xx, cc: (
            source[nn, yy * stride + ry.var, xx * stride + rx.var, cc] * k[ry, rx, cc]
        ),
        [source, k],
        reduce=(ry, rx),
    )
    z = compute("out", shape, lambda *i: minimum(maximum(y[i], 0.0), 6.0), [y], axes=AXES)
    return Dag((z,))


def pool(n: int, h: int, w: int, c: int, window: int, stride: int, *, average: bool) -> Dag:
    """Pooling without padding."""
    x = placeholder("x", (n, h, w, c))
    ry, rx = reduce_axis("ry", window), reduce_axis("rx", window)
    shape = (n, (h - window) // stride + 1, (w - window) // stride + 1, c)
    y = compute(
        "pool",
        shape,
        lambda nn, yy, xx, cc: x[nn, yy * stride + ry.var, xx * stride + rx.var, cc],
        [x],
        reduce=(ry, rx),
        reducer="sum" if average else "max",
    )
    if not average:
        return Dag((y,))
    area = float(window * window)
    return Dag((compute("mean", shape, lambda *i: y[i] / area, [y], axes=AXES),))


def softmax(rows: int, columns: int) -> Dag:
    """Softmax over the last axis: two reductions and two element-wise stages."""
    x = placeholder("x", (rows, columns))
    k, q = reduce_axis("k", columns), reduce_axis("q", columns)
    top = compute("top", (rows,), lambda i: x[i, k], [x], reduce=(k,), reducer="max")
    e = compute("e", (rows, columns), lambda i, j: call("exp", x[i, j] - top[i]), [x, top])
    total = compute("total", (rows,), lambda i: e[i, q], [e], reduce=(q,))
    y = compute("y", (rows, columns), lambda i, j: e[i, j] / total[i], [e, total])
    return Dag((y,))


def standardised(rows: int, columns: int) -> Dag:
    """Layer normalisation: a sum, a sum of squares that needs it, and what needs both."""
    x = placeholder("x", (rows, columns))
    k, q = reduce_axis("k", columns), reduce_axis("q", columns)
    share = 1.0 / columns
    total = compute("total", (rows, 1), lambda i, _: x[i, k], [x], reduce=(k,))

    def apart(i: Expr, j: Expr) -> Expr:
        return x[i, j] - total[i, 0] * share

    squares = compute(
        "squares",
        (rows, 1),
        lambda i, _: apart(i, q.var) * apart(i, q.var),
        [x, total],
        reduce=(q,),
    )
    y = compute(
        "y",
        (rows, columns),
        lambda i, j: apart(i, j) * (1.0 / call("sqrt", squares[i, 0] * share + 1e-5)),
        [x, total, squares],
    )
    return Dag((y,))


def elementwise(rows: int, columns: int) -> Dag:
    """A chain with a selection over the index, a function and a comparison of values."""
    x = placeholder("x", (rows, columns))
    s = placeholder("s", (columns,), constant=True)
    a = compute("a", (rows, columns), lambda i, j: x[i, j] * s[j] + 0.5, [x, s])
    b = compute(
        "b",
        (rows, columns),
        lambda i, j: select(j < columns // 2, call("tanh", a[i, j]), a[i, j]),
        [a],
    )
    c = compute("c", (rows, columns), lambda i, j: select(b[i, j] > 0.25, b[i, j], -0.5), [b])
    return Dag((c,))


def integers(rows: int, columns: int) -> Dag:
    """int8 products summed in int32, a floor division of possibly negative data, and a cast."""
    x = placeholder("x", (rows, columns), INT8)
    w = placeholder("w", (columns,), INT8, constant=True)
    k = reduce_axis("k", columns)
    y = compute(
        "y", (rows,), lambda i: cast(x[i, k], INT32) * cast(w[k], INT32), [x, w], reduce=(k,)
    )
    z = compute("z", (rows,), lambda i: (y[i] - 7) // 3 + (y[i] - 9) % 4, [y])
    return Dag((compute("f", (rows,), lambda i: cast(z[i], FLOAT32) * 0.5, [z]),))


def transpose(a: int, b: int, c: int) -> Dag:
    """`x` [a, b, c] with its axes in the order 2, 0, 1, then scaled."""
    x = placeholder("x", (a, b, c))
    y = compute("y", (c, a, b), lambda i, j, k: x[j, k, i], [x])
    return Dag((compute("z", (c, a, b), lambda i, j, k: y[i, j, k] * 2.0, [y]),))


def interwoven(pixels: int, rows: int, length: int, dtype: str = FLOAT32) -> Dag:
    """`x` [pixels, rows, length] with its last two axes exchanged."""
    x = placeholder("x", (pixels, rows, length), dtype)
    shape = (pixels, length, rows)
    return Dag((compute("y", shape, lambda p, i, c: x[p, c, i], [x]),))


def exchanged(a: int, b: int, c: int, d: int) -> Dag:
    """`x` [a, b, c, d] plus one, with its second and its last axis exchanged."""
    x = placeholder("x", (a, b, c, d))
    return Dag((compute("y", (a, d, c, b), lambda i, j, k, m: x[i, m, k, j] + 1.0, [x]),))


def two_readers(rows: int, columns: int) -> Dag:
    """Two stages that read one constant in the order of their axes."""
    x, w = placeholder("x", (rows, columns)), placeholder("w", (rows, columns), constant=True)
    y = compute("y", (rows, columns), lambda i, j: x[i, j] * w[i, j], [x, w])
    z = compute("z", (rows, columns), lambda i, j: y[i, j] + w[i, j], [y, w])
    return Dag((z,))


def chosen_rows(columns: int) -> Dag:
    """Two rows, each by a formula of its own, plus a constant."""
    x, w = placeholder("x", (columns,)), placeholder("w", (2, columns), constant=True)
    value = lambda p, i: select(equal(p, 0), x[i] * 2.0, x[i] + 1.0) + w[p, i]  # noqa: E731
    return Dag((compute("y", (2, columns), value, [x, w], axes=("p", "i")),))


def padded_squares(rows: int, columns: int, before: int, after: int) -> Dag:
    """The squares of `x` [rows, columns] with zeros around each row."""
    x = placeholder("x", (rows, columns))

    def value(i, j):
        inside = all_of(j >= before, j < before + columns)
        return select(inside, x[i, j - before] * x[i, j - before], 0.0)

    return Dag((compute("y", (rows, columns + before + after), value, [x]),))


def neighbours(rows: int, columns: int, before: int, after: int) -> Dag:
    """`x / (1 + the squares of so many neighbours, added up)` of `x` [rows, columns]."""
    (squares,) = padded_squares(rows, columns, before, after).outputs
    assert squares.op is not None
    (x,) = squares.op.inputs
    k = reduce_axis("k", before + 1 + after)
    sums = compute(
        "sum", (rows, columns), lambda i, j: squares[i, j + k.var], [squares], reduce=(k,)
    )
    body = compute("z", (rows, columns), lambda i, j: x[i, j] / (1.0 + sums[i, j]), [x, sums])
    return Dag((body,))


def joined(rows: int, first: int, second: int) -> Dag:
    """Two inputs side by side, then a rectifier."""
    x, y = placeholder("x", (rows, first)), placeholder("y", (rows, second))
    both = concat("both", [x, y], 1)
    shape = (rows, first + second)
    return Dag((compute("z", shape, lambda i, j: maximum(both[i, j], 0.0), [both]),))


def reduction(rows: int, columns: int, reducer: str, *, first: bool) -> Dag:
    """A reduction over the first or the last axis, and what follows it."""
    x = placeholder("x", (rows, columns))
    k = reduce_axis("k", rows if first else columns)
    size = columns if first else rows
    y = compute(
        "y", (size,), lambda i: x[k, i] if first else x[i, k], [x], reduce=(k,), reducer=reducer
    )
    return Dag((compute("z", (size,), lambda i: y[i] + 1.0, [y]),))


def total(rows: int, columns: int) -> Dag:
    """The sum of all elements, as a tensor without axes."""
    x = placeholder("x", (rows, columns))
    k, q = reduce_axis("k", rows), reduce_axis("q", columns)
    return Dag((compute("y", (), lambda: x[k, q], [x], reduce=(k, q)),))


def flipped(rows: int, columns: int) -> Dag:
    """Reads that run backwards, and a constant that is read at two places."""
    x = placeholder("x", (rows, columns))
    w = placeholder("w", (columns,), constant=True)
    y = compute("y", (rows, columns), lambda i, j: x[i, const(columns - 1) - j] * w[j], [x, w])
    z = compute("z", (rows, columns), lambda i, j: y[i, j] + w[const(columns - 1) - j], [y, w])
    return Dag((z,))


def mask_of_alternatives(rows: int, columns: int) -> Dag:
    """Sums under a mask, one of whose terms holds in either of two cases."""
    x = placeholder("x", (rows, columns))
    k = reduce_axis("k", columns)

    def body(i):
        either = binary("or", i < 2, k.var < 3)
        return select(all_of(either, i + k.var < columns - 2), x[i, k.var], 0.0)

    return Dag((compute("y", (rows,), body, [x], reduce=(k,)),))


def masked_sum(rows: int, columns: int) -> Dag:
    """Sums of the elements that a mask in memory, and one over the indices, let through."""
    x, m = placeholder("x", (rows, columns)), placeholder("m", (rows,))
    k = reduce_axis("k", columns)
    body = lambda i: select(m[i] > 0.0, select(i + k.var < columns, x[i, k], 0.0), 0.0)  # noqa: E731
    return Dag((compute("y", (rows,), body, [x, m], reduce=(k,)),))


def tiled_product(rows: int, inner: int, columns: int, *, tail: str = "exact") -> Schedule:
    """`dense` as a hand-written kernel for GPUs: 16 x 16 tiles of 4 x 4 work-items.

    Each item has 2 x 2 virtual threads of 2 x 2 results; the items load 4 columns of both operands
    to local memory together.
    """
    s = Schedule(from_dag(dense(rows, inner, columns), "net"))
    i, j = s.split("z.i", [2, 4, 2], tail), s.split("z.j", [2, 4, 2], tail)
    s.reorder(*(loop for pair in zip(i, j, strict=True) for loop in pair))
    for loop, axis in zip((*i[:3], *j[:3]), AXES_OF_ITEMS, strict=True):
        s.bind(loop, axis)
    s.compute_at("y", j[2])
    far, near = s.split("y.k", [4], "guard" if tail == "guard" else "exact")
    s.reorder(far, near, "y.i", "y.j")
    for loop in ("y.i", "y.j", i[3], j[3]):
        s.unroll(loop)
    for operand in ("x", "w"):
        copy = s.cache_read(operand, far, "local")
        _, y, x = s.split(s.fuse(*s.loops(copy)[-2:]), [4, 4], "guard")
        s.bind(y, "local.1")
        s.bind(x, "local.0")
    return s


AXES_OF_ITEMS = ("group.1", "vthread", "local.1", "group.0", "vthread", "local.0")


def random_dag(choose: Choose) -> Dag:
    """One of the kinds above with small random extents, ones and primes among them."""
    size = partial(pick, choose, [1, 2, 3, 4, 5, 7, 8, 11, 16, 17])
    small = partial(pick, choose, [1, 2, 3])
    flag = partial(pick, choose, [0, 1])
    kinds: list[Callable[[], Dag]] = [
        lambda: dense(size(), size(), size(), epilogue=bool(flag())),
        lambda: _random_conv(choose),
        lambda: depthwise(small(), 3 + size(), 3 + small(), size(), stride=1 + flag()),
        lambda: pool(small(), 3 + small(), 3 + size(), size(), small(), small(), average=flag()),
        lambda: softmax(small(), size()),
        lambda: elementwise(size(), size()),
        lambda: integers(size(), size()),
        lambda: transpose(size(), small(), size()),
        lambda: joined(small(), size(), size()),
        lambda: reduction(
            size(), size(), ["sum", "prod", "max", "min"][choose(4)], first=bool(flag())
        ),
        lambda: total(small(), size()),
        lambda: flipped(small(), size()),
        lambda: masked_sum(size(), size()),
        lambda: byte_product(
            size(), pick(choose, [4, 8, 12, 5]), size(), first=[INT8, UINT8][choose(2)]
        ),
    ]
    return kinds[choose(len(kinds))]()


def _random_conv(choose: Choose) -> Dag:
    groups = pick(choose, [1, 1, 2])
    window, dilation = pick(choose, [1, 2, 3]), pick(choose, [1, 1, 2])
    return conv2d(
        pick(choose, [1, 2]),
        pick(choose, [5, 6, 7, 9]),
        pick(choose, [5, 7, 8, 11]),
        groups * pick(choose, [1, 2, 3]),
        groups * pick(choose, [1, 2, 3, 5, 8]),
        window,
        stride=pick(choose, [1, 1, 2]),
        pad=pick(choose, [0, 1]),
        dilation=dilation,
        groups=groups,
        residual=bool(choose(2)),
    )
