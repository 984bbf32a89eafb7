"""Sizes that stay open while a model is imported: one graph, and what it is for each value."""

from pathlib import Path

import onnx
import pytest

from retune.core.dims import Size, assuming, dim_of, sizes_of
from retune.core.errors import ModelError
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import import_model
from retune.frontend.zoo import LIGHT, ZOO
from retune.frontend.zoo.writer import open_axes
from retune.graph.fuse import ALIAS, partition
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.sized_networks import check, imported, model_of

N = Size("n", 1, 32)
n = dim_of(N)
VALUES = (1, 2, 5, 8, 32)

OPERATORS = {
    "elementwise": "(float[n, 4] x, float[4] b) => (float[n, 4] y) {"
    " s = Add(x, b) t = Sigmoid(s) y = Mul(x, t) }",
    "convolution": "(float[n, 4, 6, 6] x, float[8, 4, 3, 3] w, float[8] b) => (float[n, 8, k, k] y)"
    "{ c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w, b) y = Relu(c) }",
    "pooling": "(float[n, 4, 7, 7] x) => (float[n, 4, k, k] y, float[n, 4, 1, 1] z)"
    "{ y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)"
    " z = GlobalAveragePool(x) }",
    "flatten": "(float[n, 4, 3] x, float[12, 5] w, float[5] b) => (float[n, 5] y)"
    "{ f = Flatten(x) y = Gemm(f, w, b) }",
    "softmax": "(float[n, 7] x) => (float[n, 7] y, int64[n, 1] k)"
    "{ y = Softmax <axis = 1> (x) k = ArgMax <axis = 1> (x) }",
    "norm": "(float[n, 6, 4] x, float[4] g, float[4] b) => (float[n, 6, 4] y)"
    "{ y = LayerNormalization <axis = -1> (x, g, b) }",
    "products": "(float[n, 3, 4] x, float[n, 4, 5] w) => (float[n, 3, 5] y) { y = MatMul(x, w) }",
    "moves": "(float[n, 4, 6] x) => (float[p, q] y) {"
    " t = Transpose <perm = [2, 0, 1]> (x) m = Constant <value_ints = [6, -1]> ()"
    " y = Reshape(t, m) }",
    "parts": "(float[n, 6] x) => (float[n, 6] y) {"
    " a, b = Split <axis = 1, num_outputs = 2> (x) y = Concat <axis = 1> (b, a) }",
    "slices": "(float[n, 9] x) => (float[n, 4] y) {"
    " s = Constant <value_ints = [1]> () e = Constant <value_ints = [-1]> ()"
    " a = Constant <value_ints = [1]> () t = Constant <value_ints = [2]> ()"
    " y = Slice(x, s, e, a, t) }",
    "reductions": "(float[n, 3, 4] x) => (float[n, 1, 4] y, float[n, 3] z) {"
    " a = Constant <value_ints = [1]> () b = Constant <value_ints = [2]> ()"
    " y = ReduceMean(x, a) z = ReduceMax <keepdims = 0> (x, b) }",
    "resize": "(float[n, 2, 3, 4] x) => (float[n, 2, 6, 8] y, float[n, 2, 6, 8] z) {"
    " s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
    ' y = Resize <mode = "linear"> (x, , s) z = Resize <mode = "nearest"> (x, , s) }',
    "pads": "(float[n, 3, 4, 4] x) => (float[n, 3, 6, 6] y, float[n, 3, 6, 6] z) {"
    " p = Constant <value_ints = [0, 0, 1, 1, 0, 0, 1, 1]> ()"
    ' y = Pad(x, p) z = Pad <mode = "reflect"> (x, p) }',
    "gather": "(float[n, 5, 3] x, int64[n, 2] i) => (float[n, 2, 3] y, float[n, 3] z) {"
    " y = GatherND <batch_dims = 1> (x, k) a = Constant <value_ints = [2]> ()"
    " k = Unsqueeze(i, a) one = Constant <value_int = 1> () z = Gather <axis = 1> (x, one) }",
    "top": "(float[n, 8] x) => (float[n, 3] y, int64[n, 3] z) {"
    " k = Constant <value_ints = [3]> () y, z = TopK(x, k) }",
    "cumulative": "(float[n, 5] x) => (float[n, 5] y) {"
    " a = Constant <value_int = 1> () y = CumSum(x, a) }",
    "einsum": "(float[n, 3, 4] x, float[n, 4, 2] w) => (float[n, 2, 3] y) {"
    ' y = Einsum <equation = "bij,bjk->bki"> (x, w) }',
    "expand": "(float[n, 3] x, float[1, 3] b) => (float[n, 3] y, float[n, 2, 3] z) {"
    " s = Shape(x) e = Expand(b, s) y = Add(x, e) one = Constant <value_ints = [1]> ()"
    " two = Constant <value_ints = [2]> () three = Constant <value_ints = [3]> ()"
    " f = Shape <start = 0, end = 1> (x) t = Concat <axis = 0> (f, two, three)"
    " u = Unsqueeze(x, one) z = Expand(u, t) }",
    "shape": "(float[n, 3, 4] x) => (float[p, q] y) {"
    " s = Shape(x) i = Constant <value_int = 0> () b = Gather(s, i)"
    " z = Constant <value_ints = [0]>() u = Unsqueeze(b, z)"
    " r = Constant <value_ints = [-1]> () t = Concat <axis = 0> (u, r)"
    " y = Reshape(x, t) }",
    "filled": "(float[n, 3] x) => (float[n, 4] y, int64[k] z) {"
    " s = Shape <start = 0, end = 1> (x) f = Constant <value_ints = [4]> ()"
    " t = Concat <axis = 0> (s, f) o = ConstantOfShape <value = float[1] {1.5}> (t)"
    " m = ReduceSum(x) y = Mul(o, m) b = Squeeze(s) zero = Constant <value_int = 0> ()"
    " two = Constant <value_int = 2> () l = Mul(b, two) z = Range(zero, l, two) }",
    "counted": "(float[n, 3] x) => (float[n, 3] y, int64[1] z) {"
    " s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) y = Div(x, f)"
    " one = Constant <value_ints = [1]> () z = Add(s, one) }",
    "tiles": "(float[n, 3] x) => (float[p, 6] y, float[p, q] z) {"
    " r = Constant <value_ints = [1, 2]> () y = Tile(x, r) s = Shape(x) z = Tile(x, s) }",
    "recurrent": "(float[4, n, 3] x, float[1, 20, 3] w, float[1, 20, 5] r) => (float[4, 1, n, 5] y)"
    "{ y = LSTM <hidden_size = 5> (x, w, r) }",
    "triangle": "(float[n, 4, 4] x) => (float[n, 4, 4] y) { y = Trilu(x) }",
    "choice": "(float[n, 4] x) => (float[n, 4] y, float[n, 4, 3] z, int64[n, 4] i) {"
    " c = IsNaN(x) o = Constant <value_float = 1.0> () y = Where(c, o, x)"
    " i = Cast <to = 7> (c) d = Constant <value_int = 3> ()"
    " v = Constant <value_floats = [0.0, 1.0]>() z = OneHot(i, d, v) }",
    "quantized": "(float[n, 4] x) => (float[n, 4] y) {"
    " s = Constant <value_float = 0.05> () q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }",
    "transposed": "(float[n, 2, 3, 3] x, float[2, 4, 2, 2] w) => (float[n, 4, 6, 6] y)"
    "{ y = ConvTranspose <strides = [2, 2]> (x, w) }",
    "rows": "(float[n, 3, 9] x, float[4, 3, 3] w) => (float[n, 4, 7] y) { y = Conv(x, w) }",
    "depth": "(float[n, 8, 2, 3] x) => (float[n, 2, 4, 6] y, float[n, 8, 2, 3] z) {"
    " y = DepthToSpace <blocksize = 2> (x) z = SpaceToDepth <blocksize = 2> (y) }",
    "scatter": "(float[n, 5] x, int64[n, 2] i, float[n, 2] u) => (float[n, 5] y) {"
    " y = ScatterElements <axis = 1> (x, i, u) }",
    "grid": "(float[n, 2, 4, 4] x, float[n, 3, 3, 2] g) => (float[n, 2, 3, 3] y)"
    "{ y = GridSample(x, g) }",
}


