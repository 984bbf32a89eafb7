"""Tables of costs over random graphs and over graphs like those of networks."""

from itertools import combinations, pairwise, product

import numpy as np

from retune.search.layout.solver import CostTable


def random_table(seed: int, most: int = 7, impossible: float = 0.1) -> CostTable:
    """A few variables of one to four options; some costs are infinite, some parts unconnected."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(rng.integers(1, most + 1))]
    table = CostTable()
    sizes = {name: int(rng.integers(1, 5)) for name in names}
    for name, size in sizes.items():
        table.variable(name, [float(rng.integers(0, 20)) for _ in range(size)])
    for a, b in combinations(names, 2):
        if rng.random() < 0.5:
            costs = rng.integers(0, 20, (sizes[a], sizes[b])).astype(np.float64)
            costs[rng.random(costs.shape) < impossible] = np.inf
            table.add(*((costs, a, b) if rng.random() < 0.5 else (costs.T, b, a)))
    return table


def network_table(seed: int, edges: list[tuple[int, int]], options: int = 4) -> CostTable:
    """Variables with costs of their own, and costs wherever neighbours choose differently."""
    rng = np.random.default_rng(seed)
    table = CostTable()
    for number in range(1 + max(max(edge) for edge in edges)):
        table.variable(str(number), [rng.uniform(1, 3) for _ in range(options)])
    for a, b in edges:
        costs = rng.uniform(0.1, 1.0, (options, options))
        np.fill_diagonal(costs, 0.0)
        table.add(costs, str(a), str(b))
    return table


def dense_edges(blocks: int, layers: int) -> list[tuple[int, int]]:
    """Blocks whose layers all read the block's running value, which each of them renews."""
    edges: list[tuple[int, int]] = []
    running, made = 0, 1
    for _ in range(blocks * layers):
        first, second, joined = made, made + 1, made + 2
        edges += [(running, first), (first, second), (second, joined), (running, joined)]
        running, made = joined, made + 3
    return edges


def detector_edges(trunk: int, heads: int) -> list[tuple[int, int]]:
    """A trunk, from whose last layers two chains each go to one common end."""
    edges = list(pairwise(range(trunk)))
    end, made = trunk, trunk + 1
    for head in range(heads):
        for _ in range(2):
            edges += [(trunk - 1 - head, made), (made, made + 1), (made + 1, end)]
            made += 2
    return edges


def by_brute_force(table: CostTable) -> float:
    """The least total of all choices."""
    return min(
        table.total(dict(zip(table.own, chosen, strict=True)))
        for chosen in product(*map(range, table.sizes))
    )
