"""Ensembles of decision trees: which leaf each tree reaches, and what the leaves add up to.

Two operators find the leaves. `tree_leaves` walks: the nodes of all trees lie in arrays, leaves
among them. A leaf's children are itself, so that as many steps as the deepest tree has lead every
row of data to its leaf. A step is a stage of its own.

    splits[node]    = feature * 4 + STRICT (less than, not less or equal) + MISSING (a NaN is less)
    children[node]  = the next node where the data is less, and where it is not

`tree_exits` compares with all nodes of trees with few leaves: vectors of integers, and no address
that depends on the data. `tree_keys` makes the integers that it compares; they have the order of
the numbers, so that one comparison serves all kinds of nodes.
"""

from collections.abc import Sequence
from functools import partial
from typing import cast as cast_type

import numpy as np

from retune.core.dtypes import FLOAT32, FLOAT64, INT32, INT64, Array, TensorType
from retune.ir.expr import Expr, all_of, binary, bitcast, cast, const, equal, select
from retune.ir.functions import call
from retune.ir.te import Reducer, Tensor, reduce_axis
from retune.ops.registry import Attrs, OpCall, integer, op, present
from retune.ops.shapes import require

STRICT, MISSING = 1, 2
"""Bits of a split."""
FEATURE = 4
"""What a split's feature is multiplied by."""
REDUCERS = ("sum", "min", "max")


