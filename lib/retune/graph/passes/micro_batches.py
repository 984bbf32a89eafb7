"""Micro-batches: layers that run for some images at a time, so that these stay in the cache.

Where the activations of a batch exceed the last cache, each layer writes them to memory and the
next one reads them from there. Layers in a row that run for a few images, and then for the next
few, find them in the cache. They become a loop over the batch (`graph.batch_loop`), which may be
open. GPipe (Huang et al. 2019) has the word. Read `in_micro_batches`, then `_runs`.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import inf

from retune.core.dims import always_equal, apart, counts_of, example, sizes_of
from retune.core.dtypes import TensorType
from retune.core.errors import ModelError
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop
from retune.graph.fuse import partition
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ir.expr import Buffer, loads, walk
from retune.ir.te import Compute, Concat, Dag, Tensor, placeholder
from retune.ops.registry import Attrs, Names, OpCall, lookup

_SHARE = 0.75
"""Of the cache, what a layer reads and writes may take: weights and shortcuts have the rest."""
_LAUNCH_BYTES = 16 << 10
"""What a compute unit moves while a kernel starts and its last work-group ends."""
_FEW_IMAGES = 0.15
"""Of a layer's arithmetic, what it takes more for a few images at a time, whose tiles are smaller
(two cores of Zen 2, resnet50 for 28 images: 0.99 of the time of whole batches, 1.03 without it)."""
_SHAPES = ("shape", "extents")
"""Attributes that are the output's shape, of reshapes, broadcasts and slices."""


@dataclass(frozen=True, slots=True)
class SharedCache:
    """The last cache of a processor."""

    bytes: int
    units: int
    """Compute units that share it."""
    hiding: float = 20.0
    """Operations that hide the way of a byte: layers with more for each do not wait for memory (two
    cores of Zen 2, whole batches 1: MobileNetV2 for 8 images 0.80, with 10 operations 0.98)."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Groups in a row that run for so many `images` at a time."""

    first: int
    end: int
    images: int
    """0: for all of them."""


def in_micro_batches(graph: Graph, cache: SharedCache) -> Graph:
    """The graph with micro-batches where they keep more out of memory than they cost.

    An open batch is divided for the number of images at hand, and what is made serves any number.
    A graph without a batch, with other open extents, or whose batch fits the cache, is the same
    object.
    """
    batch = batch_of(graph.types[name].shape for name in graph.inputs)
    extents = [extent for entry in graph.types.values() for extent in entry.shape]
    others = sizes_of(extents) - sizes_of([batch])
    if example(batch) < 2 or others or counts_of(extents) or graph.states:
        return graph
    with apart():  # what divides is a choice, and right for all sizes
        network = _Batched(graph, batch, cache)
        runs = _runs(network)
    return _divided(network, runs) if any(run.images for run in runs) else graph


def batch_of(shapes: Iterable[Sequence[int]]) -> int:
    """The extent that comes first in the shapes of all inputs; 0 where they may differ."""
    firsts = [shape[0] if shape else 0 for shape in shapes] or [0]
    return firsts[0] if all(always_equal(first, firsts[0]) for first in firsts) else 0


