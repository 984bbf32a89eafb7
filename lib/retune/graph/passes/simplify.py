"""Rules that remove work and bring nodes to one form. Each states its law."""

from collections.abc import Container
from dataclasses import replace
from math import inf

import numpy as np

from retune.core.dims import always_empty, always_equal, always_same, is_fixed
from retune.graph.graph import Graph, Node, without_dead
from retune.graph.passes.numbers import gather_of_positions, move_positions
from retune.graph.rewrite import GraphRewriter, rebuild, renamed, to_fixed_point
from retune.ops.convolution import border
from retune.ops.registry import AttrValue, integer, ints, lookup, number
from retune.ops.shapes import broadcast_shapes, same_blocks, spatial


def fold_constants(graph: Graph) -> Graph:
    """op(constants) -> constant."""
    return rebuild(graph)


def remove_identities(graph: Graph) -> Graph:
    """Nodes that change nothing disappear; moves of moves become one."""
    rules = (
        drop_identity,
        drop_broadcast,
        spread_last,
        move_positions,
        gather_of_positions,
        gather_to_slice,
        merge_reshapes,
        merge_transposes,
        transpose_around_reshape,
        transpose_to_reshape,
    )
    return to_fixed_point(graph, lambda g: absorb_names(rebuild(g, *rules), g.outputs))


def drop_identity(r: GraphRewriter, node: Node) -> str | None:
    """identity(x), x as its own type, shape or order -> x."""
    source = node.inputs[0]
    same = r.types[source] == r.old.types[node.outputs[0]]
    match node.op:
        case "identity":
            return source
        case "cast" | "reshape" | "broadcast_to" if same:
            return source
        case "pad" | "extend" if not any(ints(node.attrs, "pads")):
            return source
        case "concat" if len(node.inputs) == 1:
            return source
        case "slice" if same and all(step == 1 for step in ints(node.attrs, "steps")):
            return source
        case "transpose" if ints(node.attrs, "perm") == tuple(range(len(r.shape(source)))):
            return source
        case "clip" if number(node.attrs, "min") == -inf and number(node.attrs, "max") == inf:
            return source
        case "clip" if number(node.attrs, "min") == 0 and number(node.attrs, "max") == inf:
            return r.emit("relu", (source,), {}, node.outputs[0])
        case _:
            return None


def drop_broadcast(r: GraphRewriter, node: Node) -> str | None:
    """f(broadcast_to(x), y) -> f(x, y), where y has all of the extents."""
    if lookup(node.op).kind != "broadcast" or "axis" in node.attrs:
        return None
    made = [r.producer(value) for value in node.inputs]
    inputs = tuple(
        maker.inputs[0] if maker is not None and maker.op == "broadcast_to" else value
        for value, maker in zip(node.inputs, made, strict=True)
    )
    shapes = [r.shape(value) for value in inputs]
    same = always_same(broadcast_shapes(*shapes), r.old.types[_out(node)].shape)
    return (
        r.emit(node.op, inputs, node.attrs, _out(node)) if same and inputs != node.inputs else None
    )


def spread_last(r: GraphRewriter, node: Node) -> str | None:
    """move(broadcast_to(c)) -> broadcast_to(c), for a constant of one element."""
    spread = r.producer(node.inputs[0])
    if spread is None or spread.op != "broadcast_to" or node.op not in _MOVES:
        return None
    known = r.constant(spread.inputs[0])
    if known is None or known.size != 1:
        return None
    number = spread.inputs[0]
    if known.ndim:
        number = r.emit("reshape", spread.inputs, {"shape": ()})
    return r.emit("broadcast_to", (number,), {"shape": r.old.types[_out(node)].shape}, _out(node))


_MOVES = ("reshape", "transpose", "slice", "broadcast_to")
"""What only says where elements lie."""


def merge_reshapes(r: GraphRewriter, node: Node) -> str | None:
    """reshape(reshape(x)) -> reshape(x)."""
    inner = r.producer(node.inputs[0])
    if node.op != "reshape" or inner is None or inner.op != "reshape":
        return None
    if always_same(r.shape(inner.inputs[0]), ints(node.attrs, "shape")):
        return inner.inputs[0]
    return r.emit("reshape", inner.inputs, node.attrs, node.outputs[0])


