"""A graph through everything that a user's network goes through, and run on PoCL."""

from collections.abc import Mapping
from functools import cache

from retune.bundle.build import build_plan
from retune.bundle.module import Module
from retune.device.runtime import Device, open_device
from retune.graph.graph import Graph
from retune.graph.ops import Array
from retune.graph.passes import Layout, optimise
from retune.search.extract import extract


@cache
def pocl() -> Device:
    """The device, opened once."""
    return open_device("pocl")


def compile_graph(graph: Graph, layout: Layout = "NHWC") -> Module:
    """The optimised graph with the default schedule of every task, loaded."""
    device = pocl()
    network = extract(optimise(graph, layout))
    plan = build_plan(network, {}, device.spec, model_key=graph.name, notes={})
    return Module(plan, device)


def run_on_device(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs, by generated kernels."""
    return compile_graph(graph).run(inputs)