def _infer_leaves(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data, splits, limits, children, roots = (present(types, i) for i in range(5))
    nodes = splits.shape
    require(
        len(data.shape) == 2
        and data.dtype == limits.dtype
        and len(nodes) == len(roots.shape) == 1
        and limits.shape == nodes
        and children.shape == (*nodes, 2)
        and {splits.dtype, children.dtype, roots.dtype} == {INT32}
        and integer(attrs, "depth") >= 0,
        lambda: (
            f"tree_leaves of {data} by {splits}, {limits}, {children}, {roots}: expected a matrix, "
            "int32 splits and limits of the data's type [nodes], int32 children [nodes, 2] and "
            "int32 roots [trees]"
        ),
    )
    return (TensorType((data.shape[0], roots.shape[0]), INT32),)


@op("tree_leaves", kind="opaque", infer=_infer_leaves)
def tree_leaves(c: OpCall) -> Tensor:
    """T_step(n, t) = children[node, x[n, feature] <= limit ? 0 : 1] from roots[t] on, repeated."""
    x, splits, limits, children, roots = c.inputs
    flags = integer(c.attrs, "flags")
    node = c.stage(lambda _, t: roots[t], [roots], stem="T_root")

    def step(before: Tensor, n: Expr, t: Expr) -> Expr:
        at = before[n, t]
        split = splits[at]
        less = _is_less(x[n, _feature(split)], limits[at], split, flags)
        return children[at, select(less, const(0), const(1))]

    for _ in range(integer(c.attrs, "depth")):
        operands = [node, x, splits, limits, children]
        node = c.stage(partial(step, node), operands, stem="T_step")
    return node


def ordered(values: Array) -> Array:
    """Integers in the order of the floats, int32 or int64 as these are wide; a NaN is the least."""
    bits = values.view(f"int{8 * values.dtype.itemsize}")
    limits = np.iinfo(bits.dtype)
    keys = np.where(bits < 0, bits ^ limits.max, bits)
    return np.where(np.isnan(values), limits.min, np.where(values == 0, 0, keys))


def words_of(keys: Array) -> Array:
    """Keys as int32 whose first difference orders them, along a new first axis."""
    if keys.dtype == np.int32:
        return keys[None]
    low = (keys & 0xFFFFFFFF) + INT32.limits[0]
    return np.stack([keys >> 32, low]).astype(np.int32)


def _infer_keys(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    data = present(types)
    require(
        len(data.shape) == 2 and data.dtype in (FLOAT32, FLOAT64),
        lambda: f"tree_keys of {data}: expected a matrix of float32 or float64",
    )
    rows, features = data.shape[0], data.shape[1] * (1 + bool(attrs["missing"]))
    shape = (features, rows) if attrs["columns"] else (rows, features)
    return (TensorType((data.dtype.itemsize // 4, *shape), INT32),)


@op("tree_keys", kind="injective", infer=_infer_keys)
def tree_keys(c: OpCall) -> Tensor:
    """T(word, n, f) = the words of x[n, f] as an integer in the order of the floats.

    A NaN is the greatest one. With `missing`, the features are there once more, and a NaN is the
    least one among these. With `columns` the result is (word, f, n).
    """
    (x,), columns = c.inputs, bool(c.attrs["columns"])
    kind = INT32 if x.dtype == FLOAT32 else INT64
    least, most = kind.limits
    infinity = int(np.array(np.inf, x.dtype.numpy).view(kind.numpy))
    features = x.shape[1]

    def body(word: Expr, *at: Expr) -> Expr:
        f, n = at if columns else at[::-1]
        bits = bitcast(x[n, f % features], kind)
        size = binary("bitand", bits, const(most, kind))
        key = select(bits < 0, binary("bitxor", bits, const(most, kind)), bits)
        key = select(equal(size, const(0, kind)), const(0, kind), key)
        missing = select(f < features, const(most, kind), const(least, kind))
        key = select(binary("lt", const(infinity, kind), size), missing, key)
        if kind == INT32:
            return key
        low = binary("bitand", key, const(0xFFFFFFFF, INT64)) + INT32.limits[0]
        return cast(select(word < 1, binary("shr", key, const(32, INT64)), low), INT32)

    return c.stage(body)


def _infer_exits(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    keys, features, limits, masks = (present(types, i) for i in range(4))
    parts = integer(attrs, "parts")
    require(
        {keys.dtype, features.dtype, limits.dtype, masks.dtype} == {INT32}
        and len(keys.shape) == len(limits.shape) == 3
        and len(features.shape) == 2
        and features.shape == limits.shape[1:] == masks.shape
        and keys.shape[0] == limits.shape[0]
        and features.shape[1] % parts == 0,
        lambda: (
            f"tree_exits of {keys} by {features}, {limits}, {masks} in {parts} parts: expected "
            "int32 keys [words, rows, features], features and masks [nodes, trees * parts] and "
            "limits [words, nodes, trees * parts]"
        ),
    )
    trees = features.shape[1] // parts
    shape = (trees, keys.shape[2]) if attrs["columns"] else (keys.shape[1], trees)
    return (TensorType(shape, INT32),)


@op("tree_exits", kind="opaque", infer=_infer_exits)
def tree_exits(c: OpCall) -> Tensor:
    """T(n, t) = 32 c + leading zeros of left(n, c), for the first part c of t that is not 0, where
    left(n, c) = AND over i of keys[n, features[i, c]] <= limits[i, c] ? all bits : masks[i, c].

    The bits of a tree's parts are its leaves, from the left and from the highest bit on. A node
    whose comparison fails rules out the leaves below its left child; of those that remain, the
    first one is reached. With `columns`, keys are [words, features, rows] and the result is
    [trees, rows], so that vectors are rows.
    Source: Lucchese et al., QuickScorer: A Fast Algorithm to Rank Documents with Additive Ensembles
    of Regression Trees, SIGIR 2015.
    """
    keys, features, limits, masks = c.inputs
    parts, columns = integer(c.attrs, "parts"), bool(c.attrs["columns"])
    i, shape = reduce_axis("i", features.shape[0]), c.output.shape
    shape = (shape[0] * parts, shape[1]) if columns else (shape[0], shape[1] * parts)

    def left(*at: Expr) -> Expr:
        part, n = at if columns else at[::-1]
        feature = features[i.var, part]
        words = range(keys.shape[0])
        data = [keys[(w, feature, n) if columns else (w, n, feature)] for w in words]
        less = binary("le", data[-1], limits[words[-1], i.var, part])
        for word in words[:-1]:
            limit = limits[word, i.var, part]
            less = binary("or", data[word] < limit, all_of(equal(data[word], limit), less))
        return select(less, const(-1), masks[i.var, part])

    found = c.stage(left, stem="T_left", shape=shape, reduce=[i], reducer="bitand")

    def number(part: Expr, n: Expr) -> Expr:
        bits = found[(part, n) if columns else (n, part)]
        first = call("leading_zeros", bits) + part * 32
        return first if parts == 1 else select(equal(bits, const(0)), INT32.limits[1], first)

    each = reduce_axis("part", parts)

    def first(*at: Expr) -> Expr:
        t, n = at if columns else at[::-1]
        return number(t if parts == 1 else t * parts + each.var, n)

    reduce = [each] if parts > 1 else []
    return c.stage(first, [found], reduce=reduce, reducer="min")


def _feature(split: Expr) -> Expr:
    return binary("shr", split, const(2))


def _is_less(value: Expr, limit: Expr, split: Expr, flags: int) -> Expr:
    """The comparison of a node; `flags` are those that some node has."""
    less = binary("le", value, limit)
    if flags & STRICT:
        apart = binary("ne", value, limit)
        less = all_of(less, binary("or", _lacks(split, STRICT), apart))
    if flags & MISSING:
        missing = all_of(call("isnan", value), _has(split, MISSING))
        less = binary("or", less, missing)
    return less


def _lacks(split: Expr, bit: int) -> Expr:
    return equal(binary("bitand", split, const(bit)), const(0))


def _has(split: Expr, bit: int) -> Expr:
    return binary("ne", binary("bitand", split, const(bit)), const(0))


def _infer_sums(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    leaves, weights = present(types), present(types, 1)
    require(
        len(leaves.shape) == 3
        and leaves.dtype == INT32
        and len(weights.shape) == 2
        and attrs["reducer"] in REDUCERS,
        lambda: (
            f"leaf_sums of {leaves} and {weights}: expected int32 leaves [rows, groups, trees], "
            f"weights [nodes, columns] and one of {', '.join(REDUCERS)}"
        ),
    )
    groups, rows = leaves.shape[:3:2] if bool(attrs.get("columns", False)) else leaves.shape[1::-1]
    return (TensorType((rows, groups * weights.shape[1]), weights.dtype),)


@op("leaf_sums", kind="reduction", infer=_infer_sums)
def leaf_sums(c: OpCall) -> Tensor:
    """T_leaf_sums(n, g * columns + j) = sum (min, max) over t of weights[leaves[n, g, t], j].

    With `columns`, leaves are [groups, trees, rows].
    """
    leaves, weights = c.inputs
    each, columns = weights.shape[1], bool(c.attrs.get("columns", False))
    t = reduce_axis("t", leaves.shape[1 if columns else 2])
    reducer = cast_type("Reducer", c.attrs["reducer"])

    def body(n: Expr, i: Expr) -> Expr:
        leaf = leaves[i // each, t, n] if columns else leaves[n, i // each, t]
        return weights[leaf, i % each]

    return c.stage(body, reduce=[t], reducer=reducer)
