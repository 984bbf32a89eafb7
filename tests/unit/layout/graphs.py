"""Tables of costs over random graphs and over graphs like those of networks."""

from itertools import combinations, pairwise, product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from retune.search.layout.solver.table import CostTable, TableBuilder


def random_table(seed: int, most: int = 7, impossible: float = 0.1) -> CostTable:
    """A few variables of one to four options; some costs are infinite, some parts unconnected."""
    rng = np.random.default_rng(seed)
    names = [f"v{i}" for i in range(rng.integers(1, most + 1))]
    builder = TableBuilder()
    sizes = {name: int(rng.integers(1, 5)) for name in names}
    for name, size in sizes.items():
        builder.variable(name, {f"o{i}": float(rng.integers(0, 20)) for i in range(size)})
    for a, b in combinations(names, 2):
        if rng.random() < 0.5:
            costs = rng.integers(0, 20, (sizes[a], sizes[b])).astype(np.float64)
            costs[rng.random(costs.shape) < impossible] = np.inf
            builder.between(*((a, b, costs) if rng.random() < 0.5 else (b, a, costs.T)))
    return builder.table()


def network_table(seed: int, edges: list[tuple[int, int]], options: int = 4) -> CostTable:
    """Variables with costs of their own, and costs wherever neighbours choose differently."""
    rng = np.random.default_rng(seed)
    builder = TableBuilder()
    for number in range(1 + max(max(edge) for edge in edges)):
        builder.variable(str(number), {f"o{i}": rng.uniform(1, 3) for i in range(options)})
    for a, b in edges:
        costs = rng.uniform(0.1, 1.0, (options, options))
        np.fill_diagonal(costs, 0.0)
        builder.between(str(a), str(b), costs)
    return builder.table()


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
    return min(table.total(choice) for choice in product(*map(range, table.sizes)))


def by_integer_program(table: CostTable) -> float:
    """The least total, as HiGHS proves it."""
    starts = np.cumsum([0, *table.sizes])
    costs, entries, bounds = [*np.concatenate(table.own)], [], []
    for variable, size in enumerate(table.sizes):
        entries += [(len(bounds), starts[variable] + o, 1.0) for o in range(size)]
        bounds.append(1.0)
    for (a, b), pair in table.pairs.items():
        first = len(costs)
        costs += pair.ravel().tolist()
        number = np.arange(pair.size).reshape(pair.shape) + first
        for variable, rows in ((a, number), (b, number.T)):
            for option, row in enumerate(rows):
                entries += [(len(bounds), column, 1.0) for column in row]
                entries.append((len(bounds), starts[variable] + option, -1.0))
                bounds.append(0.0)
    rows, columns, values = zip(*entries, strict=True)
    matrix = coo_array((values, (rows, columns)), shape=(len(bounds), len(costs)))
    found = milp(
        np.where(np.isfinite(costs), costs, 0.0),
        integrality=np.arange(len(costs)) < starts[-1],
        bounds=Bounds(0.0, np.isfinite(costs).astype(np.float64)),  # pyright: ignore[reportArgumentType]  # arrays, too
        constraints=LinearConstraint(matrix.tocsr(), bounds, bounds),  # pyright: ignore[reportArgumentType]
        options={"mip_rel_gap": 0.0},
    )
    return float(found.fun) if found.success else float("inf")