def merge_transposes(r: GraphRewriter, node: Node) -> str | None:
    """transpose(transpose(x, p), q) -> transpose(x, p[q])."""
    inner = r.producer(node.inputs[0])
    if node.op != "transpose" or inner is None or inner.op != "transpose":
        return None
    first = ints(inner.attrs, "perm")
    perm = tuple(first[d] for d in ints(node.attrs, "perm"))
    if perm == tuple(range(len(perm))):
        return inner.inputs[0]
    return r.emit("transpose", inner.inputs, {"perm": perm}, node.outputs[0])


def transpose_around_reshape(r: GraphRewriter, node: Node) -> str | None:
    """transpose(reshape(transpose(x))) -> transpose(reshape(x)), as for rows of pixels, and back.

    So it is where the reshape joins nothing but neighbours in x.
    """
    reshape = r.producer(node.inputs[0])
    if node.op != "transpose" or reshape is None or reshape.op != "reshape":
        return None
    inner = r.producer(reshape.inputs[0])
    if inner is None or inner.op != "transpose" or always_empty(r.shape(reshape.inputs[0])):
        return None
    perm, made = ints(inner.attrs, "perm"), r.shape(node.inputs[0])
    parts = same_blocks(r.shape(reshape.inputs[0]), made)
    if any(perm[d + 1] != perm[d] + 1 for there, _ in parts for d in there[:-1]):
        return None
    parts.sort(key=lambda part: [perm[d] for d in part[0]][:1] or [-1])
    order = [d for _, here in parts for d in here]
    shaped = r.emit("reshape", inner.inputs, {"shape": tuple(made[d] for d in order)})
    total = tuple(order.index(d) for d in ints(node.attrs, "perm"))
    return r.emit("transpose", (shaped,), {"perm": total}, node.outputs[0])


def gather_to_slice(r: GraphRewriter, node: Node) -> str | None:
    """gather(x, [1, 2, 3]) -> x[1:4], and gather(x, 1) -> x[1]: of known positions in even steps.

    One step of a sequence stays gathered: steps then share a task, which is told the position.
    """
    known = r.constant(node.inputs[1]) if node.op == "gather" else None
    if known is not None and not known.shape and _is_step(r, node):
        return None
    if known is None or known.ndim > 1 or not known.size:
        return None
    axis, shape = integer(node.attrs, "axis"), r.shape(node.inputs[0])
    positions = [position + shape[axis] * (position < 0) for position in known.reshape(-1).tolist()]
    step = positions[1] - positions[0] if len(positions) > 1 else 1
    inside = positions[0] >= 0 and positions[-1] < shape[axis]
    if not inside or not is_fixed(step) or step < 1:
        return None
    if not always_same(positions, [positions[0] + step * turn for turn in range(len(positions))]):
        return None
    ends = [
        (positions[0], len(positions), step) if d == axis else (0, n, 1)
        for d, n in enumerate(shape)
    ]
    begins, extents, steps = zip(*ends, strict=True)
    attrs: dict[str, AttrValue] = {"begins": begins, "extents": extents, "steps": steps}
    made = r.old.types[_out(node)].shape
    if known.ndim:
        return r.emit("slice", node.inputs[:1], attrs, _out(node))
    cut = r.emit("slice", node.inputs[:1], attrs)
    return r.emit("reshape", (cut,), {"shape": made}, _out(node))


def _is_step(r: GraphRewriter, node: Node) -> bool:
    """Whether it takes one of the first dimension of what no transpose has just put there."""
    made = r.producer(node.inputs[0])
    return integer(node.attrs, "axis") == 0 and (made is None or made.op != "transpose")


def join_slices(graph: Graph) -> Graph:
    """Slices of one value, joined along the axis that they were cut on, are gathered at once.

    Along the last axis they are not: there they are views (`search/layout/views.py`).
    """
    return rebuild(graph, _gather_slices)


