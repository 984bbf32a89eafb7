"""A quantized network with sums of floats against numpy's meaning of it, part by part.

Read `quantized_parts`. Last bits of a sum decide between two neighbours among quantized values, and
all that follows carries that on: two correct programs come to outputs that are as far apart as
rounding makes them, which may hide a wrong part. So each part gets the quantized values that the
bundle made before it. Those that it makes itself have to be what rounding makes of floats that
deviate by no more than outputs may: the reference runs beside two copies of itself, in which all
that is rounded is a little less, and a little more.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.by_parts import Parts, PartValue
from retune.core.dtypes import INT8, UINT8, DType, TensorType, dtype_of
from retune.graph.evaluate import run_parts
from retune.graph.graph import Graph
from retune.ir.plan import quiet
from retune.ops import lookup

_BYTES = (INT8, UINT8)
_MAPS = ("elementwise", "broadcast", "table", "injective")
"""Kinds of operators each of whose elements follows from single elements of their inputs."""


def quantized_parts(module: Module, graphs: Iterable[Graph], tolerance: float) -> Parts | None:
    """The comparison of the module's quantized values between kernels, and of its outputs of
    floats, with what the numpy meaning makes of the quantized values before them.

    That is one of the optimised `graphs`: the first one that has the module's bytes. None where
    there is none.
    """
    plan = module.plan
    types = {b.name: TensorType(b.shape, DType(b.dtype)) for b in plan.buffers}
    quantized = {b.name for b in plan.buffers if b.role == "temp" and b.dtype in _BYTES}
    read = {*chain.from_iterable(_reads(plan, quantized).values())}
    graph = next((g for g in graphs if all(g.types.get(n) == types[n] for n in read)), None)
    if graph is None:
        return None
    reads = _reads(plan, {n for n in _quantized(graph) if graph.types[n] == types.get(n)})
    rounded = {node.inputs[0] for node in graph.nodes if node.op == "round"}

    def compared(
        inputs: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray]
    ) -> Sequence[PartValue]:
        found: list[PartValue] = []
        known = {name: array for name, array in made.items() if dtype_of(array).is_float}
        known |= _watched(module, inputs, reads)

        def change(value: str, runs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
            if value in rounded:
                exact, less, more = runs
                share = tolerance * float(np.ptp(exact))
                return exact, less - share, more + share
            got = known.get(value)
            if got is None:
                return runs
            expected = np.clip(got, np.min(runs, axis=0), np.max(runs, axis=0))
            found.append(PartValue(name=value, got=got, expected=expected))
            return (got,) * len(runs)

        with quiet():
            run_parts(graph, [inputs] * 3, change)
        return found

    return Parts(compared, "confirming")


def _quantized(graph: Graph) -> set[str]:
    """Its bytes, and what follows from them, or from rounding, element by element."""
    found: set[str] = set()
    for node in graph.nodes:
        read = {value for value in node.inputs if value and value not in graph.constants}
        maps = lookup(node.op).kind in _MAPS and bool(read) and read <= found
        made = (v for v in node.outputs if maps or graph.types[v].dtype in _BYTES)
        found.update(node.outputs if node.op == "round" else made)
    return found


def _reads(plan: NetworkPlan, values: set[str]) -> dict[int, list[str]]:
    """Launch -> those of the values that it is the first one to read, of other groups."""
    found: dict[int, list[str]] = {}
    seen: set[str] = set()
    for number, launch in enumerate(plan.launches):
        names = values.intersection(launch.read) - seen
        found[number] = sorted(n for n in names if not n.startswith(f"{launch.label}/"))
        seen |= names
    return {number: names for number, names in found.items() if names}


def _watched(
    module: Module, inputs: Mapping[str, np.ndarray], reads: Mapping[int, Sequence[str]]
) -> dict[str, np.ndarray]:
    """What the launches read, by name, in the order of elements that the graph has."""
    plan, found = module.plan, dict[str, np.ndarray]()
    views = {alias.value: alias for alias in plan.aliases if alias.storage is not None}
    roots = {n: [views[v].of if v in views else v for v in names] for n, names in reads.items()}
    _, arrays = module.watch(inputs, roots)
    for number, names in reads.items():
        for name, array in zip(names, arrays[number], strict=True):
            view = views[name].storage if name in views else None
            own = view.unpack(array.reshape(-1)) if view else array
            found[name] = own.reshape(plan.buffer(name).shape)
    return found