class _Batched:
    """A graph by its groups, and which of its values have the images of the batch one by one."""

    def __init__(self, graph: Graph, batch: int, cache: SharedCache) -> None:
        self.graph, self.batch = graph, example(batch)
        self.cache, self.launch = _SHARE * cache.bytes, _LAUNCH_BYTES * cache.units
        self.hiding = cache.hiding
        self.groups = partition(graph)
        self.images = set(graph.inputs)
        self.made = {node.outputs[0]: _made(node, graph) for node in graph.nodes}
        for node in graph.nodes:
            if _by_image(node, graph, self.images, self.made[node.outputs[0]]):
                self.images.update(node.outputs)

    @cached_property
    def divides(self) -> Sequence[bool]:
        """Of each group, whether all that it makes is made image by image."""
        return [
            all(self.images.issuperset(node.outputs) for node in group.nodes)
            for group in self.groups
        ]

    @cached_property
    def moved(self) -> Sequence[tuple[int, int]]:
        """Of each group, bytes of the images that it reads and writes, and of its constants."""
        return [
            (
                self._bytes(self.images.intersection((*group.inputs, *group.outputs))),
                self._bytes(group.params),
            )
            for group in self.groups
        ]

    @cached_property
    def crossing(self) -> Sequence[int]:
        """Bytes of images that are there before each group, and that it or later ones read."""
        made = {value: at for at, group in enumerate(self.groups) for value in group.outputs}
        made |= dict.fromkeys(self.graph.inputs, -1)
        last = {value: at for at, group in enumerate(self.groups) for value in group.inputs}
        last |= dict.fromkeys(self.graph.outputs, len(self.groups))
        steps = [0] * (len(self.groups) + 2)
        for value, at in made.items():
            if value in self.images and value in last:
                size = self._bytes([value])
                steps[at + 1] += size
                steps[last[value] + 1] -= size
        return [*accumulate(steps)]

    @cached_property
    def hidden(self) -> Sequence[float]:
        """Bytes of each group whose way is hidden by its arithmetic."""
        made = ([self.made[node.outputs[0]] for node in group.nodes] for group in self.groups)
        flops = (sum(example(Dag((m,)).flops) for m in each if m is not None) for each in made)
        return [count / self.hiding for count in flops]

    def saved(self, images: int) -> list[float]:
        """Bytes that each group keeps out of memory if it runs for so many images at a time, of
        those that it waits for, less what that costs. What is left then runs one by one."""
        times = sum(divmod(self.batch, images))
        launches = (times - 1) * self.launch
        found: list[float] = []
        groups = zip(self.divides, self.moved, self.hidden, strict=True)
        for divides, (moved, weights), hidden in groups:
            waited = max(0.0, moved - hidden)
            before = waited if moved > self.cache else 0
            after = waited if moved * images > self.cache * self.batch else 0
            saved = before - after - (times - 1) * weights - launches
            saved -= _FEW_IMAGES * hidden if times > 1 else 0
            found.append(saved if divides or times == 1 else -inf)
        return found

    def moved_at(self, group: int, images: int) -> int:
        """Bytes that go to memory where a run of so many images ends before that group, and that
        come from there where it begins; groups of the whole batch count what they move."""
        return self.crossing[group] if images < self.batch else 0

    def _bytes(self, values: Collection[str]) -> int:
        return sum(example(self.graph.types[value].bytes) for value in values)


def _by_image(node: Node, graph: Graph, images: set[str], made: Tensor | None) -> bool:
    """Whether the node makes of each image of what it reads one of its output, and no more.

    Its expression `made` says so: what is read of `images` is read at the output's first index.
    """
    own, output = images.intersection(node.inputs), graph.types[node.outputs[0]]
    if not own or not output.shape or made is None:
        return False
    kinds = [graph.types[value] for value in node.inputs]
    batch = graph.types[next(iter(own))].shape[0]
    if node.op == "reshape":  # whose elements stay where they are
        return always_equal(output.shape[0], batch)
    read = {t.buffer for n, t in enumerate(_inputs(kinds)) if node.inputs[n] in own}
    if not _keeps_images(made, batch, read):
        return False
    one = [
        _of(kind, 1) if value in own else kind
        for kind, value in zip(kinds, node.inputs, strict=True)
    ]
    try:
        infer = lookup(node.op).infer
        return infer(one, _attributes(node, graph, 1)) == (_of(output, 1),)
    except ModelError:
        return False


def _inputs(kinds: Sequence[TensorType]) -> list[Tensor]:
    return [placeholder(f"in{i}", kind.shape, kind.dtype) for i, kind in enumerate(kinds)]


def _made(node: Node, graph: Graph) -> Tensor | None:
    """What the node makes of `_inputs`; None of one without an expression, or that lacks some."""
    expression = lookup(node.op).expression
    if expression is None or not all(node.inputs):
        return None
    inputs = _inputs([graph.types[value] for value in node.inputs])
    output = graph.types[node.outputs[0]]
    return expression(
        OpCall(op=node.op, inputs=inputs, attrs=node.attrs, output=output, name=Names())
    )


def _keeps_images(made: Tensor, batch: int, images: set[Buffer]) -> bool:
    """Whether a tensor has in each row along its first axis what follows from that of `images`."""
    held = set(images)
    for stage in Dag((made,)).stages:
        if isinstance(stage.op, Concat):
            found = [tensor.buffer in held for tensor in stage.op.inputs]
            reads, kept = any(found), all(found) and stage.op.dim > 0
        else:
            assert isinstance(stage.op, Compute), "placeholders are no stages"
            axes, body = stage.op.axes, stage.op.body
            read = [load.indices[0] for load in loads(body) if load.buffer in held]
            image = axes[0].var if axes and always_equal(axes[0].extent, batch) else None
            named = sum(part == image for part in walk(body))
            reads, kept = len(read) > 0, named == len(read) and all(i == image for i in read)
        if reads and not kept:
            return False
        held.update([stage.buffer] if reads else [])
    return made.buffer in held


