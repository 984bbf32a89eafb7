"""Networks whose extents depend on data, with inputs for which they are few, many and none."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.core.dims import apart
from retune.core.target import DeviceSpec
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.host import model

Arrays = Mapping[str, np.ndarray]

_CHOSEN = """
<ir_version: 8, opset_import: ["": 17]>
chosen (float[64, 24] x) => (float[n, 24] y, float[24] s, float[n, 8] d) {
  top = ReduceMax <axes = [1], keepdims = 0> (x)
  keep = Greater (top, least)
  at = NonZero (keep)
  row = Squeeze (at, first)
  g = Gather <axis = 0> (x, row)
  e = Exp (g)
  y = Relu (e)
  s = ReduceSum <keepdims = 0> (y, first)
  d = MatMul (y, w)
}
"""
_COMPRESSED = """
<ir_version: 8, opset_import: ["": 17]>
compressed (float[20, 6] x, bool[20] keep) => (float[n, 6] p, float[n, 12] j) {
  c = Compress <axis = 0> (x, keep)
  p = Softmax <axis = 1> (c)
  t = Tanh (c)
  j = Concat <axis = 1> (p, t)
}
"""
_UNIQUE = """
<ir_version: 8, opset_import: ["": 17]>
distinct (int64[30] x) => (float[n, 4] y, float[1, 4] m) {
  u, at, back, number = Unique (x)
  g = Gather <axis = 0> (table, u)
  f = Cast <to = 1> (number)
  c = Unsqueeze (f, last)
  y = Mul (g, c)
  m = ReduceMax <axes = [0], keepdims = 1> (y)
}
"""


_CUT = """
<ir_version: 8, opset_import: ["": 17]>
cut (float[4, 30] x, int64[2] ends) => (float[n, m] y) <int64[2] axes = {1, 0}> {
  t = Tanh (x)
  starts = Div (ends, three)
  c = Slice (t, starts, ends, axes)
  e = Exp (c)
  p = Transpose <perm = [1, 0]> (e)
  y = Sqrt (p)
}
"""


def _weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def _made(text: str, **constants: np.ndarray) -> onnx.ModelProto:
    made = model(text)
    for name, array in constants.items():
        made.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return made


def _rows(rng: np.random.Generator, share: float) -> Arrays:
    x = rng.standard_normal((64, 24)).astype(np.float32)
    return {"x": np.where(rng.random((64, 1)) < share, x, 0).astype(np.float32)}


def _kept(rng: np.random.Generator, share: float) -> Arrays:
    return {"x": rng.standard_normal((20, 6)).astype(np.float32), "keep": rng.random(20) < share}


def _ends(rng: np.random.Generator, share: float) -> Arrays:
    x = rng.standard_normal((4, 30)).astype(np.float32)
    return {"x": x, "ends": np.array([int(30 * share), 4 if share else -4])}


def _labels(rng: np.random.Generator, share: float) -> Arrays:
    return {"x": rng.integers(0, max(1, int(16 * share)), 30)}


NETWORKS: dict[str, tuple[onnx.ModelProto, Callable[[np.random.Generator, float], Arrays]]] = {
    "chosen": (
        _made(_CHOSEN, least=np.full((), 1.5, np.float32), first=np.array([0]), w=_weights(24, 8)),
        _rows,
    ),
    "compressed": (_made(_COMPRESSED), _kept),
    "cut": (_made(_CUT, three=np.array([3, 2])), _ends),
    "distinct": (_made(_UNIQUE, table=_weights(16, 4), last=np.array([1])), _labels),
}
SHARES = (1.0, 0.0, 0.5, 0.06, 0.03)


def plan_of(made: onnx.ModelProto, spec: DeviceSpec) -> NetworkPlan:
    """The plan of the network, whose counts host steps find, on no condition."""
    with apart() as assumed:
        network = extract(optimise(import_model(made, counts=True)))
        plan = build_plan(network, {}, spec, model_key="", notes={})
    assert not assumed.conditions
    return replace(plan, name=made.graph.name)