H, W, T, S = Size("h", 16, 96, 16), Size("w", 7, 40), Size("t", 1, 24), Size("s", 2, 20)
SPATIAL: dict[str, tuple[str, tuple[Size, ...]]] = {
    "convolutions": (
        "(float[n, 3, h, w] x, float[4, 3, 3, 3] a, float[4, 4, 5, 5] b) => (float[n, 4, p, q] y)"
        "{ c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, a)"
        ' y = Conv <strides = [2, 2], auto_pad = "SAME_UPPER"> (c, b) }',
        (N, H, W),
    ),
    "pools": (
        "(float[n, 2, h, w] x) => (float[n, 2, p, q] y, float[n, 2, r, s] z, float[n, 2, 1, 1] g) {"
        " y = MaxPool <kernel_shape = [3, 3], strides = [2, 2], ceil_mode = 1> (x)"
        " z = AveragePool <kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1]> (x)"
        " g = GlobalAveragePool(x) }",
        (N, H, W),
    ),
    "scales": (
        "(float[n, 2, h, w] x) => (float[n, 2, p, q] y, float[n, 2, p, q] z, float[n, 2, r, t] u) {"
        " s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> ()"
        ' y = Resize <mode = "linear"> (x, , s)'
        ' z = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
        ' nearest_mode = "floor"> (x, , s)'
        " t = Constant <value_floats = [1.0, 1.0, 0.5, 1.5]> ()"
        ' u = Resize <mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel">'
        " (x, , t) }",
        (N, H, W),
    ),
    "picks": (
        "(float[n, 2, h, w] x) => (float[n, 2, p, q] y) {"
        " s = Constant <value_floats = [1.0, 1.0, 0.5, 1.4]> ()"
        ' y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric",'
        ' nearest_mode = "floor"> (x, , s) }',
        (N, H, W),
    ),
    "corners": (
        "(float[n, 2, h, w] x, float[n, 2, s, t] like) => (float[n, 2, p, q] y) {"
        " a = Shape <start = 0, end = 2> (x) b = Shape <start = 2> (like)"
        " c = Concat <axis = 0> (a, b)"
        ' y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners">'
        " (x, , , c) }",
        (N, H, W, S, Size("t", 2, 24)),
    ),
    "unet": (
        "(float[n, 2, h, w] x, float[4, 2, 3, 3] a, float[4, 4, 3, 3] b, float[2, 6, 1, 1] c)"
        " => (float[n, 2, p, q] y) { d = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, a)"
        " e = Relu(d) f = Conv <pads = [1, 1, 1, 1]> (e, b)"
        " s = Constant <value_floats = [1.0, 1.0, 2.0, 2.0]> () "
        ' u = Resize <mode = "nearest"> (f, , s) j = Concat <axis = 1> (u, x) y = Conv(j, c) }',
        (N, H, Size("w", 8, 40, 8)),
    ),
    "borders": (
        "(float[n, 2, h, w] x) => (float[n, 2, p, q] y, float[n, 2, p, q] z) {"
        " p = Constant <value_ints = [0, 0, 2, 3, 0, 0, 1, 0]> ()"
        ' y = Pad <mode = "reflect"> (x, p) z = Pad <mode = "edge"> (x, p) }',
        (N, H, W),
    ),
    "transposed": (
        "(float[n, 2, h, w] x, float[2, 4, 3, 3] k) => (float[n, 4, p, q] y)"
        "{ y = ConvTranspose <strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]>"
        " (x, k) }",
        (N, H, W),
    ),
    "rows": (
        "(float[n, 4, h, w] x, float[12, 8] k) => (float[p, n, 8] y) {"
        " m = MaxPool <kernel_shape = [16, 1], strides = [16, 1]> (x)"
        " a = Constant <value_ints = [0, 0, -1]> () s = Shape(m) i = Constant <value_int = 3> ()"
        " w = Gather(s, i) f = ReduceMean <keepdims = 0> (m, d) d = Constant <value_ints = [2]> ()"
        " t = Transpose <perm = [2, 0, 1]> (f) e = Concat <axis = 2> (t, t, t) y = MatMul(e, k) }",
        (N, H, W),
    ),
    "attention": (
        "(float[n, t, 8] x, float[8, 24] w, float[8, 8] o, int64[n, t] mask) => (float[n, t, 8] y)"
        "{ q = MatMul(x, w) s = Shape(x) zero = Constant <value_int = 0> ()"
        " one = Constant <value_int = 1> () b = Gather(s, zero) l = Gather(s, one)"
        " first = Constant <value_ints = [0]> () bu = Unsqueeze(b, first) lu = Unsqueeze(l, first)"
        " heads = Constant <value_ints = [2]> () parts = Constant <value_ints = [12]> ()"
        " sh = Concat <axis = 0> (bu, lu, heads, parts) r = Reshape(q, sh)"
        " p = Transpose <perm = [0, 2, 1, 3]> (r) a, k, v = Split <axis = 3, num_outputs = 3> (p)"
        " kt = Transpose <perm = [0, 1, 3, 2]> (k) z = MatMul(a, kt) f = Cast <to = 1> (mask)"
        " onef = Constant <value_float = 1.0> () g = Sub(onef, f)"
        " big = Constant <value_float = -10000.0> () m = Mul(g, big)"
        " two = Constant <value_ints = [1, 2]> () mu = Unsqueeze(m, two) zm = Add(z, mu)"
        " soft = Softmax <axis = -1> (zm) u = MatMul(soft, v)"
        " back = Transpose <perm = [0, 2, 1, 3]> (u) rest = Constant <value_ints = [-1]> ()"
        " so = Concat <axis = 0> (bu, lu, rest) flat = Reshape(back, so) y = MatMul(flat, o) }",
        (N, T),
    ),
    "embedding": (
        "(int64[n, t] x, float[50, 8] e, float[32, 8] p, float[32, 32] c) => (float[n, t, 8] y,"
        " float[1, 1, t, t] z) { a = Gather(e, x) s = Shape <start = 1, end = 2> (x)"
        " first = Constant <value_ints = [0]> () l = Squeeze(s) zero = Constant <value_int = 0> ()"
        " one = Constant <value_int = 1> () r = Range(zero, l, one) b = Gather(p, r) y = Add(a, b)"
        " both = Concat <axis = 0> (s, s) axes = Constant <value_ints = [0, 1]> ()"
        " start = Constant <value_ints = [0, 0]> () m = Slice(c, start, both, axes)"
        " z = Unsqueeze(m, axes) }",
        (N, T),
    ),
    "causal": (
        "(float[n, 2, t, t] x) => (float[n, 2, t, t] y, bool[n, 1, t, t] z) { s = Shape(x)"
        " i = Constant <value_int = 2> () l = Gather(s, i) zero = Constant <value_int = 0> ()"
        " one = Constant <value_int = 1> () r = Range(zero, l, one)"
        " first = Constant <value_ints = [0]> () last = Constant <value_ints = [1]> ()"
        " a = Unsqueeze(r, first) b = Unsqueeze(r, last) seen = LessOrEqual(a, b)"
        " low = Constant <value_float = -1.0> () y = Where(seen, x, low)"
        " b0 = Gather(s, zero) bu = Unsqueeze(b0, first) lu = Unsqueeze(l, first)"
        " f = Concat <axis = 0> (bu, last, lu, lu) z = Expand(seen, f) }",
        (N, T),
    ),
    "lengths": (
        "(float[t, n, 3] x, float[1, 20, 3] w, float[1, 20, 5] r) => (float[t, 1, n, 5] y)"
        "{ y = LSTM <hidden_size = 5> (x, w, r) }",
        (N, T),
    ),
    "windows": (
        "(float[n, t] x) => (float[n, k] y, float[n, l] z, float[n, m] u) {"
        " s = Shape <start = 1, end = 2> (x) two = Constant <value_ints = [2]> () h = Div(s, two)"
        " first = Constant <value_ints = [0]> () a = Constant <value_ints = [1]> ()"
        " y = Slice(x, first, h, a) z = Slice(x, h, s, a) neg = Constant <value_ints = [-1]> ()"
        " min = Constant <value_ints = [-9223372036854775807]> () u = Slice(x, neg, min, a, neg) }",
        (N, Size("t", 2, 24)),
    ),
    "scaled": (
        "(float[n, 1, h, w] x) => (float[n, 1, p, q] y) { s = Shape(x) f = Cast <to = 1> (s)"
        " k = Constant <value_floats = [1.0, 1.0, 0.5, 2.0]> () m = Mul(f, k) g = Floor(m)"
        " i = Cast <to = 7> (g)"
        ' y = Resize <mode = "linear"> (x, , , i) }',
        (N, H, W),
    ),
}


