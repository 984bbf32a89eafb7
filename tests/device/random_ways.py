"""Ways to compile a network for PoCL: as each device, with images in each layout, or by a plan.

Read `compiled`, and `exact_part` for networks in integers.
"""

from dataclasses import replace
from functools import cache

import numpy as np

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.module import Module
from retune.core.target import DeviceSpec
from retune.device.opening import open_device
from retune.device.runtime import Device
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, without_dead
from retune.graph.ops import Array
from retune.graph.passes import Layout, optimise
from retune.layout.solve import solve
from retune.search.extract import Network, extract
from retune.search.laying import LayoutChoice, laid_out, uniform
from retune.search.layout_options import Choices, choices_of
from retune.search.layout_problem import LayoutCosts, layout_problem

CPU, SHORT = "pocl", "pocl?vector_bits=128"
"""The machine, and as if its vectors had four floats: so do its blocks of channels then."""
GPU, BARE_GPU = "profile:intel-gen12@pocl", "profile:mali-g76@pocl"
"""With local memory, and where that is a part of global memory."""
DEVICES = (CPU, SHORT, GPU, BARE_GPU)
PLAN = "plan"
"""The cheapest layouts by random costs: images in several layouts, and copies of them."""


def ways() -> list[tuple[str, str]]:
    """Devices with layouts that mean something there."""
    rows = [(device, order) for device in DEVICES for order in ("NHWC", "NCHW")]
    blocks = [(CPU, "NCHW16c"), (SHORT, "NCHW4c"), (GPU, "NCHW4c"), (BARE_GPU, "planes")]
    return [*rows, *blocks, *((device, PLAN) for device in DEVICES)]


@cache
def opened(device: str) -> Device:
    """The device, opened once."""
    return open_device(device)


def compiled(graph: Graph, device: str, layout: str, seed: int = 0) -> Module:
    """The graph with default schedules, its images lying so; `seed` is for what plans cost."""
    found = opened(device)
    order: Layout = "NCHW" if layout == "NCHW" else "NHWC"
    network = extract(optimise(graph, order))
    choice = _choice(network, found.spec, layout, seed)
    laid = network if choice is None else laid_out(network, choice)
    plan = build_plan(laid, {}, found.spec, model_key=graph.name, notes={})
    verify_plan(plan)
    return Module(plan, found)


def _choice(network: Network, spec: DeviceSpec, layout: str, seed: int) -> LayoutChoice | None:
    if layout in ("NHWC", "NCHW"):
        return None
    if layout != PLAN:
        return uniform(network, "NCHW" if layout == "planes" else layout)
    choices = choices_of(network, spec)
    problem = layout_problem(choices, random_costs(choices, seed))
    return problem.choice(solve(problem.table).choice)


def random_costs(choices: Choices, seed: int) -> LayoutCosts:
    """The same at each question; of all copies, and of kernels with ends that they may have."""
    possible = choices.ends

    def of(*what: object) -> float:
        return float(np.random.default_rng([seed, *map(ord, repr(what))]).integers(1, 50))

    return LayoutCosts(
        kernel=lambda key, ends: of(key, ends) if ends in possible[key] else None,
        copy=lambda kind, ends: of(str(kind), ends) / 2,
    )


def exact_part(graph: Graph, seed: int) -> tuple[Graph, dict[str, Array]]:
    """A quantized network that begins at codes, and codes for it: those of random inputs.

    Where floats are rounded to codes, a last bit may decide which. So these codes are inputs, and
    what is rounded is an output: all integers have to be the same then, and floats nearly.
    """
    inputs = random_inputs(graph, seed)
    codes = [n for n in graph.nodes if n.op == "cast" and n.attrs["to"] in ("int8", "uint8")]
    kinds = {graph.types[n.inputs[0]].dtype for n in codes}
    assert kinds <= {"float32"}, "nothing else is cast to bytes"
    coded = {node.outputs[0] for node in codes}
    quotients = [n.inputs[0] for n in graph.nodes if n.op == "quotient"]
    rounded = [value for value in quotients if graph.types[value].elements > 1]
    made = {v for n in graph.nodes for v in n.outputs} - coded
    whole = replace(graph, outputs=(*coded,)) if coded else graph
    inputs |= run_graph(whole, inputs) if coded else {}
    ends = dict.fromkeys(v for v in (*graph.outputs, *rounded) if v in made)
    begun = replace(
        graph,
        inputs=(*graph.inputs, *sorted(coded)),
        outputs=tuple(ends),
        nodes=tuple(n for n in graph.nodes if n not in codes),
    )
    return without_dead(begun), inputs
