"""Channels-last: NHWC data wherever kernels gain more by it than transposes take.

Each new value is the old one with its first `moved` dimensions after the batch (the channels, or
the parts into which a reshape split them) moved to the end; moved = 0 is the old order. Ops that
cannot say what they mean in another order read the old one, through a transpose.
"""

from collections.abc import Callable
from dataclasses import replace
from math import prod

from retune.core.dims import always_equal, always_same
from retune.graph.graph import Graph, Node
from retune.graph.passes.regions import regions, transposed_elements, window_cost
from retune.graph.passes.simplify import moves_only_ones
from retune.graph.rewrite import GraphRewriter
from retune.graph.scan import SCAN
from retune.ops import AttrValue, lookup
from retune.ops.registry import HOST, integer, ints

Perm = tuple[int, ...]


def channels_last(graph: Graph) -> Graph:
    """The same network with NHWC data and kernels; inputs and outputs keep their order.

    A region stays in NCHW where its layers lose less by that than NHWC takes in transposes.
    """
    kept, made = frozenset[str](), _Converter(graph).convert()
    for region in regions(graph, lambda node: _handler(node) not in (_in_old_order, _several)):
        cost, moved = window_cost(graph, region), transposed_elements(made)
        if cost < moved:
            other = _Converter(graph, kept | region).convert()
            if cost + transposed_elements(other) < moved:
                kept, made = kept | region, other
    return made


def order(rank: int, moved: int) -> Perm:
    """Dimension d of the new value is dimension order[d] of the old one."""
    return (0, *range(moved + 1, rank), *range(1, moved + 1)) if moved else tuple(range(rank))


class _Converter:
    """The conversion under way: for each old value the new ones, by number of moved dimensions."""

    def __init__(self, graph: Graph, kept: frozenset[str] = frozenset()) -> None:
        self.graph = graph
        self.kept = kept  # what stays in the old order
        self.uses = graph.uses()
        self.r = GraphRewriter(graph)
        self.have: dict[str, dict[int, str]] = {}
        for value in (*graph.inputs, *graph.constants):
            self.have[value] = {0: value}

    def convert(self) -> Graph:
        for node in self.graph.nodes:
            handler = _in_old_order if node.outputs[0] in self.kept else _handler(node)
            handler(self, node)
        for output in self.graph.outputs:
            self.r.replace(output, self.want(output, 0))
        return self.r.finish()

    def old_shape(self, value: str) -> tuple[int, ...]:
        return self.graph.types[value].shape

    def moved(self, value: str) -> int:
        """How the value was made; 0 for inputs and constants."""
        return next(iter(self.have[value]))

    def is_constant(self, value: str) -> bool:
        return value in self.graph.constants

    def makes_images(self, node: Node) -> bool:
        """Whether these are images or volumes, or rows that only become such: products read others,
        in the old order."""
        readers = self.uses.get(node.outputs[0], ())
        rows = len(self.old_shape(node.outputs[0])) < 4
        return not rows or (bool(readers) and all(each.op == "reshape" for each in readers))

    def want(self, value: str, moved: int) -> str:
        """The value with so many dimensions moved; a transpose is made once."""
        known = self.have[value]
        if moved not in known:
            have, source = next(iter(known.items()))
            rank = len(self.old_shape(value))
            now, then = order(rank, have), order(rank, moved)
            known[moved] = self.transposed(source, tuple(now.index(d) for d in then))
        return known[moved]

    def transposed(self, source: str, perm: Perm, output: str = "") -> str:
        """transpose(source), or a reshape or nothing where that is the same."""
        shape = self.r.shape(source)
        if perm == tuple(range(len(perm))) and not output:
            return source
        if moves_only_ones(shape, perm):
            made: dict[str, AttrValue] = {"shape": tuple(shape[d] for d in perm)}
            return self.r.emit("reshape", (source,), made, output)
        return self.r.emit("transpose", (source,), {"perm": perm}, output)

    def put(
        self, node: Node, op: str, inputs: tuple[str, ...], attrs: dict[str, AttrValue], moved: int
    ) -> None:
        """The node's output, made by `op` with so many dimensions moved."""
        output = node.outputs[0]
        known = output in self.graph.ends and moved
        self.have[output] = {moved: self.r.emit(op, inputs, attrs, "" if known else output)}


Convert = Callable[[_Converter, Node], None]


def _handler(node: Node) -> Convert:
    handler = HANDLERS.get(node.op)
    if handler is None and lookup(node.op).kind in ("elementwise", "broadcast"):
        handler = _broadcast
    return handler or _in_old_order


