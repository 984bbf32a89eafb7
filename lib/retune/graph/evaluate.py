"""Running a graph by the numpy meaning of its ops: the oracle that needs no other program."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retune.core.dims import Size
from retune.core.errors import InputError
from retune.graph.graph import Graph, Node
from retune.graph.passes.indices import index_counts
from retune.ir.plan import quiet
from retune.ops import Array, lookup
from retune.ops.registry import HOST


def run_graph(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Every output of the graph by name, of the type that the graph states for it; extents that it
    counts are those of these inputs.

    Values are dropped after their last use. Raises: InputError when an input is missing, or has
    another shape or element type.
    """
    with quiet():
        (found,) = run_parts(graph, [inputs], lambda _, arrays: arrays)
    return found


def run_parts(
    graph: Graph,
    parts: Sequence[Mapping[str, Array]],
    change: Callable[[str, Sequence[Array]], Sequence[Array]],
) -> list[dict[str, Array]]:
    """The outputs for several sets of inputs, all of which go through each node together.

    Of each value that a node makes, `change` says what its readers get, one array for each set.
    Raises: InputError, as `run_graph` does.
    """
    runs: list[dict[str, Array]] = [dict(graph.constants) for _ in parts]
    counted: list[dict[str, int]] = [{} for _ in parts]
    counts = [(s, v, axis) for s, (v, axis) in graph.sizes.items() if s.counted]

    def made_by(node: Node) -> list[tuple[Size, str, int]]:
        return [entry for entry in counts if entry[1] in node.outputs]

    for values, inputs in zip(runs, parts, strict=True):
        values.update((name, _checked(graph, name, inputs)) for name in graph.inputs)
    last = {value: i for i, node in enumerate(graph.nodes) for value in node.inputs}
    for position, node in enumerate(graph.nodes):
        op = lookup(node.op)
        for values, sizes in zip(runs, counted, strict=True):
            arrays = [values[value] if value else None for value in node.inputs]
            attrs = node.at(sizes).attrs if sizes and node.op != HOST else node.attrs
            values.update(zip(node.outputs, op.reference(arrays, attrs), strict=True))
            sizes.update((s.name, values[v].shape[axis]) for s, v, axis in made_by(node))
        for value in node.outputs:
            changed = change(value, [values[value] for values in runs])
            for values, array in zip(runs, changed, strict=True):
                values[value] = array
        for value in node.inputs:
            if last.get(value) == position and value not in graph.ends:
                for values in runs:
                    values.pop(value, None)
    return [{name: values[name] for name in graph.outputs} for values in runs]


def random_inputs(graph: Graph, seed: int = 0) -> dict[str, Array]:
    """An array for each input of the graph, by name; equal seeds give equal arrays.

    Standard normal for floats; valid indices where they are some, other integers are 0 and 1.
    """
    counts = index_counts(graph)
    generator = np.random.default_rng(seed)
    made: dict[str, Array] = {}
    for name in graph.inputs:
        entry = graph.types[name]
        if name in graph.values:
            stated = np.asarray(graph.values[name], entry.dtype.numpy)
            made[name] = stated.reshape(entry.shape)
        elif entry.dtype.is_float:
            made[name] = generator.standard_normal(entry.shape, np.float32).astype(
                entry.dtype.numpy
            )
        else:
            made[name] = generator.integers(0, counts.get(name, 2), entry.shape).astype(
                entry.dtype.numpy
            )
    return made


def _checked(graph: Graph, name: str, inputs: Mapping[str, Array]) -> Array:
    expected = graph.types[name]
    if name not in inputs:
        raise InputError(
            f"running {graph.name}: input '{name}' is missing; expected {expected}; "
            f"got {', '.join(inputs) or 'none'}"
        )
    array = np.asarray(inputs[name])
    if array.shape != expected.shape or array.dtype != expected.dtype.numpy:
        raise InputError(
            f"running {graph.name}: input '{name}' should be {expected}; "
            f"got {array.dtype}{list(array.shape)}"
        )
    return array
