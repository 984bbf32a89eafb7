"""Attention as one op: softmax of scaled products of queries and keys, times values.

The importers make products and a softmax of it (`frontend.onnx.ops.attention`); the pass
`attention` joins these where a device computes them by one kernel.
"""

from collections.abc import Sequence
from dataclasses import replace

from retune.core.dims import always_same
from retune.core.dtypes import TensorType
from retune.ir.expr import Expr, const, select
from retune.ir.te import Tensor, reduce_axis
from retune.ops.linear import product
from retune.ops.normalisation import softmax
from retune.ops.registry import Attrs, OpCall, integer, number, op, present
from retune.ops.shapes import broadcast_shapes, require


def _infer_attention(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    del attrs
    query, key, value = (present(types, n) for n in range(3))
    (*batch, length, width), (*_, keys, _) = query.shape, key.shape
    fits = always_same(key.shape, (*batch, keys, width))
    fits = fits and always_same(value.shape[:-1], (*batch, keys))
    scores = (*batch, length, keys)
    if len(types) > 3:
        bias = present(types, 3)
        fits = fits and always_same(broadcast_shapes(bias.shape, scores), scores)
    require(
        fits and query.dtype == key.dtype == value.dtype,
        lambda: (
            f"attention of {', '.join(map(str, types))}: expected queries [..., i, d], keys "
            "[..., j, d], values [..., j, e] and a bias of [..., i, j], of one element type"
        ),
    )
    return (TensorType((*batch, length, value.shape[-1]), query.dtype),)


@op("attention", kind="heavy", infer=_infer_attention)
def attention(c: OpCall) -> Tensor:
    """softmax(scale * q k^T + bias) v; with `causal`, query i sees keys up to i + causal alone."""
    query, key, value, *bias = c.inputs
    rank = len(query.shape)
    d, j = reduce_axis("d", query.shape[-1]), reduce_axis("j", key.shape[-2])
    axes = [*(f"b{n}" for n in range(rank - 2)), "i"]
    shape = (*query.shape[:-1], key.shape[-2])
    wide = replace(c, output=TensorType(shape, c.output.dtype))

    def scored(*at: Expr) -> Expr:
        return product(query[(*at[:-1], d.var)], key[(*at[:-2], at[-1], d.var)], wide)

    scores = wide.stage(
        scored, [query, key], stem="T_attention_scores", reduce=[d], axes=[*axes, "j"]
    )

    def seen(*at: Expr) -> Expr:
        found = scores[at] * const(number(c.attrs, "scale"), scores.dtype)
        for one in bias:
            found = found + wide.read(one, at)
        if "causal" not in c.attrs:
            return found
        last = at[-2] + integer(c.attrs, "causal")
        return select(at[-1] <= last, found, const(float("-inf"), found.dtype))

    biased = wide.stage(seen, [scores, *bias], stem="T_attention_biased", axes=[*axes, "j"])
    weights = softmax(replace(wide, inputs=[biased], attrs={"axis": rank - 1}))

    def summed(*at: Expr) -> Expr:
        return product(weights[(*at[:-1], j.var)], value[(*at[:-2], j.var, at[-1])], c)

    return c.stage(summed, [weights, value], reduce=[j], axes=[*axes, "e"])
