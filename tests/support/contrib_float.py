"""Cases of the operators that onnxruntime's optimisers write: products, activations, norms."""

from functools import partial
from math import sqrt
from typing import Any

import numpy as np
from scipy.special import erf

from tests.support.contrib import Array, Case, add, model_of, rand, sigmoid
from tests.support.peer import peer_outputs

ids = np.random.default_rng(3).integers(0, 9, (2, 5)).astype(np.int32)


def gelu(x: Array) -> Array:
    """By the normal distribution's function."""
    return (x * 0.5 * (1 + erf(x / sqrt(2)))).astype(np.float32)


def _convolutions() -> None:
    x, w, b = rand(1, 8, 7, 6), rand(6, 8, 3, 3, seed=1, scale=0.2), rand(6, seed=2)
    same = {"kernel_shape": [3, 3], "pads": [1] * 4}
    z = rand(1, 6, 7, 6, seed=3)
    inputs, known = {"x": x, "w": w, "b": b}, ("w", "b")
    for name, params in {
        "Relu": [], "Tanh": [], "Sigmoid": [], "LeakyRelu": [0.1], "Clip": [-0.5, 0.75],
        "HardSigmoid": [0.3, 0.4],
    }.items():  # fmt: skip
        more = {"activation_params": params} if params else {}
        add(
            f"conv_{name.lower()}",
            "FusedConv",
            inputs,
            known=known,
            activation=name,
            **same,
            **more,
        )
    add("conv_plain", "FusedConv", {"x": x, "w": w}, known=("w",), strides=[2, 2])
    add(
        "conv_sum",
        "FusedConv",
        {**inputs, "z": z},
        known=known,
        activation="Relu",
        **same,
    )
    grouped = {"x": x, "w": rand(8, 1, 3, 3, seed=1), "b": rand(8)}
    add("conv_group", "FusedConv", grouped, known=known, group=8, activation="Relu", **same)
    line = {"x": rand(1, 4, 9), "w": rand(3, 4, 3, seed=1), "b": rand(3)}
    add("conv_line", "FusedConv", line, known=known, activation="Relu")
    _last(x, w, b, z)