def _values(sizes: tuple[Size, ...]) -> list[dict[str, int]]:
    """The sizes at hand, all of the least, all of the greatest, and two between."""
    middle = [size.values[len(size.values) // 2] for size in sizes]
    rows = [[size.values[i] for size in sizes] for i in (0, -1, 1, -2)]
    names = [size.name for size in sizes]
    return [dict(zip(names, row, strict=True)) for row in (middle, *rows)]


@pytest.mark.parametrize("name", SPATIAL)
def test_lengths_heights_and_widths_stay_open(name: str) -> None:
    text, sizes = SPATIAL[name]
    model = model_of(text)
    every = _values(sizes)
    graphs, conditions = imported(model, sizes, every[0])
    assert not conditions, list(map(str, conditions))
    for values in every:
        check(model, graphs, values, tolerance=1e-4)


BEGIN, COUNT = dim_of(Size("begin", 1, 6)), dim_of(Size("count", 1, 6))
ROWS, COLUMNS = dim_of(Size("rows", 2, 40)), dim_of(Size("columns", 2, 40))
STATED: dict[str, tuple[str, dict[str, tuple[int, ...]]]] = {
    "ends": (
        "(float[n, 6, 8] x, int64[1] s) => (float[n, k, 8] y) { a = Constant <value_ints = [1]> ()"
        " z = Constant <value_ints = [0]> () t = Slice(x, z, s, a) y = Relu(t) }",
        {"s": (COUNT,)},
    ),
    "starts": (
        "(float[n, 6, 8] x, int64[1] s) => (float[n, k, 8] y) { a = Constant <value_ints = [1]> ()"
        " e = Constant <value_ints = [4611686018427387904]> () t = Slice(x, s, e, a) y = Relu(t) }",
        {"s": (-BEGIN,)},
    ),
    "images": (
        "(float[n, 2, 4, 6] x, int64[2] hw, float[3, 2, 3, 3] w) => (float[n, 3, p, q] y) {"
        " f = Conv <pads = [1, 1, 1, 1]> (x, w) b = Shape <start = 0, end = 2> (f)"
        ' c = Concat <axis = 0> (b, hw) r = Resize <mode = "linear"> (f, , , c) y = Sigmoid(r) }',
        {"hw": (ROWS, COLUMNS)},
    ),
    "largest": (
        "(float[n, 8] x, int64[1] k) => (float[n, p] y, int64[n, p] z) { y, z = TopK(x, k) }",
        {"k": (COUNT,)},
    ),
    "depth": (
        "(int64[n] i, int64[1] k) => (float[n, p] y) {"
        " v = Constant <value_floats = [0.0, 1.0]> () z = OneHot(i, k, v) y = Neg(z) }",
        {"k": (COUNT,)},
    ),
    "numbers": (
        "(float[n, 8] x, int64 k) => (int64[p] y, float[n, 8] z) { a = Constant <value_int = 0> ()"
        " b = Constant <value_int = 1> () y = Range(a, k, b) f = Cast <to = 1> (k) z = Mul(x, f) }",
        {"k": (COUNT,)},
    ),
}


@pytest.mark.parametrize("name", STATED)
def test_an_input_may_state_a_size(name: str) -> None:
    """Its value is how many elements there are, and is read from it when the network runs."""
    text, stated = STATED[name]
    model = model_of(text)
    sizes = sorted(sizes_of(e for dims in stated.values() for e in dims), key=str)
    values = _values((N, *sizes))
    graphs, conditions = imported(model, [N], values[0], stated)
    assert not conditions, list(map(str, conditions))
    for found in values:
        check(model, graphs, found, tolerance=1e-4)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("causal", ["elementwise", "elementwise", "broadcast_to"]),
        ("embedding", ["gather", "slice", "elementwise", "slice"]),
        ("corners", ["resize_along", "resize_along"]),
        ("scales", ["resample", "repeat", "resample"]),
    ],
)
def test_numbers_of_elements_need_no_kernels(name: str, kernels: list[str]) -> None:
    """They are computed by what reads them, and table rows that they number are a slice."""
    text, sizes = SPATIAL[name]
    graphs, _ = imported(model_of(text), sizes, _values(sizes)[0])
    kinds = [group.kind for group in partition(graphs[-1])]
    assert [kind for kind in kinds if kind != ALIAS] == kernels


