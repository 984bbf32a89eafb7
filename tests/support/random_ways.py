"""Ways to compile a network for PoCL: as each device, with images in each layout, or by a plan.

Read `compiled`.
"""

import numpy as np

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.runtime.module import Module
from retune.core.layouts import LayoutAssignment
from retune.core.target import DeviceSpec
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import Layout, optimise
from retune.schedule.space import Candidate
from retune.search.extract import Network, extract
from retune.search.layout.assignment import uniform_layout, with_layouts
from retune.search.layout.choices import LayoutChoices, Measured, choices_of
from retune.search.layout.problem import Cost, LayoutProblem
from retune.search.layout.trials import assigned_to_tasks, blocked_candidates
from tests.external.on_device import loaded, opened

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


def compiled(
    graph: Graph, device: str, layout: str, seed: int = 0, *, for_blocks: bool = False
) -> Module:
    """The graph by default schedules, or `for_blocks` by such where there are, its images lying so.

    `seed` is for what plans cost.
    """
    found = opened(device)
    order: Layout = "NCHW" if layout == "NCHW" else "NHWC"
    network = extract(optimise(graph, order))
    choice = _choice(network, found.spec, layout, seed)
    laid = network if choice is None else with_layouts(network, choice)
    chosen = _for_blocks(network, choice, found.spec) if choice and for_blocks else {}
    plan = build_plan(laid, chosen, found.spec, model_key=graph.name, notes={})
    verify_plan(plan)
    return loaded(plan, found)


def _for_blocks(
    network: Network, choice: LayoutAssignment, spec: DeviceSpec
) -> dict[str, Candidate]:
    """A schedule that is for images in blocks, for each task that has one and images lying so."""
    found: dict[str, Candidate] = {}
    for key, counts in assigned_to_tasks(network, choice, spec).items():
        task = network.tasks[key]
        for ends in counts if task.tunable else ():
            for one in blocked_candidates(task, ends, spec, 1):
                found[key] = one
    return found


def _choice(network: Network, spec: DeviceSpec, layout: str, seed: int) -> LayoutAssignment | None:
    if layout in ("NHWC", "NCHW"):
        return None
    if layout != PLAN:
        return uniform_layout(network, "NCHW" if layout == "planes" else layout)
    choices = choices_of(network, spec)
    return LayoutProblem.of(choices, random_cost(choices, seed)).solved()[0]


def random_cost(choices: LayoutChoices, seed: int) -> Cost:
    """The same at each question; of all copies, and of kernels in layouts that they may have."""

    def cost(measured: Measured) -> float | None:
        us = float(np.random.default_rng([seed, *map(ord, repr(measured))]).integers(1, 50))
        if measured in choices.copies:
            return us / 2
        return us if measured[1] in choices.of_tasks[measured[0]] else None

    return cost
