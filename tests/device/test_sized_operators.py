"""Operators whose values or shapes depend on sizes, compiled once, against numpy at each size."""

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.variants import join_plans
from retune.core.dims import Size, assuming, dim_of
from retune.device.opencl.runtime import open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.sized_networks import model_of

pytestmark = pytest.mark.device

N, T, S = Size("n", 1, 9), Size("t", 2, 24), Size("s", 2, 24)
NETWORKS: dict[str, tuple[tuple[Size, ...], str]] = {
    "values": (
        (N,),
        "(float[n, 3] x) => (float[n, 3] y, int64[1] z) {"
        " s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) y = Div(x, f)"
        " one = Constant <value_ints = [1]> () z = Add(s, one) }",
    ),
    "masks": (
        (N, T),
        "(float[n, 2, t, t] x) => (float[n, 2, t, t] y) { s = Shape(x)"
        " i = Constant <value_int = 2> () l = Gather(s, i) zero = Constant <value_int = 0> ()"
        " one = Constant <value_int = 1> () r = Range(zero, l, one)"
        " first = Constant <value_ints = [0]> () last = Constant <value_ints = [1]> ()"
        " a = Unsqueeze(r, first) b = Unsqueeze(r, last) seen = LessOrEqual(a, b)"
        " low = Constant <value_float = -1.0> () y = Where(seen, x, low) }",
    ),
    "rows by index": (
        (N, T),
        "(float[n, 8] x, int64[t] i) => (float[t, 8] y) { y = Gather <axis = 0> (x, i) }",
    ),
    "rows shorter than a vector": (
        (N, T),
        "(float[n, t, 8] q, float[n, 8, t] k, float[n, t, 8] v) => (float[n, t, 8] y) {"
        " a = MatMul(q, k) p = Softmax <axis = -1> (a) y = MatMul(p, v) }",
    ),
    "corners": (
        (N, T, S),
        "(float[n, 2, t, s] x, float[n, 2, s, t] like) => (float[n, 2, p, q] y) {"
        " a = Shape <start = 0, end = 2> (x) b = Shape <start = 2> (like)"
        " c = Concat <axis = 0> (a, b)"
        ' y = Resize <mode = "linear", coordinate_transformation_mode = "align_corners">'
        " (x, , , c) }",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_an_operator_of_any_size(name: str) -> None:
    sizes, text = NETWORKS[name]
    device, model = open_device("pocl"), model_of(text)
    with assuming({"n": 6, "t": 17, "s": 20}) as assumed:
        graph = import_model(model, {size.name: (dim_of(size),) for size in sizes})
        network = extract(optimise(graph), max_error=0.0)
        plan = build_plan(network, {}, device.spec, model_key="0", notes={})
    module = Module(join_plans([plan], [assumed.conditions]), device)
    tried = 0
    for n, t, s in ((6, 17, 20), (9, 24, 2), (1, 2, 24), (8, 16, 3)):
        values = {"n": n, "t": t, "s": s}
        if all(condition.at(values) for condition in assumed.conditions):
            fixed = graph.at(values)
            inputs = random_inputs(fixed, tried)
            found = module.run(inputs)
            for output, wanted in run_graph(fixed, inputs).items():
                np.testing.assert_allclose(found[output], wanted, rtol=1e-4, atol=1e-5)
            tried += 1
    assert tried >= 2