def test_parts_of_an_open_axis_may_change_places() -> None:
    """Where they begin is no constant then, which would fix the size."""
    model = model_of(
        "(float[1, t, 4] x) => (float[1, t, 4] y) { zero = Constant <value_ints = [0]> ()"
        " one = Constant <value_ints = [1]> () end = Constant <value_ints = [2147483647]> ()"
        " a = Slice(x, zero, one, one) b = Slice(x, one, end, one) y = Concat <axis = 1> (b, a) }"
    )
    graphs, conditions = imported(model, [T], {"t": 12})
    assert not [c for c in conditions if c.relation == "eq" and c.holds]
    for count in (2, 12, 24):
        check(model, graphs, {"t": count})


def test_values_are_those_of_an_input_of_integers() -> None:
    model = model_of(STATED["ends"][0])
    for name, elements in (("x", (COUNT,)), ("s", (COUNT, COUNT)), ("r", (COUNT,))):
        with (
            pytest.raises(ModelError, match="expected an input of"),
            assuming({"count": 2, "n": 1}),
        ):
            import_model(model, {"n": (n,)}, values={name: elements})


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_imported_once_for_every_batch(name: str) -> None:
    model = model_of(OPERATORS[name])
    graphs, conditions = imported(model, [N], {"n": 5})
    assert not conditions, list(map(str, conditions))
    for value in VALUES:
        check(model, graphs, {"n": value})


