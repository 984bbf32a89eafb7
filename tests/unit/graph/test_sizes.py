"""Sizes that stay open while a model is imported: one graph, and what it is for each value."""

from pathlib import Path

import onnx
import pytest

from retune.core.dims import Size, assuming, dim_of
from retune.core.errors import ModelError
from retune.frontend.models import resolve_model
from retune.frontend.onnx.importer import import_model
from retune.frontend.zoo import LIGHT, ZOO
from retune.frontend.zoo.writer import open_axes
from retune.graph.fuse import partition
from retune.graph.passes.pipeline import optimise
from tests.support.sized_networks import check, fixing, imported, model_of

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


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_imported_once_for_every_batch(name: str) -> None:
    model = model_of(OPERATORS[name])
    graphs, conditions = imported(model, [N], {"n": 5})
    assert not fixing(conditions), conditions
    assert len(conditions) <= 1, list(map(str, conditions))
    fitting = [value for value in VALUES if all(c.at({"n": value}) for c in conditions)]
    assert len(fitting) >= 4, list(map(str, conditions))
    for value in fitting:
        check(model, graphs, {"n": value})


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