def _gather_slices(r: GraphRewriter, node: Node) -> str | None:
    """concat(x[2:], x[:2]) -> gather(x, [2, 3, ..., 0, 1]), as for shifted windows."""
    cuts = [cut for v in node.inputs if (cut := r.producer(v)) is not None and cut.op == "slice"]
    made = r.old.types[_out(node)].shape
    if node.op != "concat" or len(cuts) != len(node.inputs) or len({c.inputs for c in cuts}) > 1:
        return None
    axis = integer(node.attrs, "axis")
    if axis == len(made) - 1 or any(_cut_axes(r, cut) - {axis} for cut in cuts):
        return None
    taken = [ints(cut.attrs, name)[axis] for cut in cuts for name in ("begins", "extents")]
    if not all(map(is_fixed, taken)):  # positions are a constant
        return None
    positions = [
        ints(cut.attrs, "begins")[axis] + ints(cut.attrs, "steps")[axis] * step
        for cut in cuts
        for step in range(ints(cut.attrs, "extents")[axis])
    ]
    indices = r.store(f"{node.name}.places", np.asarray(positions, np.int32))
    return r.emit("gather", (*cuts[0].inputs, indices), {"axis": axis}, _out(node))


def _cut_axes(r: GraphRewriter, cut: Node) -> set[int]:
    """The axes of which a slice does not take all, in order."""
    shape = r.shape(cut.inputs[0])
    extents, steps = ints(cut.attrs, "extents"), ints(cut.attrs, "steps")
    return {d for d, n in enumerate(shape) if not always_equal(extents[d], n) or steps[d] != 1}


def transpose_to_reshape(r: GraphRewriter, node: Node) -> str | None:
    """transpose(x) that moves only extents of 1 -> reshape(x)."""
    if node.op != "transpose":
        return None
    shape, perm = r.shape(node.inputs[0]), ints(node.attrs, "perm")
    if not moves_only_ones(shape, perm):
        return None
    made = tuple(shape[d] for d in perm)
    inner = r.producer(node.inputs[0])
    source = inner.inputs if inner is not None and inner.op == "reshape" else node.inputs
    if always_same(r.shape(source[0]), made):
        return source[0]
    return r.emit("reshape", source, {"shape": made}, node.outputs[0])


def moves_only_ones(shape: tuple[int, ...], perm: tuple[int, ...]) -> bool:
    """True if the permutation keeps the order of all extents other than 1."""
    moved = [d for d in perm if not always_equal(shape[d], 1)]
    return moved == sorted(moved)


def canonical_arithmetic(graph: Graph) -> Graph:
    """Constants on the right; differences, quotients and powers by them as sums and products."""
    return rebuild(graph, constant_right, subtract_to_add, divide_to_multiply, power_to_products)


def constant_right(r: GraphRewriter, node: Node) -> str | None:
    """c + x -> x + c, and for multiply, minimum, maximum; c - x -> -x + c stays as it is."""
    if node.op not in ("add", "multiply", "minimum", "maximum"):
        return None
    left, right = node.inputs
    if r.constant(left) is None or r.types[left].dtype != r.types[right].dtype:
        return None
    return r.emit(node.op, (right, left), {}, node.outputs[0])


def subtract_to_add(r: GraphRewriter, node: Node) -> str | None:
    """x - c -> x + (-c)."""
    if node.op != "subtract" or r.constant(node.inputs[1]) is None or not _floats(r, node):
        return None
    return r.emit("add", (node.inputs[0], r.emit("negative", node.inputs[1:], {})), {}, _out(node))


def divide_to_multiply(r: GraphRewriter, node: Node) -> str | None:
    """x / c -> x * (1 / c), where c has no zero.

    Single numbers stay quotients: that costs nothing, and they may be scales of quantization, whose
    last bit decides where ties are.
    """
    divisor = r.constant(node.inputs[1]) if node.op == "divide" else None
    if divisor is None or not _floats(r, node) or not np.all(divisor):
        return None
    if always_equal(r.old.types[_out(node)].elements, 1):
        return None
    share = r.emit("reciprocal", node.inputs[1:], {})
    return r.emit("multiply", (node.inputs[0], share), {}, _out(node))


def power_to_products(r: GraphRewriter, node: Node) -> str | None:
    """x ** 2 -> x * x, x ** 3 -> x * x * x: norms and activations are exported as powers."""
    exponent = r.constant(node.inputs[1]) if node.op == "power" else None
    if exponent is None or not _floats(r, node):
        return None
    base, found = node.inputs[0], set(exponent.reshape(-1).tolist())
    if not always_same(r.shape(base), r.old.types[_out(node)].shape) or found not in ({2}, {3}):
        return None
    if found == {2}:
        return r.emit("multiply", (base, base), {}, _out(node))
    return r.emit("multiply", (r.emit("multiply", (base, base), {}), base), {}, _out(node))


