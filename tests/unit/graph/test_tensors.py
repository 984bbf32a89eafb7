"""Each op's tensor expression computes what numpy, written apart from it, says of the op."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.core.dtypes import BOOL, FLOAT32, INT8, INT32, INT64, UINT8, UINT32, TensorType
from retune.frontend.models import load_model
from retune.graph.evaluate import run_graph
from retune.graph.fuse import group_graph, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.lower import group_tensors
from retune.graph.passes.pipeline import optimise
from retune.ir.interp import run_dag
from retune.ops import OPS
from tests.support.networks import dag_of, random_network
from tests.support.numpy_meanings import MEANINGS

WINDOW: dict[str, Any] = {"strides": (2, 1), "dilations": (1, 1)}
WINDOW3: dict[str, Any] = {"strides": (1, 2, 1), "dilations": (1,) * 3, "pads": (1, 0, 1, 0, 1, 1)}
STATISTICS: dict[str, Any] = {"axis": 1, "epsilon": 1e-3}
LRN: dict[str, Any] = {"size": 3, "alpha": 0.1, "beta": 0.75, "bias": 2.0}

TIES = np.array([[2, 5, 5, 0], [7, 0, 1, 7], [2, 2, 5, 1]], np.int64)
LONG = np.random.default_rng(4).integers(0, 9, (5, 150)).astype(np.float32)
LONG[1] = -np.inf
LONG[2, [3, 40]] = LONG[3, [7]] = np.nan
LONG[3:, 20] = np.inf
SEVENS = (np.arange(400) % 7).astype(np.uint8).reshape(200, 2)
TREES: list[Any] = [
    np.where(np.arange(24).reshape(6, 4) % 7 == 3, np.nan, np.arange(24).reshape(6, 4) % 5 / 2),
    np.array([1, 4, 10, 15, 3, 0, 0, 8, 2], np.int32),
    np.array([1, 0.5, 0.5, 2, 1, 0, 0, 1.5, 1]),
    np.array([[1, 2], [3, 4], [5, 6], [7, 8], [5, 3], [5, 5], [6, 6], [6, 5], [8, 8]], np.int32),
    np.array([0, 2, 5, 1], np.int32),
]
"""Data with NaN, splits of all kinds, limits that data meet, children, roots."""
EXTREMES = np.array([[0.0, -0.0, np.nan], [np.inf, -np.inf, 1e-310], [-1.5, 3e38, -1e-42]])
KEYS = np.arange(36, dtype=np.int32).reshape(2, 6, 3) * 7 % 5 - 2
COLUMNS = [KEYS.swapaxes(1, 2)]
SMALL_TREES = [
    np.arange(12, dtype=np.int32).reshape(3, 4) % 3,
    np.arange(24, dtype=np.int32).reshape(2, 3, 4) % 5 - 2,
    ~np.left_shift(np.int32(0x11111), np.arange(12, dtype=np.int32).reshape(3, 4)),
]
"""Features, limits of two words, masks."""
LEAVES = np.array([[[0, 8], [3, 3]], [[1, 2], [7, 0]], [[4, 5], [6, 6]]], np.int32)
PLACES = np.array([[1, 3, 1, 4, 0], [2, -1, 2, 2, 9]])
"""Two updates of one place, and places that are none."""
WRITERS = np.array([[-1, 3, 0], [2, -1, -1]], np.int32)
TRUTH = np.array([[True, False], [True, True], [False, False]])
SPECIAL = np.array([1.5, -0.5, 0.0, np.nan, np.inf, -np.inf], np.float32)
ROUNDINGS = ("round_to_float16", "round_to_bfloat16", "round_to_tf32")
ROUNDED = np.concatenate(
    [SPECIAL, np.array([1 + 2**-9, 1 + 3 * 2**-11, 65520, -1e-7, 3e38, 2**-24], np.float32)]
)
WINDOW1: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}
INDEXED: dict[str, Any] = WINDOW | {"kernel": (3, 2), "pads": (1, 0, 1, 1)}
INDEXED3: dict[str, Any] = WINDOW3 | {"kernel": (2, 2, 3)}
WINDOW_TIES = np.random.default_rng(1).integers(0, 3, (2, 3, 7, 6)).astype(np.float32)
VOLUME = np.random.default_rng(2).integers(0, 3, (1, 2, 4, 5, 5)).astype(np.float32)
SPREAD = np.array([[0, 1], [1, 1], [2, 0], [1, 0]], np.int32)
MANY = np.random.default_rng(3).integers(0, 30, (2, 4, 20)).astype(np.int32)
"""So many places that their sum is not written out."""


def run_op(name: str, data: np.ndarray, attrs: dict[str, Any]) -> np.ndarray:
    """What the op makes of the data."""
    return MEANINGS[name]([data], attrs)[0]


CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    (
        "conv2d",
        [(2, 4, 7, 5), (6, 2, 3, 3)],
        WINDOW | {"pads": (1, 0, 2, 1), "groups": 2, "layout": "NCHW"},
    ),
    (
        "conv2d",
        [(1, 7, 5, 4), (3, 1, 2, 6)],
        WINDOW | {"pads": (0,) * 4, "groups": 2, "layout": "NHWC"},
    ),
    (
        "conv2d",
        [(1, 9, 9, 3), (3, 3, 3, 5)],
        {
            "strides": (1, 1),
            "dilations": (2, 3),
            "pads": (2, 3, 2, 3),
            "groups": 1,
            "layout": "NHWC",
        },
    ),
    (
        "conv2d",
        [(1, 5, 6, 6), (4, 5, 1, 1)],
        WINDOW | {"pads": (0,) * 4, "groups": 1, "layout": "NCHW"},
    ),
    (
        "conv2d",
        [(1, 2, 6, 6), (4, 2, 3, 3)],
        WINDOW | {"pads": (-1, 0, 0, -1), "groups": 1, "layout": "NCHW"},
    ),
    ("conv3d", [(1, 2, 4, 5, 6), (3, 2, 2, 3, 3)], WINDOW3 | {"groups": 1, "layout": "NCDHW"}),
    (
        "conv_transpose",
        [(2, 4, 3, 4), (6, 2, 3, 4)],
        WINDOW | {"dilations": (2, 1), "pads": (1, 3, -1, 0), "groups": 2, "layout": "NCHW"},
    ),
    (
        "conv_transpose",
        [(1, 2, 2, 3, 2), (3, 2, 2, 1, 3)],
        WINDOW3 | {"groups": 1, "layout": "NCDHW"},
    ),
    (
        "depthwise_conv2d",
        [(1, 4, 6, 5), (8, 1, 3, 3)],
        WINDOW | {"pads": (1,) * 4, "layout": "NCHW"},
    ),
    (
        "depthwise_conv2d",
        [(1, 6, 5, 4), (3, 3, 4, 2)],
        WINDOW | {"pads": (1,) * 4, "layout": "NHWC"},
    ),
    (
        "depthwise_conv2d",
        [(1, 6, 5, 4), (1, 1, 4, 1)],
        WINDOW | {"pads": (0,) * 4, "layout": "NHWC"},
    ),
    ("dense", [(3, 7), (5, 7)], {}),
    ("matmul", [(2, 1, 3, 4), (5, 4, 6)], {}),
    ("attention", [(2, 3, 4), (2, 5, 4), (2, 5, 6)], {"scale": 0.5, "causal": 1}),
    ("attention", [(2, 3, 4), (2, 5, 4), (2, 5, 6), (1, 3, 5)], {"scale": 0.5}),
    (
        "max_pool2d",
        [(1, 3, 7, 6)],
        WINDOW | {"kernel": (3, 2), "pads": (1, 0, 1, 1), "layout": "NCHW"},
    ),
    ("max_pool2d", [(1, 7, 6, 3)], WINDOW | {"kernel": (1, 1), "pads": (0,) * 4, "layout": "NHWC"}),
    ("max_pool3d", [(1, 2, 4, 5, 5)], WINDOW3 | {"kernel": (2, 2, 3), "layout": "NCDHW"}),
    (
        "avg_pool2d",
        [(1, 3, 7, 6)],
        WINDOW | {"kernel": (3, 2), "pads": (1, 0, 1, 1), "counted": (0,) * 4, "layout": "NCHW"},
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        WINDOW
        | {"kernel": (3, 2), "pads": (1, 0, 2, 1), "counted": (1, 0, 1, 1), "layout": "NHWC"},
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        {
            "strides": (2, 2),
            "dilations": (2, 1),
            "kernel": (2, 3),
            "pads": (1, 1, 1, 1),
            "counted": (0,) * 4,
            "layout": "NHWC",
        },
    ),
    (
        "avg_pool2d",
        [(1, 7, 6, 3)],
        WINDOW | {"kernel": (2, 2), "pads": (1,) * 4, "counted": (1,) * 4, "layout": "NHWC"},
    ),
    (
        "avg_pool3d",
        [(1, 2, 4, 5, 5)],
        WINDOW3 | {"kernel": (2, 2, 3), "counted": (0,) * 6, "layout": "NCDHW"},
    ),
    (
        "max_pool2d_index",
        [WINDOW_TIES, run_op("max_pool2d", WINDOW_TIES, INDEXED | {"layout": "NCHW"})],
        INDEXED | {"layout": "NCHW"},
    ),
    (
        "max_pool2d_index",
        [(1, 7, 6, 3), (1, 7, 6, 3)],
        WINDOW1 | {"kernel": (1, 1), "pads": (0,) * 4, "layout": "NHWC"},
    ),
    (
        "max_pool3d_index",
        [VOLUME, run_op("max_pool3d", VOLUME, INDEXED3 | {"layout": "NCDHW"})],
        INDEXED3 | {"layout": "NCDHW"},
    ),
    ("global_avg_pool", [(2, 3, 5, 4)], {"layout": "NCHW"}),
    ("global_avg_pool", [(2, 5, 4, 3)], {"layout": "NHWC"}),
    ("global_max_pool", [(2, 5, 4, 3)], {"layout": "NHWC"}),
    ("softmax", [(2, 5, 3)], {"axis": 1}),
    ("softmax", [(7,)], {"axis": 0}),
    ("log_softmax", [(2, 5)], {"axis": 1}),
    ("standardise", [(2, 3, 4)], {"axes": (1, 2), "epsilon": 1e-3, "centred": True}),
    ("standardise", [(2, 3, 4)], {"axes": (0,), "epsilon": 1e-3, "centred": False}),
    ("standardise", [(7,)], {"axes": (0,), "epsilon": 0.0, "centred": True}),
    ("lrn", [(1, 5, 3, 2)], LRN | {"axis": 1}),
    ("lrn", [(1, 3, 2, 5)], LRN | {"axis": 3}),
    ("reduce_mean", [(2, 3, 4)], {"axes": (0, 2), "keepdims": False}),
    ("reduce_sum", [(2, 3, 4)], {"axes": (1,), "keepdims": True}),
    ("reduce_max", [(2, 3, 4)], {"axes": (2,), "keepdims": False}),
    ("reduce_min", [(2, 3, 4)], {"axes": (0,), "keepdims": True}),
    ("batch_norm", [(1, 3, 4, 4), (3,), (3,), (3,), "positive:3"], STATISTICS),
    ("transpose", [(2, 3, 4, 5)], {"perm": (3, 0, 2, 1)}),
    ("reshape", [(2, 3, 4)], {"shape": (4, 1, 6)}),
    ("concat", [(2, 3, 4), (2, 1, 4)], {"axis": 1}),
    ("append", [(3, 2, 4), (2, 2, 4)], {}),
    ("pad", [(2, 3)], {"pads": (1, 0, -1, 2), "value": 1.5}),
    ("slice", [(6, 7)], {"begins": (5, 1), "steps": (-2, 3), "extents": (3, 2)}),
    ("gather", [(4, 5, 2), np.array([[1, -1], [0, 4]])], {"axis": 1}),
    ("broadcast_to", [(3, 1)], {"shape": (2, 3, 4)}),
    ("reduce_prod", [(2, 3, 4)], {"axes": (0, 1), "keepdims": False}),
    ("reduce_mean", [np.array([[7, 4], [-8, -3]], np.int32)], {"axes": (1,), "keepdims": False}),
    ("reduce_max", [np.array([[True, False], [False, False]])], {"axes": (1,), "keepdims": True}),
    ("reduce_min", [np.array([[True, False], [True, True]])], {"axes": (0, 1), "keepdims": False}),
    ("reduce_sum", [np.array([[200, 100]], np.uint16)], {"axes": (), "keepdims": False}),
    ("argmax", [TIES], {"axis": 1, "keepdims": False, "last": False}),
    ("argmax", [TIES], {"axis": 0, "keepdims": True, "last": True}),
    ("argmin", [TIES], {"axis": 1, "keepdims": True, "last": True}),
    ("argmin", [np.array([3, 1, 1], np.uint8)], {"axis": 0, "keepdims": False, "last": False}),
    ("top_indices", [TIES], {"axis": 1, "count": 3, "largest": True}),
    ("top_indices", [TIES], {"axis": 0, "count": 2, "largest": False}),
    ("top_indices", [LONG], {"axis": 1, "count": 3, "largest": True}),
    ("top_indices", [LONG], {"axis": 1, "count": 3, "largest": False}),
    ("top_indices", [SEVENS], {"axis": 0, "count": 2, "largest": False}),
    ("cumulative_sum", [(2, 5, 3)], {"axis": 1, "exclusive": False, "reverse": False}),
    ("cumulative_sum", [(2, 5)], {"axis": 1, "exclusive": True, "reverse": True}),
    ("cumulative_sum", [(2, 5)], {"axis": 1, "exclusive": True, "reverse": False}),
    ("cumulative_sum", [(2, 3, 4)], {"axis": 1, "exclusive": False, "reverse": True}),
    ("cumulative_product", [(4, 2)], {"axis": 0, "exclusive": True, "reverse": False}),
    ("cumulative_product", [TIES], {"axis": 1, "exclusive": False, "reverse": True}),
    ("gather_elements", [(3, 4), np.array([[1, -1, 0], [2, 0, -3]])], {"axis": 0}),
    ("gather_elements", [(3, 2), np.array([[1, -1, 0]], np.int32)], {"axis": 1}),
    ("last_writers", [PLACES], {"places": 4}),
    *(("tree_leaves", TREES, {"depth": 3, "flags": flags}) for flags in (0, 1, 2, 3)),
    *(("leaf_sums", [LEAVES, (9, 2)], {"reducer": reducer}) for reducer in ("sum", "min", "max")),
    ("leaf_sums", [LEAVES, (9, 2)], {"reducer": "sum", "columns": True}),
    *(
        ("tree_keys", [EXTREMES.astype(dtype)], {"missing": columns, "columns": columns})
        for dtype in ("float32", "float64")
        for columns in (False, True)
    ),
    *(
        ("tree_exits", [*keys, *SMALL_TREES], {"parts": parts, "columns": keys is COLUMNS})
        for parts in (1, 2)
        for keys in ([KEYS], COLUMNS)
    ),
    *(
        ("write_rows", [(2, 3, 2), (2, 4, 2), WRITERS], {"reduction": reduction})
        for reduction in ("none", "add", "mul", "max", "min")
    ),
    *(
        ("fold_rows", [(2, 4, 3), PLACES, (2, 5, 3)], {"reduction": reduction})
        for reduction in ("add", "mul", "max", "min")
    ),
    ("repeat", [(2, 3, 4)], {"repeats": (1, 3, 2)}),
    ("extend", [(3, 4, 5)], {"pads": (0, 3, 2, 0, 1, 4), "mode": "reflect"}),
    ("extend", [(3, 4)], {"pads": (3, 2, 0, 4), "mode": "wrap"}),
    ("extend", [(3, 1)], {"pads": (3, 2, 0, 4), "mode": "edge"}),
    ("resample", [(2, 5, 3), np.array([[0, 4], [3, 1]], np.int32), (2, 2)], {"axes": (1,)}),
    (
        "resample",
        [(2, 5, 3), SPREAD, (4, 2), SPREAD[:, ::-1], (4, 2)],
        {"axes": (2, 0)},
    ),
    ("resample", [(1, 30, 3), MANY[0], MANY[0].shape], {"axes": (1,)}),
    ("resample", [(2, 4, 3), SPREAD + 1, (4, 2)], {"axes": (1,), "results": (3,)}),
    ("sample", [(2, 3, 7), np.array([[[0, 6], [3, 5]]], np.int32), (1, 2, 2)], {"axis": 2}),
    ("sample", [(2, 30, 3), MANY, MANY.shape], {"axis": 1}),
    (
        "depth_to_space",
        [(2, 24, 3, 4)],
        {"blocks": (2, 3), "groups": 2, "begins": (1, 2), "extents": (4, 9), "layout": "NCHW"},
    ),
    (
        "depth_to_space",
        [(1, 3, 4, 8)],
        {"blocks": (2, 2), "groups": 1, "begins": (0, 0), "extents": (6, 8), "layout": "NHWC"},
    ),
    (
        "depth_to_space",
        [(1, 8, 2, 3, 2)],
        {
            "blocks": (1, 2, 2),
            "groups": 2,
            "begins": (0, 1, 0),
            "extents": (2, 5, 4),
            "layout": "NCDHW",
        },
    ),
    ("where", [np.array([[True], [False]]), (2, 3), (1, 3)], {}),
    ("cast", [(2, 3)], {"to": INT32}),
    ("cast", [np.array([0, 2], np.int32)], {"to": BOOL}),
    ("cast", [np.array([True, False])], {"to": FLOAT32}),
    ("log", ["positive:2,3"], {}),
    ("sqrt", ["positive:2,3"], {}),
    ("power", ["positive:2,3", (2, 3)], {}),
    ("power", [np.array([2, 3, -5], np.int64), np.array([10, 5, 3], np.int64)], {}),
    ("power", ["positive:2", np.array([2, 3], np.int32)], {}),
    ("divide", [np.array([-7, 7, 8], np.int32), np.array([2, -2, 4], np.int32)], {}),
    ("clip", [(2, 3)], {"min": -0.5, "max": 0.25}),
    ("leaky_relu", [(2, 3)], {"alpha": 0.1}),
    ("elu", [(2, 3)], {"alpha": 1.5}),
    ("selu", [(2, 3)], {"alpha": 1.67, "gamma": 1.05}),
    ("hard_sigmoid", [(2, 3)], {"alpha": 0.2, "beta": 0.5}),
    ("arccosh", [np.array([1, 1.5, 7], np.float32)], {}),
    *((op, [np.array([-0.9, 0, 0.5], np.float32)], {}) for op in ("arcsin", "arccos", "arctanh")),
    *((op, [SPECIAL], {}) for op in ("is_nan", "is_inf")),
    *((op, [ROUNDED], {}) for op in ROUNDINGS),
    ("sign", [SPECIAL], {}),
    ("sign", [np.array([7, 0], np.uint32)], {}),
    ("abs", [np.array([7, 0], np.uint16)], {}),
    ("bitcast", [SPECIAL], {"to": UINT32}),
    ("bitcast", [np.array([200, 3], np.uint8)], {"to": INT8}),
    ("logical_not", [np.array([True, False])], {}),
    *((op, [TRUTH, TRUTH[:, 1:]], {}) for op in ("logical_and", "logical_or", "logical_xor")),
    *(
        (op, [np.array([0, 5, np.iinfo(t).max, np.iinfo(t).min], t), np.array([[3], [6]], t)], {})
        for op in ("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right")
        for t in (np.int8, np.uint8, np.uint32, np.uint64)
    ),
    *(
        (op, [np.array([-7, 7, 1], np.int32), np.array([[-1], [32], [31]], np.int32)], {})
        for op in ("shift_left", "shift_right")
    ),
    *(("bitwise_not", [np.array([0, 5], t)], {}) for t in (np.int16, np.uint16, np.uint64)),
    *(
        (op, [np.array([-7, 7, 6], t), np.array([[3], [-3]], t)], {})
        for op in ("mod", "fmod")
        for t in (np.int8, np.int32, np.int64, np.float32)
    ),
    *(
        (op, [np.array([7, 2**16 - 1], np.uint16), np.array([[3], [2**16 - 1]], np.uint16)], {})
        for op in ("mod", "fmod", "divide", "maximum", "less", "add", "subtract")
    ),
    ("swish", [(2, 3)], {"alpha": 1.5}),
]
"""Op, inputs (shape, array, or `positive:shape`), attributes."""

PLAIN_UNARY = (
    *("relu", "sigmoid", "tanh", "hard_swish", "exp", "abs", "negative", "floor", "ceil", "round"),
    *("sin", "cos", "tan", "arctan", "sinh", "cosh", "arcsinh", "sign"),
    *("reciprocal", "softplus", "softsign", "erf", "identity", "gelu", "gelu_tanh", "mish"),
)
PLAIN_BINARY = (
    *("add", "subtract", "multiply", "divide", "quotient", "minimum", "maximum", "prelu"),
    *("equal", "less", "greater", "less_equal", "greater_equal"),
)

CASES += [(name, [(2, 3, 4)], {}) for name in PLAIN_UNARY]
CASES += [(name, [(2, 3, 4), (3, 1)], {}) for name in PLAIN_BINARY]

_CODES = np.random.default_rng(4).integers(0, 256, (1, 4, 6, 5), np.uint8)
_TAPS = np.random.default_rng(5).integers(-128, 128, (8, 4, 3, 3), np.int8)
_SUMS = np.random.default_rng(6).integers(-(2**31), 2**31, (2, 3, 4), np.int32)
_NEAR = (_SUMS >> np.arange(8, 32).reshape(2, 3, 4)).astype(np.int32)
_LIMITED: dict[str, Any] = {"shift": 7, "min": 3, "max": 250, "to": UINT8}
BYTES: list[tuple[str, list[Any], dict[str, Any]]] = [
    (
        "conv2d",
        [_CODES, _TAPS],
        WINDOW | {"pads": (1, 0, 2, 1), "groups": 1, "layout": "NCHW", "border": 77},
    ),
    (
        "depthwise_conv2d",
        [_CODES, _TAPS[:, :1]],
        WINDOW | {"pads": (1, 0, 2, 1), "groups": 4, "layout": "NCHW", "border": 7},
    ),
    ("dense", [_CODES[0, 0], _TAPS[0, :3].reshape(-1, 9)[:, :5]], {}),
    ("matmul", [_CODES[0, :, :, :3], _TAPS[:4, 0]], {}),
    ("reduce_sum", [_CODES], {"axes": (2, 3), "keepdims": True}),
    (
        "requantize",
        [
            _SUMS,
            np.array([[0], [5], [31]], np.int32),
            np.array(-900, np.int32),
            np.array([[1], [2**15], [-300]], np.int32),
        ],
        _LIMITED | {"shift": 21},
    ),
    (
        "requantize",
        [
            _SUMS,
            np.array([[0], [5], [16]], np.int32),
            np.array([[2**20], [-(2**30)], [2**30]], np.int32),
            np.array([[0], [2**15 - 1], [2**14]], np.int32),
        ],
        _LIMITED | {"shift": 21, "to": INT8, "min": -128, "max": 127, "bits": 15},
    ),
    ("requantize", [_NEAR, np.array(3, np.int32), np.array(64, np.int32)], _LIMITED),
    (
        "add_codes",
        [
            _CODES,
            _CODES[..., ::-1].astype(np.int8),
            np.array(2**20, np.int32),
            np.array(77, np.int32),
            np.array(-(2**28), np.int32),
        ],
        _LIMITED | {"shift": 20, "to": INT8, "min": -128, "max": 127},
    ),
    (
        "add_codes",
        [
            _CODES,
            _CODES[..., ::-1].astype(np.int8),
            np.array(2**15 - 1, np.int32),
            np.array(77, np.int32),
            np.array(-(2**22), np.int32),
        ],
        _LIMITED | {"shift": 14, "bits": 15},
    ),
    ("lookup_codes", [_CODES, np.arange(256)[::-1].astype(np.int8)], {}),
    (
        "lookup_codes",
        [_CODES.astype(np.int8), np.linspace(-1, 1, 256, dtype=np.float32)],
        {},
    ),
]
"""Sums of bytes, and bytes of sums."""
CASES += BYTES
_PACKED = np.random.default_rng(6).integers(0, 256, (5, 3, 4)).astype(np.uint8)
_RNG = np.random.default_rng(6)
_WORDS = _RNG.integers(-(2**31), 2**31, (5, 3, 2)).astype(np.int32)
for _bits, *_zeros in ((2, (5, 3)), (4, _PACKED[..., 0]), (8, _PACKED[..., 1]), (4,)):
    for _attrs in ({}, {"rows": "int8"}):
        _data = _RNG.uniform(-0.01, 0.01, (3, 3 * 2 * 32 // _bits)).astype(np.float32)
        _given = [_data, _WORDS, (5, 3), *_zeros]
        CASES += [("dense_blocks", _given, {"bits": _bits} | _attrs)]
_AT = np.array([[0, 2, -1], [3, -4, 1]], np.int64)
for _axis, _along, _size in ((1, 2, 4), (0, 1, 2), (1, 1, 2), (2, 0, 3)):
    _extents = [5, 3, 8]
    _extents[_along] = -(-_extents[_along] // _size)
    _attrs = {"axis": _axis, "along": _along, "block": _size, "bits": 4}
    CASES += [("gather_blocks", [_PACKED, _AT, tuple(_extents), tuple(_extents)], _attrs)]
CASES += [
    ("rotate", [(2, 3, 2, 4), (1, 3, 1, 4), (1, 3, 1, 4)], {"axis": 2}),
    ("rotate", [(2, 3, 4, 2), (2, 1, 4, 1), (2, 1, 4, 1)], {"axis": 3}),
    ("pack_blocks", [(2, 5, 3, 4)], {"batch": 2, "block": 4, "layout": "NCHW"}),
    ("pack_blocks", [(1, 3, 4, 8)], {"batch": 1, "block": 4, "layout": "NHWC"}),
    ("unpack_blocks", [(1, 2, 3, 4, 2, 4)], {"channels": 7, "layout": "NCHW"}),
    ("unpack_blocks", [(2, 2, 3, 4, 1, 4)], {"channels": 5, "layout": "NHWC"}),
    *(
        (
            "resize_along",
            [(2, 5, 3)],
            {"axis": 1, "made": made, "mode": mode, "coordinates": c, "rounding": r, "scale": s},
        )
        for made, mode, c, r, s in (
            (8, "linear", "align_corners", "floor", 0.0),
            (7, "linear", "half_pixel", "floor", 1.5),
            (3, "nearest", "asymmetric", "floor", 0.0),
            (9, "nearest", "half_pixel", "round_prefer_floor", 0.0),
        )
    ),
    ("extents", [], {"values": (7, 3, -2, 9), "shape": (2, 2), "to": INT64}),
    ("extents", [], {"values": (5,), "shape": (), "to": INT32}),
    ("positions", [], {"shape": (3, 4), "steps": (-2, 1), "begin": 5, "to": INT64}),
    ("positions", [], {"shape": (5,), "steps": (3,), "begin": 0, "to": FLOAT32}),
]


def _array(form: Any, rng: np.random.Generator) -> np.ndarray:
    match form:
        case np.ndarray():
            return form
        case str():
            shape = tuple(int(e) for e in form.removeprefix("positive:").split(","))
            return (rng.random(shape) + 0.5).astype(np.float32)
        case _:
            return rng.standard_normal(form).astype(np.float32)


def run_apart(graph: Graph, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs by `MEANINGS`, each of the type that the graph states."""
    values: dict[str, np.ndarray] = {**graph.constants, **inputs}
    for node in graph.nodes:
        (made,) = MEANINGS[node.op]([values[value] for value in node.inputs], node.attrs)
        assert made.shape == graph.types[node.outputs[0]].shape
        values[node.outputs[0]] = made
    return {name: values[name] for name in graph.outputs}


