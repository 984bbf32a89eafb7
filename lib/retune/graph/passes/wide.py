"""Concatenations of very many parts, and very many slices of one value, in levels.

Each part of a concatenation has a kernel of its own, and each slice is a task of its own: where it
lies is a number in the kernel's text. In levels of at most LEVEL_PARTS these numbers are the same
for all of a level. So ten thousand parts have about a hundred kernels, for a copy of the data more
at each level.
"""

from collections.abc import Sequence
from typing import TypeVar

from retune.core.dims import always_equal
from retune.graph.graph import Graph, Node
from retune.graph.rewrite import GraphRewriter, rebuild
from retune.ops.registry import ints

MOST_PARTS = 128
"""Of one concatenation, and slices of one value. Real networks have up to 90."""
LEVEL_PARTS = 32
"""Of each level, where there are more: kernels are compiled one by one, and a level is a copy."""
_MOST_COPIED = 2
"""Parts that overlap share no larger one if that is this many times what they are cut from."""

T = TypeVar("T")
Range = tuple[int, int]
"""First index along an axis, and the one after the last."""


def narrow_joins(graph: Graph) -> Graph:
    """No concatenation has more than MOST_PARTS parts, and no value more slices along an axis.

    Those that had more have at most LEVEL_PARTS.
    """
    around = _ranges(graph)
    shared: dict[tuple[str, int, Range], str] = {}

    def narrow_slice(r: GraphRewriter, node: Node) -> str | None:
        if node.outputs[0] not in around:
            return None
        axis, (begin, end) = _cut(graph, node) or (0, (0, 0))
        value, start = node.inputs[0], 0
        for wider in around[node.outputs[0]]:
            key = value, axis, wider
            if key not in shared:
                own = wider[0] - start, wider[1] - start
                shared[key] = _emit(r, value, axis, own)
            value, start = shared[key], wider[0]
        return _emit(r, value, axis, (begin - start, end - start), node.outputs[0])

    return rebuild(graph, _narrow_concat, narrow_slice)


def _narrow_concat(r: GraphRewriter, node: Node) -> str | None:
    """concat(a, b, c, ...) -> concat(concat(a, b), concat(c, ...), ...)."""
    parts = node.inputs
    if node.op != "concat" or len(parts) <= MOST_PARTS:
        return None
    while len(parts) > LEVEL_PARTS:
        chunks = _chunks(parts)
        parts = tuple(c[0] if len(c) == 1 else r.emit("concat", (*c,), node.attrs) for c in chunks)
    return r.emit("concat", parts, node.attrs, node.outputs[0])


def _ranges(graph: Graph) -> dict[str, tuple[Range, ...]]:
    """What each of too many slices of one value lies in, from the widest range to the narrowest."""
    cuts: dict[tuple[str, int], list[tuple[Range, str]]] = {}
    for node in graph.nodes:
        if (cut := _cut(graph, node)) is not None:
            cuts.setdefault((node.inputs[0], cut[0]), []).append((cut[1], node.outputs[0]))
    found: dict[str, tuple[Range, ...]] = {}
    for (value, axis), own in cuts.items():
        if len(own) <= MOST_PARTS:
            continue
        parts = [(part, [name]) for part, name in sorted(own)]
        extent = graph.types[value].shape[axis]
        while len(parts) > LEVEL_PARTS:
            parts = [_together(chunk) for chunk in _chunks(parts)]
            if sum(end - begin for (begin, end), _ in parts) > _MOST_COPIED * extent:
                break
            for part, names in parts:
                found.update((name, (part, *found.get(name, ()))) for name in names)
    return found


def _together(parts: Sequence[tuple[Range, list[str]]]) -> tuple[Range, list[str]]:
    """The range that holds all of these, and what lies there."""
    begin, end = min(p[0] for p, _ in parts), max(p[1] for p, _ in parts)
    return (begin, end), [name for _, names in parts for name in names]


def _cut(graph: Graph, node: Node) -> tuple[int, Range] | None:
    """The axis and the range of a slice of neighbours along one axis; None for other nodes."""
    if node.op != "slice":
        return None
    begins, extents, steps = (ints(node.attrs, key) for key in ("begins", "extents", "steps"))
    shape = graph.types[node.inputs[0]].shape
    axes = [axis for axis, extent in enumerate(shape) if not always_equal(extents[axis], extent)]
    if len(axes) != 1 or any(step != 1 for step in steps):
        return None
    begin = begins[axes[0]]
    return axes[0], (begin, begin + extents[axes[0]])


def _emit(r: GraphRewriter, value: str, axis: int, part: Range, output: str = "") -> str:
    shape = r.shape(value)
    attrs = {
        "begins": tuple(part[0] if a == axis else 0 for a in range(len(shape))),
        "extents": tuple(part[1] - part[0] if a == axis else n for a, n in enumerate(shape)),
        "steps": (1,) * len(shape),
    }
    return r.emit("slice", (value,), attrs, output)


def _chunks(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[at : at + LEVEL_PARTS] for at in range(0, len(items), LEVEL_PARTS)]
