"""Layers that run for some images of a batch after others: the op `batch_loop`.

Read `BatchLoop`, then `batch_step`: what one step is for a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from retune.core.dtypes import INT32, TensorType
from retune.core.errors import ModelError
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.scan import StepGraph, StoredRow, add_body, computes
from retune.ops.registry import (
    Array,
    Attrs,
    AttrValue,
    OpDef,
    integer,
    present,
    register,
)

BATCH_LOOP = "batch_loop"
"""The op of such layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoop:
    """A network for few images that runs over a batch of any number of them.

    Inputs of the node and of the bodies, in that order: what has the images of the batch along its
    first axis, of which a body gets some in a row, and what every step reads as it is. Outputs are
    those of the bodies for all images.
    """

    body: Graph
    """For as many images as its first input has; it runs as long as so many are left."""
    rest: Graph
    """The same for one image: it runs for those that are left then."""
    images: int
    """How many of the first inputs have images."""

    @property
    def step(self) -> int:
        """Images of a step of `body`."""
        return self.body.types[self.body.inputs[0]].shape[0]

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """The attributes of its node."""
        return {"body": self.body, "rest": self.rest, "images": self.images}

    @staticmethod
    def of(attrs: Attrs) -> "BatchLoop":
        """The loop that a node of the op `batch_loop` is."""
        body, rest = (cast("Graph", attrs[name]) for name in ("body", "rest"))
        return BatchLoop(body=body, rest=rest, images=integer(attrs, "images"))

    def runs(self, batch: int) -> list[tuple[Graph, int]]:
        """Of a batch of so many images, what runs and how often, one after the other."""
        every = [(self.body, batch // self.step)]
        return every if self.step == 1 else [*every, (self.rest, batch % self.step)]


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    loop = BatchLoop.of(attrs)
    given = [present(types, index) for index in range(len(types))]
    batch, body = given[0].shape[0], loop.body
    expected = [body.types[value] for value in body.inputs]
    for index in range(loop.images):
        expected[index] = _whole(expected[index], batch)
    if given != expected:
        raise ModelError(
            f"loop over a batch: expected {', '.join(map(str, expected))}, got "
            f"{', '.join(map(str, given))}"
        )
    return tuple(_whole(body.types[value], batch) for value in body.outputs)


def _whole(kind: TensorType, batch: int) -> TensorType:
    return TensorType((batch, *kind.shape[1:]), kind.dtype)


def run_batch_loop(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """What the layers make of the whole batch: a body's meaning for some images after others."""
    from retune.graph.evaluate import run_graph

    loop = BatchLoop.of(attrs)
    given = [present(arrays, index) for index in range(len(arrays))]
    batch, first = given[0].shape[0], 0
    made: list[list[Array]] = [[] for _ in loop.body.outputs]
    for body, times in loop.runs(batch):
        images = body.types[body.inputs[0]].shape[0]
        for _ in range(times):
            part = [a[first : first + images] for a in given[: loop.images]]
            now = dict(zip(body.inputs, [*part, *given[loop.images :]], strict=True))
            found = run_graph(body, now)
            for each, value in zip(made, body.outputs, strict=True):
                each.append(found[value])
            first += images
    return tuple(np.concatenate(each) for each in made)


register(
    OpDef(
        name=BATCH_LOOP,
        kind="loop",
        infer=_infer,
        numpy=run_batch_loop,
        doc=run_batch_loop.__doc__ or "",
    )
)


def batch_step(body: Graph, images: int, batch: int) -> StepGraph:
    """What one step of a loop over a batch computes for one of its bodies.

    Its first `images` inputs and all its outputs are some of a batch's, which begin with that of
    the number that the counter holds. The counter is counted on when all others are done.
    """
    build = GraphBuilder("step", reserved=body.types)
    counter = build.input(build.reserve("image"), TensorType((), INT32))
    step = body.types[body.inputs[0]].shape[0]
    row = StoredRow(counter=counter, count=batch, images=step)
    stored: list[str] = []
    for number, value in enumerate(body.inputs):
        readers = [node for node in body.nodes if value in node.inputs]
        moved = number < images and not all(map(computes, readers))
        given = build.reserve(f"{value}.all") if moved else value
        build.input(given, body.types[value])
        if number < images:
            stored.append(given)
        if moved:
            build.add("identity", [given], outputs=[value])
    outputs = add_body(build, body, states=0)
    by = build.constant(f"{counter}.by{step}", np.asarray(step, np.int32))
    after = build.add("add", [counter, by], name=f"{counter}.next")
    return StepGraph(
        graph=build.finish([after, *outputs]),
        counters={counter: 0},
        rows=dict.fromkeys([*stored, *outputs], row),
    )
