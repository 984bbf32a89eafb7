"""Parts of a network that some sample has reached; others were compared with nothing.

Read `Reach` for host steps, which may make no element, and `untaken_branches`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import Predict
from retune.core.dtypes import UNKNOWN
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph, without_dead


class Reach:
    """A module whose runs are watched; calling it runs it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._seen: dict[str, bool] = {}
        """Of each step that ran, whether all its outputs had elements: each variant has its own."""

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """As `Module.run`."""
        if not self._module.plan.hosts:
            return self._module.run(inputs)
        outputs, runs = self._module.observe(inputs)
        for run in runs:
            name = f"{run.step.label} ({run.step.opened.title})"
            made = all(array.size for array in run.outputs)
            self._seen[name] = self._seen.get(name, False) or made
        return outputs

    def unseen(self) -> list[str]:
        """Labels of the steps some of whose outputs had no elements in any run."""
        return [name for name, seen in self._seen.items() if not seen]


class OutputReach:
    """The same of a module on a board, of which nothing but the outputs is seen."""

    def __init__(self, plan: NetworkPlan, run: Predict) -> None:
        self._run = run
        sized = [name for name in plan.outputs if UNKNOWN in plan.buffer(name).shape]
        self._seen = dict.fromkeys(sized, False)

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        outputs = self._run(inputs)
        for name in self._seen:
            self._seen[name] |= bool(outputs[name].size)
        return outputs

    def unseen(self) -> list[str]:
        """The steps that make outputs without elements in any run."""
        return [f"of output {name}" for name, seen in self._seen.items() if not seen]


def untaken_branches(graph: Graph, samples: Iterable[Mapping[str, np.ndarray]]) -> list[str]:
    """Names of choices between two branches that all samples decide in the same way.

    Both branches of an `If` are computed, and its condition, a scalar, chooses between results.
    """
    choices = {
        node.inputs[0]: node.name
        for node in graph.nodes
        if node.op == "where"
        and not graph.types[node.inputs[0]].shape
        and node.inputs[0] not in graph.constants
    }
    if not choices:
        return []
    inputs = [name for name in choices if name in graph.inputs]
    made = tuple(name for name in choices if name not in graph.inputs)
    part = without_dead(replace(graph, outputs=made)) if made else None
    taken: dict[str, set[bool]] = {name: set() for name in choices}
    for feeds in samples:
        found = {name: feeds[name] for name in inputs}
        found |= run_graph(part, feeds) if part is not None else {}
        for name, value in found.items():
            taken[name].add(bool(value))
    return [choices[name] for name, values in taken.items() if len(values) < 2]
