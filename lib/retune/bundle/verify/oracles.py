"""Oracles: the references that a bundle is compared with, and the effect of rounding on them.

Read `oracle_of` and `rounding_of`. The numpy meaning of a network is of fixed sizes: each call of a
sequence may have others, so that graphs are made of the file as inputs ask for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Generic, TypeVar

import numpy as np

from retune.bundle.plan import INTEGERS_NOTE, ROWS_NOTE, NetworkPlan
from retune.bundle.verify.examination import Original
from retune.bundle.verify.peers import (
    NUMPY,
    Peer,
    has_onnxruntime,
    numpy_peer,
    open_peer,
    open_reference,
    unoptimised_is_exact,
)
from retune.bundle.verify.rounding import SUMS, Rounding, RoundingModel, StoredRounding
from retune.core.dims import apart
from retune.core.dtypes import FLOAT16, INT8, UINT8
from retune.core.keys import file_key
from retune.core.schema import from_json
from retune.core.target import DeviceSpec
from retune.device.opencl.host import read_flags
from retune.frontend.onnx.importer import load_file
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from retune.graph.passes.storage import in_compute_types
from retune.graph.quantize.recipe import Recipe, quantized
from retune.ops import lookup
from retune.proto.file import external_files

T = TypeVar("T")

_KEPT = 4
"""Sizes whose graphs are held."""


class BySizes(Generic[T]):
    """What is made of a network for sizes; that of the last few is held."""

    def __init__(self, network: Original, make: Callable[[Original], T]) -> None:
        self._network, self._make = network, make
        self._made: dict[object, T] = {}

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> T:
        """For the sizes of these inputs."""
        return self.at(self._network.of(inputs))

    def at(self, network: Original) -> T:
        """For its sizes."""
        key = (*network.shapes.items(), *network.values.items())
        if key not in self._made:
            if len(self._made) == _KEPT:
                del self._made[next(iter(self._made))]
            self._made[key] = self._make(network)
        return self._made[key]


Oracle = tuple[Peer, BySizes[Graph] | None]
"""What a bundle is compared with, and its network at any sizes where parts of it need that."""


def oracle_of(plan: NetworkPlan, network: Original, spec: DeviceSpec) -> Oracle:
    """What a bundle of that plan is compared with.

    In float32 where a device like that does not store the network's small floats. What rounds rows
    to int8 where onnxruntime does not (`ROWS_NOTE`) is compared with numpy's meaning of it. The
    oracle takes inputs of any sizes of the plan.
    """
    quantized, rows = is_quantized(plan, network), rounds_rows(plan, network)
    alone = not (quantized or plan.hosts or not has_onnxruntime())
    counts = not (alone or rows) and any(each.counted for each in plan.sizes)
    graphs = BySizes(network, lambda own: _graph_of(own, spec, counts=counts))
    opened = partial(graphs.at, network)
    if quantized or rows:
        oracle = numpy_peer(opened())
    else:
        oracle = open_reference(network.onnx, opened, shapes=network.shapes)
    if oracle.name == NUMPY:
        oracle = replace(oracle, predict=lambda inputs: run_graph(graphs(inputs), inputs))
    return oracle, graphs if rows or not alone else None


def rounding_of(
    plan: NetworkPlan, network: Original, spec: DeviceSpec, oracle: Peer
) -> Rounding | None:
    """What rounding does to the network, from the cache where it was found before.

    None where integers have to be exactly those of numpy: rounding is no excuse there, but where
    they follow from sums of floats. Sums that onnxruntime cuts off without its optimisations are no
    excuse either: where a network may have some, it is not run so.
    """
    if is_quantized(plan, network) and not rounds_sums(_graph_of(network, spec)):
        return None
    exact = unoptimised_is_exact(read_flags())

    @cache
    def peer() -> Peer:
        return open_peer("onnxruntime", network.onnx, shapes=network.shapes, optimised=False)

    def content(own: Original) -> object:
        files = (network.onnx, *external_files(network.onnx))
        asked = dict(own.shapes), FLOAT16 in spec.stored, oracle.name, oracle.version, exact
        asked = (*asked, dict(own.values)) if own.values else asked
        asked = (*asked, own.recipe) if own.recipe else asked
        return [file_key(file) for file in files], asked

    def at(own: Original) -> Rounding:
        graph = cache(partial(_graph_of, own, spec))

        def unoptimised() -> Peer | None:
            return peer() if exact or not multiplies_bytes(graph()) else None

        other = oracle.name != NUMPY
        model = RoundingModel(graph, oracle, unoptimised) if other else RoundingModel(graph)
        return StoredRounding(model, partial(content, own))

    roundings = BySizes(network, at)
    return lambda inputs: roundings(inputs)(inputs)


def is_quantized(plan: NetworkPlan, network: Original) -> bool:
    """Whether it has to compute what numpy makes of integers; notes of older bundles do not say."""
    return (network.integers and INTEGERS_NOTE in plan.notes) or bool(network.recipe)


def rounds_rows(plan: NetworkPlan, network: Original) -> bool:
    """Whether it is compared with a numpy meaning that rounds rows to int8 as the bundle does."""
    return network.integers and ROWS_NOTE in plan.notes and not is_quantized(plan, network)


def multiplies_bytes(graph: Graph) -> bool:
    """Whether it sums products of bytes, in a body of a loop perhaps."""
    return any(
        (
            lookup(node.op).kind == "heavy"
            and all(graph.types[value].dtype in (INT8, UINT8) for value in node.inputs[:2])
        )
        or any(isinstance(a, Graph) and multiplies_bytes(a) for a in node.attrs.values())
        for node in graph.nodes
    )


def rounds_sums(graph: Graph) -> bool:
    """Whether bytes follow from sums of floats, whose last bits decide between neighbours."""
    inexact: set[str] = set()
    for node in graph.nodes:
        read = graph.types[node.inputs[0]].dtype if node.inputs else None
        summed = read is not None and read.is_float and lookup(node.op).kind in SUMS
        if summed or not inexact.isdisjoint(node.inputs):
            inexact.update(node.outputs)
            if any(graph.types[value].dtype in (INT8, UINT8) for value in node.outputs):
                return True
    return False


def _graph_of(network: Original, spec: DeviceSpec, *, counts: bool = False) -> Graph:
    with apart():  # what is made of it is right for all counts, or on the host
        graph = load_file(network.onnx, network.shapes, network.values, counts=counts)
    if network.recipe:
        graph = quantized(graph, from_json(Recipe, network.recipe))
    return in_compute_types(graph, spec.stored)