def assert_lowered(graph: Graph, inputs: dict[str, np.ndarray]) -> None:
    lowered = group_tensors(graph)
    found = run_dag(lowered.dag, {lowered.inputs[name].name: a for name, a in inputs.items()})
    evaluated = run_graph(graph, inputs)
    for name, expected in run_apart(graph, inputs).items():
        assert evaluated[name].shape == expected.shape
        assert evaluated[name].dtype == expected.dtype
        np.testing.assert_allclose(evaluated[name], expected, rtol=1e-5, atol=1e-5)
        result = found[lowered.outputs[name].name]
        assert result.shape == expected.shape
        assert result.dtype == expected.dtype
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "forms", "attrs"), CASES, ids=[case[0] for case in CASES])
def test_an_op_as_tensors_is_its_numpy_meaning(name, forms, attrs):
    rng = np.random.default_rng(5)
    build = GraphBuilder(name)
    inputs = {f"in{i}": _array(form, rng) for i, form in enumerate(forms)}
    for value, array in inputs.items():
        build.input(value, TensorType(array.shape, str(array.dtype)))
    graph = build.finish([build.add(name, list(inputs), attrs)]).verify()
    assert_lowered(graph, inputs)


def test_every_op_has_a_tensor_expression_and_a_case():
    elsewhere = ("host", "offload", "loop")
    expressed = {name for name, entry in OPS.items() if entry.kind not in elsewhere}
    assert expressed == {name for name, entry in OPS.items() if entry.expression}
    assert expressed == set(MEANINGS)
    assert expressed == {case[0] for case in CASES}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 100_000), layout=st.sampled_from(["NCHW", "NHWC"]))