ALIKE = (
    *("elementwise", "convolution", "pooling", "flatten", "softmax", "norm", "products", "moves"),
    *("parts", "slices", "reductions", "resize", "pads", "einsum", "transposed", "depth"),
    *("convolutions", "unet", "borders", "attention", "windows"),
)
"""Those that are made of the same tasks for sizes and for numbers."""


@pytest.mark.parametrize("name", ALIKE)
def test_tasks_share_the_records_of_fixed_shapes(name: str) -> None:
    """At sizes, a task has the key of that of a network which was imported with fixed shapes."""
    text, sizes = SPATIAL.get(name) or (OPERATORS[name], (N,))
    model, values = model_of(text), _values(sizes)[0]
    with assuming(values) as assumed:
        shapes = {size.name: (dim_of(size),) for size in sizes}
        tasks = extract(optimise(import_model(model, shapes))).tasks
    assert not assumed.conditions, list(map(str, assumed.conditions))
    found = {task.at(values).key: task.at(values) for task in tasks.values()}
    wanted = extract(optimise(import_model(model, {k: (v,) for k, v in values.items()}))).tasks
    assert found.keys() == wanted.keys()
    for key, task in found.items():
        assert task.input_shapes == wanted[key].input_shapes
        assert task.flops == wanted[key].flops
        assert task.at(values) is task


