"""Ensembles of decision trees: which leaf each tree reaches, and what the leaves add up to.

Read `tree_leaves`. The nodes of all trees lie in arrays, leaves among them: a leaf's children are
itself, so that as many steps as the deepest tree has lead every row of data to its leaf. A step is
a stage of its own.

    splits[node]    = feature * 4 + STRICT (less than, not less or equal) + MISSING (a NaN is less)
    children[node]  = the next node where the data is less, and where it is not
"""

from collections.abc import Sequence
from functools import partial
from typing import cast as cast_type

from retune.core.dtypes import INT32, TensorType
from retune.ir.expr import Expr, all_of, binary, const, equal, select
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
        value, limit = x[n, binary("shr", split, const(2))], limits[at]
        less = binary("le", value, limit)
        if flags & STRICT:
            apart = binary("ne", value, limit)
            less = all_of(less, binary("or", _lacks(split, STRICT), apart))
        if flags & MISSING:
            missing = all_of(call("isnan", value), _has(split, MISSING))
            less = binary("or", less, missing)
        return children[at, select(less, const(0), const(1))]

    for _ in range(integer(c.attrs, "depth")):
        operands = [node, x, splits, limits, children]
        node = c.stage(partial(step, node), operands, stem="T_step")
    return node


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
    rows, groups, _ = leaves.shape
    return (TensorType((rows, groups * weights.shape[1]), weights.dtype),)


@op("leaf_sums", kind="reduction", infer=_infer_sums)
def leaf_sums(c: OpCall) -> Tensor:
    """T_leaf_sums(n, g * columns + j) = sum (min, max) over t of weights[leaves[n, g, t], j]."""
    leaves, weights = c.inputs
    columns = weights.shape[1]
    t = reduce_axis("t", leaves.shape[2])
    reducer = cast_type("Reducer", c.attrs["reducer"])
    return c.stage(
        lambda n, i: weights[leaves[n, i // columns, t], i % columns], reduce=[t], reducer=reducer
    )
