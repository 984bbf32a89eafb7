"""A network that rounds rows to int8 while it runs against numpy's meaning of it, part by part.

Read `row_parts`. An element between two quantized values becomes the one or the other by its last
bits, and all that follows carries that on: two correct programs come to outputs that are as far
apart as rounding to int8 makes them, which hides a wrong row. So each product gets the rows that
the bundle's own product read: what leads from there to the next rows, and to the outputs, is
compared as usual, and the outputs as a whole are not.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.by_parts import Parts, PartValue
from retune.bundle.verify.sequences import NewApart
from retune.core.dtypes import INT8
from retune.core.errors import ModelError
from retune.graph.graph import Graph
from retune.ir.plan import quiet
from retune.ops import lookup

_Arrays = Mapping[str, np.ndarray]


def row_parts(module: Module, graph: Callable[[_Arrays], Graph], first: Graph) -> Parts | None:
    """The comparison of the module's products of rounded rows, and of what lies between them, with
    those of the `graph` for some inputs. What the module made of these has to be what its parts
    make.

    None where the module does not show them all: `first` is the graph for some sizes.
    """
    weights, apart = _weights(first), NewApart(module.plan)
    products = [each for each in _products(module.plan) if each[2] in weights]
    if weights != {weight for _, _, weight in products}:
        return None
    read = {number: [buffer] for number, buffer, _ in products}

    def compared(inputs: _Arrays, made: _Arrays) -> Sequence[PartValue]:
        outputs, arrays = module.watch(inputs, read)
        rows: dict[str, list[np.ndarray]] = {}
        for number, _, weight in products:
            if number in arrays:
                rows.setdefault(weight, []).append(arrays[number][0])
        parts: list[PartValue] = []
        with quiet():
            expected = _expected(graph(inputs), inputs, rows, parts)
        ends, own = apart.split(inputs, expected), apart.split(inputs, outputs)
        parts += [PartValue(name=name, got=own[name], expected=ends[name]) for name in ends]
        return [*parts, *(PartValue(name=n, got=made[n], expected=own[n]) for n in ends)]

    return Parts(compared, "deciding")


def _weights(graph: Graph) -> set[str]:
    return {node.inputs[1] for node in graph.nodes if node.attrs.get("rows") == INT8}


def _expected(
    graph: Graph, inputs: _Arrays, rows: Mapping[str, list[np.ndarray]], parts: list[PartValue]
) -> dict[str, np.ndarray]:
    """The outputs of the graph whose products of rounded rows get these, by the names of weights.

    Adds to the `parts` what such products read. Raises: ModelError if the bundle has not as many.
    """
    values: dict[str, np.ndarray] = {**graph.constants, **inputs}
    waiting = {weight: iter(arrays) for weight, arrays in rows.items()}
    for node in graph.nodes:
        arrays = [values[value] if value else None for value in node.inputs]
        if node.attrs.get("rows") == INT8:
            got = next(waiting.get(node.inputs[1], iter(())), None)
            if got is None:
                raise ModelError(
                    f"{graph.name}: {node.name}: expected a product of rounded rows in the bundle, "
                    "got none; compile the model again, and report it"
                )
            expected = values[node.inputs[0]]
            arrays[0] = got.reshape(expected.shape)
            parts.append(PartValue(name=f"{node.name}, rows", got=arrays[0], expected=expected))
        values.update(zip(node.outputs, lookup(node.op).reference(arrays, node.attrs), strict=True))
    return {name: values[name] for name in graph.outputs}


def _products(plan: NetworkPlan) -> list[tuple[int, str, str]]:
    """The products with quantized weights: the number of the first launch of each, the buffer of
    its rows, and its weight as the model calls it."""
    roles = {entry.name: entry.role for entry in plan.buffers}
    found: list[tuple[int, str, str]] = []
    numbered = groupby(enumerate(plan.launches), lambda each: each[1].label)
    for group in (list(launches) for _, launches in numbered):
        number, first = group[0]
        for name in (name for _, launch in group for name in launch.args):
            if roles[name] == "weight":  # packed ones have a name with a digest behind it
                found.append((number, first.args[0], name.rpartition("@")[0] or name))
    return found