def test_fixed_extents_stay_what_they_were() -> None:
    """The same graph, whether its extents were given as numbers or as a size of one value."""
    model, four = model_of(OPERATORS["shape"]), dim_of(Size("n", 4, 4))
    assert import_model(model, {"n": (4,)}).key == import_model(model, {"n": (four,)}).key


def test_a_size_is_read_from_an_extent_of_an_input() -> None:
    with assuming({"n": 5}):
        graph = import_model(model_of(OPERATORS["products"]), {"n": (n,)})
    assert graph.sizes == {N: ("x", 0)}
    with assuming({"n": 5}):
        twice = import_model(model_of("(float[m, 3] x) => (float[m, 3] y) { y = Relu(x) }"),
                             {"x": (2 * n, 3)})  # fmt: skip
    with pytest.raises(ModelError, match="no input has an extent that is n;"):
        _ = twice.sizes


def test_shapes_of_inputs_may_have_sizes() -> None:
    model = model_of(OPERATORS["elementwise"])
    with assuming({"n": 5}):
        graph = import_model(model, {"x": (n, 4)})
        assert str(graph.types["y"]) == "float32[n, 4]"
        with pytest.raises(ModelError, match="agree"):
            import_model(model, {"x": (n, n)})


@pytest.mark.parametrize("name", ["zoo:kws", "zoo:mlp"])
def test_a_network_has_the_same_groups_for_every_batch(name: str, models: Path) -> None:
    _check_network(name, models, values=(1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"zoo:{z}" for z in ZOO), *(f"light:{x}" for x in LIGHT)])
def test_every_network_has_the_same_groups_for_every_batch(name: str, models: Path) -> None:
    _check_network(name, models, values=(2,))


def _check_network(name: str, models: Path, values: tuple[int, ...]) -> None:
    model = open_axes(onnx.load(str(resolve_model(name, models))), {0: "n"})
    graphs, conditions = imported(model, [N], {"n": 4})
    assert conditions == ()
    for value in values:
        check(model, graphs, {"n": value}, tolerance=1e-4)
        fixed = partition(optimise(import_model(model, {"n": (value,)}), "NHWC"))
        assert [(g.kind, len(g.nodes)) for g in fixed] == [
            (g.kind, len(g.nodes)) for g in partition(graphs[-1])
        ]
