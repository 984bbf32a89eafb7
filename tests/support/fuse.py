"""What tests of fuse share with others."""

import numpy as np

from retune.graph.evaluate import run_graph
from retune.graph.fuse import group_graph, partition
from retune.graph.graph import Graph


def run_groups(
    graph: Graph, inputs: dict[str, np.ndarray], *, joined: bool = False
) -> dict[str, np.ndarray]:
    """The outputs, computed group by group in the partition's order."""
    values = {**graph.constants, **inputs}
    for group in partition(graph, joined=joined):
        part = group_graph(graph, group)
        values |= run_graph(part, {name: values[name] for name in part.inputs})
    return {name: values[name] for name in graph.outputs}