def test_groups_as_tensors_compute_what_the_groups_do(seed, layout):
    graph = optimise(random_network(seed), layout)
    rng = np.random.default_rng(seed)
    for group in partition(graph):
        part = group_graph(graph, group)
        kinds = {name: part.types[name].shape for name in part.inputs}
        data = {name: rng.random(shape).astype(np.float32) for name, shape in kinds.items()}
        known = {name: array for name, array in graph.constants.items() if name in kinds}
        assert_lowered(part, data | known)


CONVOLUTION = """
data = PLACEHOLDER float32[1, 32, 32, 3]
weight = PLACEHOLDER float32[3, 3, 3, 32] constant
bias = PLACEHOLDER float32[1, 1, 1, 32] constant
PaddedInput(i0, i1, i2, i3) = select(1 <= i1 and i1 < 33 and 1 <= i2 and i2 < 33,
    data[i0, i1 - 1, i2 - 1, i3], 0.0)
conv2d_nhwc(nn, yy, xx, ff) +=
    PaddedInput[nn, yy*2 + ry, xx*2 + rx, rc] * weight[ry, rx, rc, ff]
T_add(i0, i1, i2, i3) = conv2d_nhwc[i0, i1, i2, i3] + bias[0, 0, 0, i3]
T_relu(i0, i1, i2, i3) = max(T_add[i0, i1, i2, i3], 0.0)
"""
"""The first group of MobileNet."""


def _bare(text: str) -> str:
    """Without what layout and precedence add: how expressions print is not this test's claim."""
    return re.sub(r"[\s()]", "", text)


def test_a_convolution_group_prints_as_loops(models):
    graph = optimise(load_model("zoo:mobilenet", {"data": (1, 3, 32, 32)}, models))
    group = partition(graph)[1]
    assert _bare(str(dag_of(graph, group))) == _bare(CONVOLUTION)


def test_equal_groups_give_equal_keys(mobilenet):
    graph = optimise(mobilenet)
    groups = [g for g in partition(graph) if g.kind == "conv2d"]
    same = [g for g in groups if graph.types[g.params[0]].shape == (1, 1, 512, 512)]
    assert len(same) == 5
    assert len({dag_of(graph, group).key for group in same}) == 1
