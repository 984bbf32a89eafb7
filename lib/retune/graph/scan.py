"""Loops in a network: `scan` applies a body to slice after slice of its inputs, and carries states.

It is ONNX's Scan, and what recurrent layers and counted loops become. Read `Scan` first, then
`step_graph`: what one step is for a device. `run_scan` is the meaning in numpy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from retune.core.dtypes import INT32, TensorType
from retune.core.errors import ModelError
from retune.graph.graph import Graph, GraphBuilder, Node
from retune.ops.registry import (
    SEVERAL_OUTPUTS,
    Array,
    Attrs,
    AttrValue,
    OpDef,
    integer,
    ints,
    lookup,
    present,
    register,
)

SCAN = "scan"
"""The op of a loop."""
COUNTERS = ("step.forward", "step.backward")
"""Values of a step graph: the index of the slice that is read, from the start and from the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A loop of a fixed number of steps.

    Inputs of the node and of the body, in that order: the states, what is scanned (the body gets
    a slice of it along the first axis, without that axis), and what every step reads as it is.
    Outputs of the body: the states after the step, then rows. Outputs of the node: the states after
    the last step, then the rows of all steps, stacked along a new first axis.
    """

    body: Graph
    steps: int
    """At least one."""
    states: int
    """How many of the body's first inputs and outputs are states."""
    backward_inputs: tuple[int, ...] = ()
    """One for each scanned input: 1 if its slices are read from the last to the first, else 0."""
    backward_outputs: tuple[int, ...] = ()
    """One for each stacked output: 1 if its rows are stored from the last one to the first."""

    @property
    def scanned(self) -> range:
        """The inputs that are scanned."""
        return range(self.states, self.states + len(self.backward_inputs))

    @property
    def attrs(self) -> dict[str, AttrValue]:
        """The attributes of its node."""
        return {
            "body": self.body,
            "steps": self.steps,
            "states": self.states,
            "backward_inputs": self.backward_inputs,
            "backward_outputs": self.backward_outputs,
        }

    @staticmethod
    def of(attrs: Attrs) -> "Scan":
        """The loop that a node of the op `scan` is."""
        return Scan(
            body=cast("Graph", attrs["body"]),
            steps=integer(attrs, "steps"),
            states=integer(attrs, "states"),
            backward_inputs=ints(attrs, "backward_inputs"),
            backward_outputs=ints(attrs, "backward_outputs"),
        )


def _infer(types: Sequence[TensorType | None], attrs: Attrs) -> tuple[TensorType, ...]:
    loop = Scan.of(attrs)
    body, made = loop.body, [loop.body.types[value] for value in loop.body.outputs]
    given = [present(types, index) for index in range(len(types))]
    expected = [body.types[value] for value in body.inputs]
    for index in loop.scanned:
        row = expected[index]
        expected[index] = TensorType((loop.steps, *row.shape), row.dtype)
    states, rows = made[: loop.states], made[loop.states :]
    if given != expected or states != expected[: loop.states] or loop.steps < 1:
        raise ModelError(
            f"loop of {loop.steps} steps over {', '.join(map(str, given))}, states that become "
            f"{', '.join(map(str, states))}: expected at least one step over "
            f"{', '.join(map(str, expected))}, and states of unchanged types"
        )
    return (*states, *(TensorType((loop.steps, *row.shape), row.dtype) for row in rows))


def run_scan(arrays: Sequence[Array | None], attrs: Attrs) -> tuple[Array, ...]:
    """What the loop makes of its inputs: the body's meaning, step by step."""
    from retune.graph.evaluate import run_graph

    loop = Scan.of(attrs)
    given = [present(arrays, index) for index in range(len(arrays))]
    rows: list[list[Array]] = [[] for _ in loop.backward_outputs]
    for step in range(loop.steps):
        now = list(given)
        for index, backward in zip(loop.scanned, loop.backward_inputs, strict=True):
            now[index] = given[index][loop.steps - 1 - step if backward else step]
        found = run_graph(loop.body, dict(zip(loop.body.inputs, now, strict=True)))
        made = [found[value] for value in loop.body.outputs]
        given[: loop.states] = made[: loop.states]
        for each, array in zip(rows, made[loop.states :], strict=True):
            each.append(array)
    stacked = [
        np.stack(each[::-1] if backward else each)
        for each, backward in zip(rows, loop.backward_outputs, strict=True)
    ]
    return (*(np.asarray(state) for state in given[: loop.states]), *stacked)


