"""A decoder of two layers with caches of keys and values, as exporters write one: plain nodes."""

import numpy as np
import onnx
from onnx import numpy_helper, parser

LAYERS, HEADS, WIDE, WORDS = 2, 2, 16, 24
HIDDEN = HEADS * WIDE
CACHES = [f"{layer}_{part}" for layer in range(LAYERS) for part in ("key", "value")]

_ENDS = """<ir_version: 8, opset_import: ["" : 18]>
decoder (int64[batch, seq] input_ids, {pasts})
    => (float[batch, seq, {words}] logits, {presents}) {{
"""
_MASK = """
  ids_shape = Shape (input_ids)
  seq_n = Gather <axis = 0> (ids_shape, one)
  past_shape = Shape (past_0_key)
  past_n = Gather <axis = 0> (past_shape, two)
  total_n = Add (past_n, seq_n)
  columns = Range (zero, total_n, one)
  rows = Range (past_n, total_n, one)
  rows_2 = Unsqueeze (rows, last)
  seen = LessOrEqual (columns, rows_2)
  mask = Where (seen, nothing, hidden)
  x0 = Gather <axis = 0> (words, input_ids)
"""
_LAYER = """
  q{n} = MatMul (x{n}, wq{n})
  k{n} = MatMul (x{n}, wk{n})
  v{n} = MatMul (x{n}, wv{n})
  qr{n} = Reshape (q{n}, heads)
  kr{n} = Reshape (k{n}, heads)
  vr{n} = Reshape (v{n}, heads)
  qt{n} = Transpose <perm = [0, 2, 1, 3]> (qr{n})
  kt{n} = Transpose <perm = [0, 2, 1, 3]> (kr{n})
  vt{n} = Transpose <perm = [0, 2, 1, 3]> (vr{n})
  present_{n}_key = Concat <axis = 2> (past_{n}_key, kt{n})
  present_{n}_value = Concat <axis = 2> (past_{n}_value, vt{n})
  turned{n} = Transpose <perm = [0, 1, 3, 2]> (present_{n}_key)
  products{n} = MatMul (qt{n}, turned{n})
  scaled{n} = Mul (products{n}, scale)
  masked{n} = Add (scaled{n}, mask)
  weights{n} = Softmax <axis = -1> (masked{n})
  sums{n} = MatMul (weights{n}, present_{n}_value)
  joined{n} = Transpose <perm = [0, 2, 1, 3]> (sums{n})
  rows{n} = Reshape (joined{n}, hidden_shape)
  made{n} = MatMul (rows{n}, wo{n})
  added{n} = Add (x{n}, made{n})
  inner{n} = MatMul (added{n}, wi{n})
  active{n} = Tanh (inner{n})
  down{n} = MatMul (active{n}, wd{n})
  x{m} = Add (added{n}, down{n})
"""


def cached_decoder(
    layers: int = LAYERS, heads: int = HEADS, wide: int = WIDE, words: int = WORDS
) -> onnx.ModelProto:
    """Words and caches to logits and caches; batch, sequence (seq) and past stay open."""
    hidden = heads * wide
    caches = [f"{layer}_{part}" for layer in range(layers) for part in ("key", "value")]
    pasts = ", ".join(f"float[batch, {heads}, past, {wide}] past_{c}" for c in caches)
    made = ", ".join(f"float[batch, {heads}, total, {wide}] present_{c}" for c in caches)
    ends = _ENDS.format(pasts=pasts, presents=made, words=words)
    body = "".join(_LAYER.format(n=n, m=n + 1) for n in range(layers))
    model = parser.parse_model(f"{ends}{_MASK}{body}\n  logits = MatMul (x{layers}, out)\n}}")
    rng = np.random.default_rng(3)
    shapes = {"words": (words, hidden), "out": (hidden, words)}
    for n in range(layers):
        shapes |= {f"w{part}{n}": (hidden, hidden) for part in "qkvoid"}
    arrays = {
        name: (rng.standard_normal(shape) / np.sqrt(hidden)).astype(np.float32)
        for name, shape in shapes.items()
    }
    arrays |= {
        "zero": np.asarray(0),
        "one": np.asarray(1),
        "two": np.asarray(2),
        "last": np.asarray([1]),
        "nothing": np.asarray(0, np.float32),
        "hidden": np.asarray(-1e30, np.float32),
        "scale": np.asarray(wide**-0.5, np.float32),
        "heads": np.asarray([0, 0, heads, wide]),
        "hidden_shape": np.asarray([0, 0, hidden]),
    }
    for name, array in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model