def _floats(r: GraphRewriter, node: Node) -> bool:
    return r.types[node.inputs[0]].dtype.is_float


def _out(node: Node) -> str:
    return node.outputs[0]


def name_global_pools(graph: Graph) -> Graph:
    """avg_pool2d and max_pool2d over the whole image -> global_avg_pool, global_max_pool."""
    return rebuild(graph, _global_pool)


def _global_pool(r: GraphRewriter, node: Node) -> str | None:
    names = {"avg_pool2d": "global_avg_pool", "max_pool2d": "global_max_pool"}
    if node.op not in names or any(ints(node.attrs, "pads")):
        return None
    shape, layout = r.shape(node.inputs[0]), str(node.attrs["layout"])
    if not always_same(ints(node.attrs, "kernel"), spatial(shape, layout)):
        return None
    return r.emit(names[node.op], node.inputs, {"layout": layout}, _out(node))


def merge_pads(graph: Graph) -> Graph:
    """conv2d(pad(x, border), pads) -> conv2d(x, more pads)."""
    return rebuild(graph, _merge_pad)


def _merge_pad(r: GraphRewriter, node: Node) -> str | None:
    if node.op not in ("conv2d", "depthwise_conv2d", "conv3d"):
        return None
    pad = r.producer(node.inputs[0])
    if pad is None or pad.op != "pad" or number(pad.attrs, "value") != border(node.attrs):
        return None
    stated, own = ints(pad.attrs, "pads"), ints(node.attrs, "pads")
    rank, layout = len(stated) // 2, str(node.attrs["layout"])
    around = (*spatial(stated[:rank], layout), *spatial(stated[rank:], layout))
    if sum(around) != sum(stated) or min(stated) < 0:
        return None
    pads = tuple(a + b for a, b in zip(own, around, strict=True))
    sources = (pad.inputs[0], *node.inputs[1:])
    return r.emit(node.op, sources, {**node.attrs, "pads": pads}, _out(node))


def absorb_names(graph: Graph, wanted: Container[str]) -> Graph:
    """identity(x) with a wanted name: x takes it, if x is computed and no output itself."""
    made = {value for node in graph.nodes for value in node.outputs}
    names: dict[str, str] = {}
    for node in graph.nodes:
        source, output = node.inputs[0] if node.inputs else "", node.outputs[0]
        free = source in made and source not in graph.ends and source not in names
        if node.op == "identity" and output in wanted and free:
            names[source] = output
    if not names:
        return graph
    dropped = set(names.items())
    kept = tuple(
        node
        for node in graph.nodes
        if not (node.op == "identity" and (node.inputs[0], node.outputs[0]) in dropped)
    )
    return without_dead(renamed(replace(graph, nodes=kept), names))


def materialise_outputs(graph: Graph) -> Graph:
    """An output that is a constant becomes an identity of it, unless it has no elements."""
    stored = {
        name: _unused(f"{name}.stored", graph)
        for name in graph.outputs
        if name in graph.constants and graph.constants[name].size
    }
    if not stored:
        return graph
    copies = tuple(
        Node(op="identity", name=name, inputs=(source,), outputs=(name,))
        for name, source in stored.items()
    )
    return replace(
        graph,
        nodes=(*_reading(graph, stored), *copies),
        types={**graph.types, **{stored[name]: graph.types[name] for name in stored}},
        constants={stored.get(name, name): array for name, array in graph.constants.items()},
    )


def _unused(name: str, graph: Graph) -> str:
    """The name with as many underscores as make it no value's."""
    while name in graph.types:
        name += "_"
    return name


def _reading(graph: Graph, names: dict[str, str]) -> tuple[Node, ...]:
    """The nodes, reading other names."""
    return tuple(
        Node(
            op=node.op,
            name=node.name,
            inputs=tuple(names.get(v, v) for v in node.inputs),
            outputs=node.outputs,
            attrs=node.attrs,
        )
        for node in graph.nodes
    )