register(OpDef(name=SCAN, kind="loop", infer=_infer, numpy=run_scan, doc=run_scan.__doc__ or ""))


def with_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> Graph:
    """The graph with changed bodies of its loops, of the same inputs and outputs."""
    nodes = tuple(
        replace(node, attrs={**node.attrs, "body": change(Scan.of(node.attrs).body)})
        if node.op == SCAN
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """Where a value of a step lies: among those of all steps, which are memory of their own."""

    counter: str
    """Says which one it is."""
    count: int
    """How many there are."""
    images: int = 0
    """It is so many of them, from that of the counter on, along its first axis; 0: it is one of
    them, which lie along a new first axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGraph:
    """One step of a loop as a network of its own, in which time is a value like any other."""

    graph: Graph
    """Inputs: counters, states, and the loop's other inputs whole. Outputs: the counters and states
    after the step, then the rows; each made by a node, and no two of them the same value."""
    counters: Mapping[str, int]
    """Counters among its inputs, and where they start."""
    rows: Mapping[str, StoredRow]
    """Values that lie among those of all steps."""


def step_graph(loop: Scan) -> StepGraph:
    """What one step of the loop computes, where whole scanned inputs and the step's number lie."""
    body, build = loop.body, GraphBuilder("step", reserved=loop.body.types)
    ways = sorted({*loop.backward_inputs, *loop.backward_outputs})
    index = {way: build.input(build.fresh(COUNTERS[way]), TensorType((), INT32)) for way in ways}
    whole = {i: build.reserve(f"{body.inputs[i]}.all") for i in loop.scanned}
    for i, value in enumerate(body.inputs):
        kind = body.types[value]
        shape = (loop.steps, *kind.shape) if i in whole else kind.shape
        build.input(whole.get(i, value), TensorType(shape, kind.dtype))
    after = [_counted(build, name, way) for way, name in index.items()]
    for i, way in zip(loop.scanned, loop.backward_inputs, strict=True):
        build.add("gather", [whole[i], index[way]], {"axis": 0}, outputs=[body.inputs[i]])
    outputs = add_body(build, body, loop.states)
    rows = zip(outputs[loop.states :], loop.backward_outputs, strict=True)
    return StepGraph(
        graph=build.finish([*after, *outputs]),
        counters={name: way * (loop.steps - 1) for way, name in index.items()},
        rows={value: StoredRow(counter=index[way], count=loop.steps) for value, way in rows},
    )


def add_body(build: GraphBuilder, body: Graph, states: int) -> list[str]:
    """The body's constants and nodes are in the graph; its outputs' values: `states`, and rows.

    Each is made by a kernel, which may write it anywhere. No two are the same, and no node reads a
    row: it lies among others.
    """
    for name, array in body.constants.items():
        build.constant(name, array, body.types[name].dtype)
    for node in body.nodes:
        build.add(node.op, node.inputs, node.attrs, outputs=node.outputs, name=node.name)
    computed = {value for node in body.nodes if computes(node) for value in node.outputs}
    read = {value for node in body.nodes for value in node.inputs}
    outputs: list[str] = []
    for position, value in enumerate(body.outputs):
        own = (
            value in computed and value not in outputs and (position < states or value not in read)
        )
        outputs.append(value if own else build.add("identity", [value], name=f"{value}.copy"))
    return outputs


def computes(node: Node) -> bool:
    """Whether a kernel of its own makes what the node does: it finds what it reads and writes
    anywhere."""
    return lookup(node.op).kind not in ("injective", *SEVERAL_OUTPUTS)


def _counted(build: GraphBuilder, counter: str, way: int) -> str:
    one = build.constant(f"{counter}.by", np.asarray((1, -1)[way], np.int32))
    return build.add("add", [counter, one], name=f"{counter}.next")