def _in_old_order(c: _Converter, node: Node) -> None:
    inputs = tuple(c.want(value, 0) if value else "" for value in node.inputs)
    c.put(node, node.op, inputs, dict(node.attrs), 0)


def _several(c: _Converter, node: Node) -> None:
    """Host steps and loops read and make the network's own order."""
    inputs = tuple(c.want(value, 0) for value in node.inputs)
    c.r.keep(replace(node, inputs=inputs))
    c.have.update((output, {0: output}) for output in node.outputs)


def _broadcast(c: _Converter, node: Node) -> None:
    """Element-wise ops follow the first activation whose channels have moved."""
    rank = len(c.old_shape(node.outputs[0]))
    full = [v for v in node.inputs if len(c.old_shape(v)) == rank and not c.is_constant(v)]
    moved = next((m for m in map(c.moved, full) if m), 0)
    inputs = tuple(_operand(c, value, rank, moved) for value in node.inputs)
    c.put(node, node.op, inputs, dict(node.attrs), moved)


def _operand(c: _Converter, value: str, rank: int, moved: int) -> str:
    shape = c.old_shape(value)
    if not moved or len(shape) == rank:
        return c.want(value, moved)
    if always_equal(prod(shape), 1):
        return c.want(value, 0)
    full = (1,) * (rank - len(shape)) + shape
    lifted = c.r.emit("reshape", (c.want(value, 0),), {"shape": full})
    return c.transposed(lifted, order(rank, moved))


def _window(c: _Converter, node: Node) -> None:
    """Pooling reads and makes NHWC, of volumes NDHWC."""
    layout = "NDHWC" if len(c.old_shape(node.inputs[0])) == 5 else "NHWC"
    inputs = tuple(c.want(value, 1) for value in node.inputs)
    c.put(node, node.op, inputs, {**node.attrs, "layout": layout}, 1)


def _pack(c: _Converter, node: Node) -> None:
    """Channels that are taken into blocks come from the end; blocks have one order only."""
    c.put(node, node.op, (c.want(node.inputs[0], 1),), {**node.attrs, "layout": "NHWC"}, 0)


def _unpack(c: _Converter, node: Node) -> None:
    """The way back."""
    c.put(node, node.op, (c.want(node.inputs[0], 0),), {**node.attrs, "layout": "NHWC"}, 1)


def _images(c: _Converter, node: Node) -> None:
    """As pooling, but volumes and what nobody has moved stay as they are."""
    if len(c.old_shape(node.inputs[0])) == 4 and c.moved(node.inputs[0]) == 1:
        return _window(c, node)
    return _in_old_order(c, node)


def _along_axes(c: _Converter, node: Node) -> None:
    """All that it reads has one order."""
    _renumbered(c, node, len(node.inputs))


def _tables(c: _Converter, node: Node) -> None:
    """Ops that read tables or statistics after their data: these stay as they are."""
    if node.op == "gather" and len(c.old_shape(node.inputs[1])) != 1:
        return _in_old_order(c, node)
    return _renumbered(c, node, 1)


def _renumbered(c: _Converter, node: Node, count: int) -> None:
    """The node in the order of the first of `count` inputs that has moved; others are as before.

    Attributes that name dimensions, or have an entry for each of them, are changed with it.
    """
    data, rest = node.inputs[:count], node.inputs[count:]
    moved, rank = next((m for m in map(c.moved, data) if m), 0), len(c.old_shape(data[0]))
    perm, attrs = order(rank, moved), dict(node.attrs)
    for key, item in node.attrs.items():
        if key == "axis":
            attrs[key] = perm.index(integer(node.attrs, key))
        elif key == "axes":
            axes = [perm.index(axis) for axis in ints(node.attrs, key)]
            attrs[key] = tuple(axes if rest else sorted(axes))  # tables come in their order
        elif isinstance(item, tuple) and key != "results":
            halves = [item[start : start + rank] for start in range(0, len(item), rank)]
            attrs[key] = tuple(half[d] for half in halves for d in perm)
    inputs = (*(c.want(value, moved) for value in data), *(c.want(table, 0) for table in rest))
    c.put(node, node.op, inputs, attrs, moved)


