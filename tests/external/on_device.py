"""A graph through everything that a user's network goes through, and run on PoCL."""

from collections.abc import Callable, Mapping
from functools import cache

from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import Layout, optimise
from retune.ops import Array
from retune.schedule.space import Candidate
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.search.extract import Network, extract
from retune.search.task import Task
from tests.support.oracle import seldom_optimised, unoptimised


@cache
def opened(name: str) -> Device:
    """The device of that name, opened once."""
    return open_device(name)


def pocl() -> Device:
    """PoCL."""
    return opened("pocl")


def compile_graph(
    graph: Graph,
    layout: Layout = "NHWC",
    *,
    max_error: float = DEFAULT_MAX_ERROR,
    choose: Callable[[Task], Candidate | None] = lambda task: None,
) -> Module:
    """The optimised graph, loaded: `choose`'s candidates, the default schedule where it is None."""
    return compile_network(extract(optimise(graph, layout), max_error=max_error), choose)


def compile_network(
    network: Network,
    choose: Callable[[Task], Candidate | None] = lambda task: None,
    device: str = "pocl",
) -> Module:
    """The network, loaded: `choose`'s candidates, the default schedule where it is None."""
    there = opened(device)
    wanted = {key: choose(task) for key, task in network.tasks.items()}
    chosen = {key: candidate for key, candidate in wanted.items() if candidate is not None}
    plan = build_plan(network, chosen, there.spec, model_key=network.graph.name, notes={})
    return loaded(plan, there)


def loaded(plan: NetworkPlan, device: Device) -> Module:
    """The plan on that device. PoCL does not optimise kernels that are for GPUs.

    It takes several times as long to compile work-items and barriers if it does, and is not the
    compiler that they are for.
    """
    gpu = device.spec.device_class == "gpu"
    return Module(unoptimised(plan) if gpu else seldom_optimised(plan), device)


def run_on_device(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs, by generated kernels."""
    return compile_graph(graph).run(inputs)