def _of(kind: TensorType, images: int) -> TensorType:
    return TensorType((images, *kind.shape[1:]), kind.dtype)


def _attributes(node: Node, graph: Graph, images: int) -> Attrs:
    """The node's attributes where it runs for so many images: some are the output's shape."""
    shape = graph.types[node.outputs[0]].shape
    return {
        key: (images, *shape[1:]) if key in _SHAPES and value == shape else value
        for key, value in node.attrs.items()
    }


def _runs(network: _Batched) -> list[_Run]:
    """The runs that keep most out of memory together, in order; those of the whole batch, too.

    By dynamic programming over the groups. Micro-batches of powers of two are alike in networks of
    many batches, so that their kernels are, and what was measured of them.
    """
    batch, groups = network.batch, network.groups
    sizes = [batch, *(1 << n for n in reversed(range((batch - 1).bit_length())))]
    saved = {images: network.saved(images) for images in sizes}
    ended, before = dict.fromkeys(sizes, 0.0), list[dict[int, int]]()
    best = dict.fromkeys(sizes, -inf)
    for at in range(len(groups)):
        other = max(sizes, key=lambda images: ended[images])
        begun = {n: ended[other] - network.moved_at(at, n) for n in sizes}
        before.append({n: n if best[n] >= begun[n] else other for n in sizes})
        best = {n: max(best[n], begun[n]) + saved[n][at] for n in sizes}
        ended = {n: best[n] - network.moved_at(at + 1, n) for n in sizes}
    images = max(sizes, key=lambda images: ended[images])
    if ended[images] <= network.cache:
        return [_Run(0, len(groups), 0)]
    found, end = list[_Run](), len(groups)
    for at in reversed(range(len(groups))):
        if at == 0 or before[at][images] != images:
            found.append(_Run(at, end, images if images < batch else 0))
            end = at
        images = before[at][images]
    return found[::-1]


def _divided(network: _Batched, runs: Sequence[_Run]) -> Graph:
    """The graph with these runs in micro-batches."""
    graph = network.graph
    build = GraphBuilder(graph.name, reserved=graph.types)
    build.carry(graph)
    for run in runs:
        if run.images:
            _put_run(build, network, run)
            continue
        for node in (n for group in network.groups[run.first : run.end] for n in group.nodes):
            if node.outputs[0] not in build.types:  # one without inputs may be in several groups
                build.add(node.op, node.inputs, node.attrs, outputs=node.outputs, name=node.name)
    return build.finish(graph.outputs)


def _put_run(build: GraphBuilder, network: _Batched, run: _Run) -> None:
    """The run's groups as a loop over the batch, which makes what others read of them."""
    inside = network.groups[run.first : run.end]
    nodes = [node for group in inside for node in group.nodes]
    own = dict.fromkeys(value for node in nodes for value in node.outputs)
    later = {value for group in network.groups[run.end :] for value in group.inputs}
    wanted = [value for value in own if value in later | network.graph.ends]
    read = dict.fromkeys(value for node in nodes for value in node.inputs if value)
    given = [value for value in read if value not in own.keys() | network.graph.constants.keys()]
    given.sort(key=lambda value: value not in network.images)
    body = _body(network, nodes, given, wanted, run.images)
    rest = body if run.images == 1 else _body(network, nodes, given, wanted, 1)
    loop = BatchLoop(body=body, rest=rest, images=sum(value in network.images for value in given))
    build.add(BATCH_LOOP, given, loop.attrs, outputs=wanted, name=f"{wanted[0]}.batch")


def _body(
    network: _Batched,
    nodes: Sequence[Node],
    given: Sequence[str],
    wanted: Sequence[str],
    images: int,
) -> Graph:
    """The nodes for so many images, of which some values are `given`."""
    graph, build = network.graph, GraphBuilder("images")
    for value in given:
        kind = graph.types[value]
        build.input(value, _of(kind, images) if value in network.images else kind)
    for node in nodes:
        for value in node.inputs:
            if value in graph.constants and value not in build.types:
                build.constant(value, graph.constants[value], graph.types[value].dtype)
        if node.outputs[0] not in build.types:
            attrs = _attributes(node, graph, images)
            build.add(node.op, node.inputs, attrs, outputs=node.outputs, name=node.name)
    return build.finish(wanted)