def _convolution(c: _Converter, node: Node) -> None:
    """Kernels become [KH, KW, I, O], or [KD, KH, KW, I, O]; depthwise ones [KH, KW, C, M]."""
    data = c.want(node.inputs[0], 1)
    kernel = c.want(node.inputs[1], 0)
    if node.op == "depthwise_conv2d":
        channels = c.r.shape(data)[-1]
        made, _, height, width = c.r.shape(kernel)
        parts: dict[str, AttrValue] = {"shape": (channels, made // channels, height, width)}
        kernel = c.r.emit("reshape", (kernel,), parts)
        kernel = c.transposed(kernel, (2, 3, 0, 1))
    else:
        kernel = c.transposed(kernel, (*range(2, len(c.r.shape(kernel))), 1, 0))
    layout = "NDHWC" if node.op == "conv3d" else "NHWC"
    c.put(node, node.op, (data, kernel), {**node.attrs, "layout": layout}, 1)


def _reduce(c: _Converter, node: Node) -> None:
    """The axes are renumbered; without keepdims, the channels that are left stay at the end."""
    (value,) = node.inputs
    moved, rank = c.moved(value), len(c.old_shape(value))
    one = "axis" in node.attrs
    perm = order(rank, moved)
    axes = (integer(node.attrs, "axis"),) if one else ints(node.attrs, "axes")
    left = moved
    if not node.attrs["keepdims"]:
        if moved and 0 in axes:
            return _in_old_order(c, node)
        left = sum(1 for d in range(1, moved + 1) if d not in axes)
        if left == rank - len(axes) - 1:
            left = 0
    found = tuple(sorted(perm.index(axis) for axis in axes))
    attrs = {**node.attrs, **({"axis": found[0]} if one else {"axes": found})}
    return c.put(node, node.op, (c.want(value, moved),), attrs, left)


def _transpose(c: _Converter, node: Node) -> None:
    """Nothing where it makes images of what has its channels last; a shuffle within the channels
    stays one. Any other order is made from what there is."""
    (value,) = node.inputs
    moved, rank = c.moved(value), len(c.old_shape(value))
    perm = tuple(order(rank, moved).index(d) for d in ints(node.attrs, "perm"))
    if c.makes_images(node) and tuple(perm[d] for d in order(rank, 1)) == order(rank, 0):
        c.have[node.outputs[0]] = {1: c.want(value, moved)}
        return
    channels = ints(node.attrs, "perm")[1 : moved + 1]
    made = moved if perm[0] == 0 and set(channels) == set(range(1, moved + 1)) else 0
    total = tuple(perm[d] for d in order(rank, made))
    c.put(node, "transpose", (c.want(value, moved),), {"perm": total}, made)


def _reshape(c: _Converter, node: Node) -> None:
    """A reshape that only splits or joins the channels leaves them at the end."""
    (value,) = node.inputs
    old, new, moved = c.old_shape(value), c.old_shape(node.outputs[0]), c.moved(value)
    parts = _channel_parts(old, new, moved)
    if parts is None:
        return _in_old_order(c, node)
    shape: Perm = tuple(new[d] for d in order(len(new), parts))
    made = 0 if parts == len(new) - 1 else parts
    return c.put(node, "reshape", (c.want(value, moved),), {"shape": shape}, made)


def _channel_parts(old: Perm, new: Perm, moved: int) -> int | None:
    if not moved or not always_same(old[:1], new[:1]):
        return None
    wanted = prod(old[1 : moved + 1]), prod(old[moved + 1 :])
    for parts in range(1, len(new)):
        if always_same((prod(new[1 : parts + 1]), prod(new[parts + 1 :])), wanted):
            return parts
    return None


HANDLERS: dict[str, Convert] = {
    "conv2d": _convolution,
    "depthwise_conv2d": _convolution,
    "conv3d": _convolution,
    "max_pool2d": _window,
    "max_pool2d_index": _window,
    "avg_pool2d": _window,
    "max_pool3d": _window,
    "avg_pool3d": _window,
    "global_avg_pool": _window,
    "global_max_pool": _window,
    **dict.fromkeys(("batch_norm", "resample", "gather", "lookup_codes", "sample"), _tables),
    **dict.fromkeys(("concat", "softmax", "log_softmax", "lrn", "standardise"), _along_axes),
    **dict.fromkeys(("pad", "extend", "slice", "repeat", "resize_along"), _along_axes),
    **dict.fromkeys(("cumulative_sum", "cumulative_product", "top_indices"), _along_axes),
    "depth_to_space": _images,
    "transpose": _transpose,
    "reshape": _reshape,
    HOST: _several,
    SCAN: _several,
    "pack_blocks": _pack,
    "unpack_blocks": _unpack,
    **dict.fromkeys(("reduce_mean", "reduce_sum", "reduce_prod", "reduce_max"), _reduce),
    **dict.fromkeys(("reduce_min", "argmax", "argmin"), _reduce),
}
"""Op -> how it is converted; element-wise ops follow their inputs, others keep the old order."""