def _last(x: Array, w: Array, b: Array, z: Array) -> None:
    """Channels-last data; what is meant is the same operator over NCHW."""

    def fused(attrs: dict[str, Any], x: Array, **others: Array) -> Array:
        inputs = {"x": x, **others}
        first = {k: a.transpose(0, 3, 1, 2).copy() if k in "xz" else a for k, a in inputs.items()}
        case = Case(op="FusedConv", inputs=first, attrs=attrs)
        return peer_outputs(model_of(case), first)["y"].transpose(0, 2, 3, 1)

    inputs = {"x": x.transpose(0, 2, 3, 1).copy(), "w": w, "b": b}
    known = ("w", "b")
    add("nhwc_conv", "NhwcConv", inputs, known=known, meaning=partial(fused, {}))
    attrs = {"activation": "Relu", "pads": [1] * 4}
    whole = {**inputs, "z": z.transpose(0, 2, 3, 1).copy()}
    add("nhwc_fused_conv", "NhwcFusedConv", whole, known=known, meaning=partial(fused, attrs),
        **attrs)  # fmt: skip
    op, codes = "NhwcMaxPool", np.random.default_rng(0).integers(0, 256, (1, 6, 7, 3))
    for dtype in (np.uint8, np.int8):
        pool = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": [1, 1, 0, 0]}
        add(f"nhwc_max_pool_{np.dtype(dtype)}", op, {"x": codes.astype(dtype)}, **pool)
    ceil = {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
    add("nhwc_max_pool_ceil", op, {"x": codes.astype(np.uint8)}, **ceil)


def _products() -> None:
    a, b = rand(2, 3, 4), rand(2, 4, 5, seed=1)
    add("matmul", "FusedMatMul", {"a": a, "b": b}, alpha=0.5)
    add("matmul_known", "FusedMatMul", {"a": a, "b": b[0]}, known=("b",), alpha=0.5)
    turned = {"a": a.transpose(0, 2, 1).copy(), "b": b.transpose(0, 2, 1).copy()}
    add("matmul_turned", "FusedMatMul", turned, transA=1, transB=1, alpha=0.25)
    add("matmul_turned_known", "FusedMatMul", {"a": a, "b": b[1].T.copy()}, known=("b",), transB=1)
    add("matmul_vector", "FusedMatMul", {"a": a[0, 0], "b": b}, transA=1)
    add("transpose_matmul", "TransposeMatMul", turned, transA=1, transB=1, alpha=2.0)
    batch = {"a": a.transpose(1, 0, 2).copy(), "b": b.transpose(1, 0, 2).copy()}
    add("matmul_batch", "FusedMatMul", batch, transBatchA=1, transBatchB=1)
    both = {"a": a.transpose(2, 0, 1).copy(), "b": b}
    add("matmul_batch_turned", "FusedMatMul", both, transBatchA=1, transA=1)
    deep = {"a": rand(3, 2, 2, 4), "b": rand(2, 2, 4, 5)}
    add("matmul_batches", "FusedMatMul", deep, transBatchA=1)

    def relu(a: Array, b: Array) -> Array:
        return np.maximum(a @ b * np.float32(0.5), 0)

    def softmax(a: Array, b: Array) -> Array:
        x = np.exp(a @ b)
        return x / x.sum(-1, keepdims=True)

    op = "FusedMatMulActivation"
    add("matmul_relu", op, {"a": a, "b": b}, activation="Relu", alpha=0.5, meaning=relu)
    add("matmul_softmax", op, {"a": a, "b": b}, activation="Softmax", meaning=softmax)
    gemm = {"a": rand(3, 4), "b": rand(4, 5, seed=1), "c": rand(5, seed=2)}
    for name, more in {
        "Relu": {}, "LeakyRelu": {"activation_alpha": 0.2}, "Tanh": {}, "Sigmoid": {},
        "Elu": {"activation_alpha": 0.5}, "Softplus": {},
        "HardSigmoid": {"activation_alpha": 0.3, "activation_beta": 0.4},
    }.items():  # fmt: skip
        add(f"gemm_{name.lower()}", "FusedGemm", gemm, known=("b",), activation=name, **more)
    turned = {"a": rand(4, 3), "b": rand(5, 4)}
    add("gemm_turned", "FusedGemm", turned, transA=1, transB=1, activation="Relu", alpha=0.5)


def _activations() -> None:
    x, b = rand(2, 3, 8), rand(8, seed=1)
    add("gelu", "Gelu", {"x": x})
    add("bias_gelu", "BiasGelu", {"x": x, "b": b}, known=("b",))
    add("fast_gelu", "FastGelu", {"x": x})
    add("fast_gelu_bias", "FastGelu", {"x": x, "b": b})
    add("quick_gelu", "QuickGelu", {"x": x})
    add("quick_gelu_alpha", "QuickGelu", {"x": x, }, alpha=0.5)  # fmt: skip
    z = rand(2, 3, 8, seed=4)

    def product(x: Array, w: Array, b: Array) -> Array:
        made = x @ w + b
        return made * 0.5 * (1 + np.tanh(sqrt(2 / np.pi) * (made + 0.044715 * made**3)))

    weights = {"w": rand(8, 5, seed=2), "b": rand(5)}
    add("gemm_fast_gelu", "GemmFastGelu", {"x": x, **weights}, known=("w", "b"), meaning=product)
    add("bias_add", "BiasAdd", {"x": x, "b": b, "z": z}, meaning=lambda x, b, z: x + b + z)

    def split(x: Array, b: Array) -> Array:
        left, right = np.split(x + b, 2, axis=-1)
        return left * gelu(right)

    add("bias_split_gelu", "BiasSplitGelu", {"x": x, "b": b}, meaning=split)

    def softmax(x: Array, b: Array) -> Array:
        made = np.exp(x + b)
        return made / made.sum(-1, keepdims=True)

    scores = rand(2, 2, 3, 4)
    mask, last = {"x": scores, "b": rand(2, 1, 1, 4)}, {"x": scores, "b": rand(2, 3, 4)}
    op = "BiasSoftmax"
    add("bias_softmax", op, mask, axis=3, is_inner_broadcast=1, meaning=softmax)
    add("bias_softmax_outer", op, last, axis=3, is_inner_broadcast=0, meaning=softmax)

    def inner(x: Array, b: Array) -> Array:
        return softmax(x, b[:, None, None])

    add("bias_softmax_inner", op, {"x": scores, "b": rand(2, 4)}, axis=3, is_inner_broadcast=1,
        meaning=inner)  # fmt: skip

    def dropout(x: Array, b: Array, z: Array) -> tuple[Array, Array]:
        return x + b + z, np.ones(x.shape, np.bool_)

    add("bias_dropout", "BiasDropout", {"x": x, "b": b, "z": z}, outputs=("y", "m"),
        meaning=dropout)  # fmt: skip


def _norms() -> None:
    x, skip, scale, shift = rand(2, 3, 8), rand(2, 3, 8, seed=1), rand(8, seed=2), rand(8, seed=3)
    bias = rand(8, seed=4)
    op, known = "SkipLayerNormalization", ("s", "t", "b")
    whole = {"x": x, "k": skip, "s": scale, "t": shift, "b": bias}
    add("skip_norm", op, whole, known=known, epsilon=1e-5)
    add("skip_norm_sum", op, whole, known=known, outputs=("y", "", "", "sum"))
    plain = {"x": x, "k": skip, "s": scale}
    add("skip_norm_plain", op, plain, known=("s",))
    biased = {**plain, "b": bias}
    add("skip_norm_bias", op, biased, known=("s", "b"), reads=("x", "k", "s", "", "b"))
    add("skip_norm_broadcast", op, {**whole, "k": skip[:1]}, known=known)
    add("skip_norm_matrix", op, {**whole, "k": skip[0]}, known=known)

    op = "SkipSimplifiedLayerNormalization"
    add("skip_rms", op, plain, known=("s",), epsilon=1e-6)
    add("skip_rms_sum", op, biased, outputs=("y", "", "", "sum"))
    add("skip_rms_rows", op, {"x": x[0], "k": skip[0], "s": scale}, known=("s",))

    op = "SimplifiedLayerNormalization"
    for axis in (-1, 1):
        inputs = {"x": x, "s": rand(*x.shape[axis:])}
        add(f"rms{axis}", op, inputs, domain="", axis=axis, epsilon=1e-4)
    add("rms_deviation", op, {"x": x, "s": scale}, domain="", outputs=("y", "d"))
    _embedded()
    _groups()


def _embedded() -> None:
    op = "EmbedLayerNormalization"
    tables = {
        "words": rand(9, 6), "places": rand(7, 6, seed=1), "kinds": rand(2, 6, seed=2),
        "gamma": rand(6, seed=3), "beta": rand(6, seed=4),
    }  # fmt: skip
    kinds = (ids % 2).astype(np.int32)
    mask = (ids > 2).astype(np.int32)
    inputs = {"ids": ids, "segments": kinds, **tables, "mask": mask}
    outputs = ("y", "index")
    add("embed", op, inputs, known=tuple(tables), outputs=outputs, epsilon=1e-5)
    add("embed_sum", op, inputs, known=tuple(tables), outputs=("y", "index", "sum"))
    some = {k: v for k, v in inputs.items() if k not in ("segments", "kinds", "mask")}
    reads = ("ids", "", "words", "places", "", "gamma", "beta")
    add("embed_words", op, some, outputs=outputs, reads=reads)
    moved = {**some, "at": ids % 7}
    add("embed_places", op, moved, outputs=outputs, reads=(*reads, "", "at"))


def normalised(x: Array, gamma: Array, beta: Array, groups: int) -> Array:
    """Group normalisation of NHWC data."""
    n, h, w, c = x.shape
    parts = x.reshape(n, h, w, groups, c // groups).astype(np.float64)
    centred = parts - parts.mean((1, 2, 4), keepdims=True)
    spread = np.sqrt(np.square(centred).mean((1, 2, 4), keepdims=True) + 1e-5)
    return ((centred / spread).reshape(x.shape) * gamma + beta).astype(np.float32)


def _groups() -> None:
    x, scale, shift = rand(2, 3, 4, 6), rand(6, seed=1), rand(6, seed=2)
    inputs = {"x": x, "gamma": scale, "beta": shift}

    def last(x: Array, gamma: Array, beta: Array) -> Array:
        made = normalised(x, gamma, beta, 3)
        return made * sigmoid(made)

    def first(x: Array, gamma: Array, beta: Array) -> Array:
        return normalised(x.transpose(0, 2, 3, 1), gamma, beta, 2).transpose(0, 3, 1, 2)

    add("group_norm", "GroupNorm", inputs, groups=3, activation=1, meaning=last)
    turned = {**inputs, "x": x.transpose(0, 3, 1, 2).copy()}
    add("group_norm_first", "GroupNorm", turned, groups=2, activation=0, channels_last=0,
        meaning=first)  # fmt: skip

    def skipped(x: Array, gamma: Array, beta: Array, skip: Array, bias: Array) -> tuple[Array, ...]:
        skip = skip[:, None, None] if skip.ndim == 2 else skip
        total = x + skip + bias
        return last(total, gamma, beta), total

    for name, skip in {"": rand(2, 3, 4, 6, seed=5), "_channels": rand(2, 6, seed=5)}.items():
        whole = {**inputs, "skip": skip, "bias": rand(6, seed=6)}
        add(f"skip_group_norm{name}", "SkipGroupNorm", whole, outputs=("y", "s"), groups=3,
            activation=1, meaning=skipped)  # fmt: skip


_convolutions()
_products()
_activations()
_norms()
