"""Folding into nodes that number or count elements the operations that follow them.

Networks with open lengths count their tokens and spread the numbers over matrices: masks, tables of
positions. These nodes have no inputs, so each group that reads one computes it (`graph/fuse.py`),
as long as nothing but arithmetic stands between.
"""

from collections.abc import Sequence

from retune.core.dims import always_equal, is_fixed, never_above
from retune.core.dtypes import INT32, INT64, DType
from retune.graph.graph import Node
from retune.graph.rewrite import GraphRewriter
from retune.ops.extents import EXTENTS, POSITIONS
from retune.ops.registry import AttrValue, integer, ints
from retune.ops.shapes import same_but_ones


def move_positions(r: GraphRewriter, node: Node) -> str | None:
    """move(positions) -> positions of another shape; cast(positions), cast(extents) -> the same."""
    made = r.producer(node.inputs[0])
    if made is None or made.op not in (POSITIONS, EXTENTS):
        return None
    shape = r.old.types[node.outputs[0]].shape
    attrs: dict[str, AttrValue] | None = None
    if node.op == "cast" and _are_whole(made) and _holds_numbers(node):
        attrs = {**made.attrs, "to": node.attrs["to"]}
    elif made.op == POSITIONS:
        steps = _steps(node, r.shape(node.inputs[0]), ints(made.attrs, "steps"), shape)
        attrs = None if steps is None else {**made.attrs, "shape": shape, "steps": steps}
    return None if attrs is None else r.emit(made.op, (), attrs, node.outputs[0])


def _are_whole(made: Node) -> bool:
    """Whether its numbers are exact: those of smaller types may wrap."""
    return made.attrs["to"] in (INT32, INT64)


def _holds_numbers(cast: Node) -> bool:
    to = DType(str(cast.attrs["to"]))
    return to.is_float or to in (INT32, INT64)


def _steps(
    node: Node, old: tuple[int, ...], steps: Sequence[int], shape: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Those of the moved positions along each dimension; None for other ops."""
    match node.op:
        case "reshape" if same_but_ones(old, shape):
            pairs = zip(steps, old, strict=True)
            real = iter([step for step, n in pairs if not always_equal(n, 1)])
            return tuple(0 if always_equal(n, 1) else next(real) for n in shape)
        case "transpose":
            return tuple(steps[d] for d in ints(node.attrs, "perm"))
        case "broadcast_to":
            ahead = len(shape) - len(old)
            kept = (
                step if always_equal(n, whole) else 0
                for step, n, whole in zip(steps, old, shape[ahead:], strict=True)
            )
            return (*(0,) * ahead, *kept)
        case _:
            return None


def gather_of_positions(r: GraphRewriter, node: Node) -> str | None:
    """gather(x, positions) -> a slice of x, where all positions are inside."""
    made = r.producer(node.inputs[1]) if node.op == "gather" else None
    if made is None or made.op != POSITIONS or len(ints(made.attrs, "shape")) != 1:
        return None
    axis, shape = integer(node.attrs, "axis"), r.shape(node.inputs[0])
    (count,), (step,) = ints(made.attrs, "shape"), ints(made.attrs, "steps")
    begin = integer(made.attrs, "begin")
    if not is_fixed(step) or step < 1 or not never_above(0, begin):
        return None
    if not never_above(begin + (count - 1) * step + 1, shape[axis]):
        return None
    ends = [(begin, count, step) if d == axis else (0, n, 1) for d, n in enumerate(shape)]
    begins, extents, steps = zip(*ends, strict=True)
    attrs: dict[str, AttrValue] = {"begins": begins, "extents": extents, "steps": steps}
    return r.emit("slice", node.inputs[:1], attrs, node.outputs[0])
