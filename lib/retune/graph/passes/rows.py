"""Data of one spatial dimension as images of one row, as its layers see it.

Convolutions and pools of [N, C, L] are imported as those of [N, C, 1, L], between reshapes. Here
the reshapes move past what stands between two layers, until they meet and cancel: a batch norm then
finds its convolution, and element-wise ops are fused with it.
"""

from retune.core.dims import always_same
from retune.graph.graph import Graph, Node
from retune.graph.passes.simplify import drop_identity, merge_reshapes
from retune.graph.rewrite import GraphRewriter, rebuild, to_fixed_point
from retune.ops.registry import integer, lookup


def rows_as_images(graph: Graph) -> Graph:
    """f(row(x)) -> row(f(x)) for what works element by element or joins channels.

    row: [N, C, 1, L] -> [N, C, L] is a reshape.
    """
    rules = _elementwise_on_images, _concat_of_images, merge_reshapes, drop_identity
    return to_fixed_point(graph, lambda g: rebuild(g, *rules))


def _elementwise_on_images(r: GraphRewriter, node: Node) -> str | None:
    """f(row(x), y) -> row(f(x, y as an image))."""
    made = r.old.types[node.outputs[0]].shape
    plain = lookup(node.op).kind in ("elementwise", "broadcast") and "axis" not in node.attrs
    if not plain or len(made) != 3:
        return None
    if not any(
        _image(r, value) for value in node.inputs if value and always_same(r.shape(value), made)
    ):
        return None
    inputs = tuple(value and _as_image(r, value) for value in node.inputs)
    return _row(r, r.emit(node.op, inputs, node.attrs), node)


def _concat_of_images(r: GraphRewriter, node: Node) -> str | None:
    """concat(row(x), row(y)) -> row(concat(x, y))."""
    images = [_image(r, value) for value in node.inputs]
    if node.op != "concat" or not all(images):
        return None
    axis = integer(node.attrs, "axis")
    joined = r.emit("concat", tuple(map(str, images)), {"axis": axis + (axis > 1)})
    return _row(r, joined, node)


def _image(r: GraphRewriter, value: str) -> str | None:
    """x, if the value is row(x)."""
    reshape = r.producer(value)
    if reshape is None or reshape.op != "reshape":
        return None
    source, shape = reshape.inputs[0], r.shape(value)
    is_row = len(shape) == 3 and always_same(r.shape(source), (*shape[:2], 1, shape[2]))
    return source if is_row else None


def _as_image(r: GraphRewriter, value: str) -> str:
    """What broadcasts with images as the value does with rows."""
    shape = r.shape(value)
    if len(shape) < 2:
        return value
    image = _image(r, value)
    made = (*shape[:-1], 1, shape[-1])
    return image or r.emit("reshape", (value,), {"shape": made})


def _row(r: GraphRewriter, image: str, node: Node) -> str:
    shape = r.old.types[node.outputs[0]].shape
    return r.emit("reshape", (image,), {"shape": shape}, node.outputs[0])
