"""Operands of matrix products in a form that the product can read in place.

Attention cuts queries, keys and values out of one array, puts their heads in front and scales them.
Here numbers move behind the product, where they are a part of storing its results, and slices
before transposes: what is left between the array and the product only says where elements lie.
Transposes of what a product makes come before dimensions of one element are added to it.
"""

from retune.core.dims import always_empty, always_equal
from retune.graph.graph import Graph, Node
from retune.graph.passes.simplify import (
    drop_identity,
    merge_reshapes,
    merge_transposes,
    transpose_to_reshape,
)
from retune.graph.rewrite import GraphRewriter, rebuild, to_fixed_point
from retune.ops.registry import AttrValue, ints
from retune.ops.shapes import same_blocks, same_but_ones

_MOVES = ("transpose", "slice", "reshape")


def simplify_products(graph: Graph) -> Graph:
    """No product reads scaled data, and slices are cut before they are transposed."""
    rules = _scale_behind, _slice_first, _slice_before_ones, _split_before_slice, _ones_last
    merging = drop_identity, merge_reshapes, merge_transposes, transpose_to_reshape
    return to_fixed_point(graph, lambda g: rebuild(g, *rules, *merging))


def _scale_behind(r: GraphRewriter, node: Node) -> str | None:
    """matmul(move(x * c), y) -> matmul(move(x), y) * c for a number c."""
    made = r.old.types[node.outputs[0]]
    if node.op != "matmul" or not made.dtype.is_float:
        return None
    for position, value in enumerate(node.inputs):
        scale = _scale_of(r, value)
        if scale is not None and len(r.shape(scale.inputs[1])) <= len(made.shape):
            inputs = list(node.inputs)
            inputs[position] = _unscaled(r, value)
            product = r.emit("matmul", tuple(inputs), node.attrs)
            return r.emit("multiply", (product, scale.inputs[1]), {}, node.outputs[0])
    return None


def _scale_of(r: GraphRewriter, value: str) -> Node | None:
    """The scaling by a number that only this value comes from, by way of movements."""
    made = r.producer(value)
    if made is None or not r.only_use(value):
        return None
    if made.op in _MOVES:
        return _scale_of(r, made.inputs[0])
    factor = r.constant(made.inputs[-1])
    known = made.op == "multiply" and factor is not None and factor.size == 1
    data = r.types[made.inputs[0]]
    return made if known and data == r.types[value] and data.shape else None


def _unscaled(r: GraphRewriter, value: str) -> str:
    """The same movements of what is scaled."""
    made = r.producer(value)
    assert made is not None, "_scale_of found it"
    if made.op not in _MOVES:
        return made.inputs[0]
    return r.emit(made.op, (_unscaled(r, made.inputs[0]),), made.attrs)


def _slice_first(r: GraphRewriter, node: Node) -> str | None:
    """slice(transpose(x)) -> transpose(slice(x))."""
    moved = r.producer(node.inputs[0])
    if node.op != "slice" or moved is None or moved.op != "transpose":
        return None
    perm = ints(moved.attrs, "perm")
    back = [perm.index(d) for d in range(len(perm))]
    attrs: dict[str, AttrValue] = {
        key: tuple(ints(node.attrs, key)[d] for d in back) for key in ("begins", "extents", "steps")
    }
    return r.emit(
        "transpose", (r.emit("slice", moved.inputs, attrs),), moved.attrs, node.outputs[0]
    )


def _slice_before_ones(r: GraphRewriter, node: Node) -> str | None:
    """slice(reshape(x)) -> reshape(slice(x)), if all that the reshape moves are ones."""
    reshape = r.producer(node.inputs[0])
    if node.op != "slice" or reshape is None or reshape.op != "reshape":
        return None
    source, made = r.shape(reshape.inputs[0]), r.shape(node.inputs[0])
    real = [d for d, n in enumerate(made) if not always_equal(n, 1)]
    if not same_but_ones(source, made):
        return None
    attrs: dict[str, AttrValue] = {}
    for key, whole in (("begins", 0), ("extents", 1), ("steps", 1)):
        stated = iter(ints(node.attrs, key)[d] for d in real)
        attrs[key] = tuple(whole if always_equal(n, 1) else next(stated) for n in source)
    cut = r.emit("slice", reshape.inputs, attrs)
    shape = r.old.types[node.outputs[0]].shape
    return r.emit("reshape", (cut,), {"shape": shape}, node.outputs[0])


def _split_before_slice(r: GraphRewriter, node: Node) -> str | None:
    """reshape(x[:, 1]) -> the slice of a reshape of x: one of several parts, by heads."""
    cut = r.producer(node.inputs[0])
    if node.op != "reshape" or cut is None or cut.op != "slice":
        return None
    source, part = r.shape(cut.inputs[0]), r.shape(node.inputs[0])
    made = r.old.types[node.outputs[0]].shape
    chosen = {d for d, n in enumerate(source) if not always_equal(part[d], n)}
    many = {d for d, n in enumerate(part) if not always_equal(n, 1)}
    turned = {d for d, step in enumerate(ints(cut.attrs, "steps")) if step != 1} & many
    if turned or always_empty(part) or chosen & many or same_but_ones(part, made):
        return None
    positions: list[
        tuple[int, int, int]
    ] = []  # of each dimension: its extent, and what is cut of it
    for there, here in same_blocks(part, made):
        own = [d for d in there if d in chosen]
        if many.intersection(range(there.start, max(own, default=there.start))):
            return None
        positions += [(source[d], ints(cut.attrs, "begins")[d], 1) for d in own]
        positions += [(made[d], 0, made[d]) for d in here]
    shape, begins, extents = (tuple(column) for column in zip(*positions, strict=True))
    wide = r.emit("reshape", cut.inputs, {"shape": shape})
    attrs = {"begins": begins, "extents": extents, "steps": (1,) * len(shape)}
    return r.emit("reshape", (r.emit("slice", (wide,), attrs),), {"shape": made}, node.outputs[0])


def _ones_last(r: GraphRewriter, node: Node) -> str | None:
    """transpose(reshape(x)) -> reshape(transpose(x)), if all that the reshape moves are ones."""
    reshape = r.producer(node.inputs[0])
    if node.op != "transpose" or reshape is None or reshape.op != "reshape":
        return None
    source, made = r.shape(reshape.inputs[0]), r.shape(node.inputs[0])
    if not same_but_ones(source, made):
        return None
    real = [d for d, n in enumerate(source) if not always_equal(n, 1)]
    positions = dict(
        zip((d for d, n in enumerate(made) if not always_equal(n, 1)), real, strict=True)
    )
    ones = [d for d in range(len(source)) if d not in real]
    perm = (*ones, *(positions[d] for d in ints(node.attrs, "perm") if d in positions))
    moved = r.emit("transpose", reshape.inputs, {"perm": perm})
    shape = r.old.types[node.outputs[0]].shape
    return r.emit("reshape", (moved,), {"shape": shape}, node.outputs[0])
