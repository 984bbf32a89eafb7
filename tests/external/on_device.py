"""A graph through everything that a user's network goes through, and run on PoCL."""

from collections.abc import Callable, Mapping
from dataclasses import replace
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
from tests.support.sampling import drawn

_OPTIMISED = 4
"""PoCL optimises one plan of so many."""


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
    """The plan on that device. PoCL optimises kernels for CPUs of one plan in four.

    What is tested is what the text means; each bundle of a user is compared with the model again,
    and optimising takes longer than all else that these tests do. It does not optimise kernels for
    GPUs: that takes several times as long, and it is not the compiler that they are for.
    """
    texts = [kernel.text for kernel in plan.kernels]
    optimised = device.spec.device_class != "gpu" and drawn(texts, _OPTIMISED) == 0
    return Module(plan if optimised else unoptimised(plan), device)


def unoptimised(plan: NetworkPlan) -> NetworkPlan:
    """The plan with kernels that PoCL does not optimise."""
    return replace(plan, options=(*plan.options, "-cl-opt-disable"))


def run_on_device(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The graph's outputs, by generated kernels."""
    return compile_graph(graph).run(inputs)
