"""Reshapes move behind what works element by element, so that layers can take that in.

A product of [batch, words, depth] with a matrix is one of [batch * words, depth], between
reshapes: what follows it (a bias, an activation, a residual sum) would be kernels of its own.
Behind these the reshapes often meet those of the next layer and cancel.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

from retune.core.dims import always_empty, always_equal, always_same
from retune.graph.graph import Graph, Node
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops.registry import lookup
from retune.ops.shapes import same_blocks

Shape = tuple[int, ...]

_FUSING = frozenset({"heavy", "reduction", "elementwise", "broadcast"})
"""Kinds of ops that take in what works element by element on their results (`fuse`)."""


def sink_reshapes(graph: Graph) -> Graph:
    """f(reshape(x), y) -> reshape(f(x, y as x has it)), where x's op can then take in f."""
    return rebuild(graph, partial(_sink, uses=graph.uses()))


def _sink(r: GraphRewriter, node: Node, uses: Mapping[str, Sequence[Node]]) -> str | None:
    shape = r.old.types[node.outputs[0]].shape
    source = next((s for v in node.inputs if (s := _movable(r, v, shape, uses))), None)
    if not _plain(node) or source is None or always_empty(shape):
        return None
    wanted = r.shape(source)
    shapes = [operand_shape(r.shape(value), shape, wanted) for value in node.inputs if value]
    if any(entry is None for entry in shapes):
        return None
    rest = iter(shapes)
    inputs = tuple(value and _under(r, value, next(rest) or ()) for value in node.inputs)
    made = r.emit(node.op, inputs, node.attrs)
    return r.emit("reshape", (made,), {"shape": shape}, node.outputs[0])


def _plain(node: Node) -> bool:
    """Whether the node works element by element, whatever the shape."""
    return lookup(node.op).kind in ("elementwise", "broadcast") and "axis" not in node.attrs


def _movable(r: GraphRewriter, value: str, shape: Shape, uses: Mapping[str, Sequence[Node]]) -> str:
    """x, if the value is reshape(x) of that shape, only such nodes read it, and x's op fuses."""
    reshape = r.producer(value) if value else None
    if reshape is None or reshape.op != "reshape" or not always_same(r.shape(value), shape):
        return ""
    source = reshape.inputs[0]
    maker = r.producer(source)
    if maker is not None and maker.op == "transpose" and r.only_use(maker.inputs[0]):
        maker = r.producer(maker.inputs[0])  # products store their results transposed
    if maker is None or lookup(maker.op).kind not in _FUSING or not r.only_use(source):
        return ""
    readers = uses.get(value, ())
    alike = all(_plain(n) and always_same(r.old.types[n.outputs[0]].shape, shape) for n in readers)
    return source if value not in r.old.ends and (alike or r.only_use(value)) else ""


def _under(r: GraphRewriter, value: str, shape: Shape) -> str:
    """The value under that shape; what a reshape made of it, if that has the shape."""
    if always_same(r.shape(value), shape):
        return value
    made = r.producer(value)
    if made is not None and made.op == "reshape":
        value = made.inputs[0]
    same = always_same(r.shape(value), shape)
    return value if same else r.emit("reshape", (value,), {"shape": shape})


def operand_shape(operand: Shape, made: Shape, source: Shape) -> Shape | None:
    """What broadcasts with `source` as the operand does with `made`, a reshape of it.

    Within dimensions that the reshape joins or parts the operand must have all of the extents, or
    be 1 along each: None if it does not.
    """
    if always_equal(prod(operand), 1):
        return operand if len(operand) <= len(source) else ()
    stated = (1,) * (len(made) - len(operand)) + operand
    found: list[int] = []
    for there, here in same_blocks(made, source):
        extents = [(stated[d], made[d]) for d in there if not always_equal(made[d], 1)]
        if all(always_equal(own, whole) for own, whole in extents):
            found += [source[d] for d in here]
        elif all(always_equal(own, 1) for own, _ in extents):
            found += [1] * len(here)
        else:
            return None
    return tuple(found)
