"""The solver against brute force: by elimination, and by an integer program."""

from itertools import pairwise
from math import inf, isfinite

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.search.layout import solver
from retune.search.layout.solver import CostTable, elimination_order, largest_table, solve
from tests.support.graphs import (
    by_brute_force,
    dense_edges,
    detector_edges,
    network_table,
    random_table,
)

PROGRAM = 0
"""Elements that no table of elimination keeps to: an integer program is solved."""


@pytest.mark.parametrize("seed", range(200))
def test_elimination_finds_the_least_total(seed: int):
    table = random_table(seed)
    least = by_brute_force(table)
    if not isfinite(least):
        with pytest.raises(InputError, match="there is none"):
            solve(table)
        return
    found = solve(table)
    assert found.optimal
    assert table.total(found.choice) == found.total == least


@pytest.mark.parametrize("seed", range(60))
def test_an_integer_program_finds_the_least_total(seed: int):
    table = random_table(seed)
    least = by_brute_force(table)
    if not isfinite(least):
        with pytest.raises(InputError, match="there is none"):
            solve(table, most_elements=PROGRAM)
        return
    found = solve(table, most_elements=PROGRAM)
    assert found.optimal
    assert table.total(found.choice) == found.total == least


@pytest.mark.parametrize(
    "edges",
    [dense_edges(4, 24), detector_edges(60, 6), list(pairwise(range(120)))],
    ids=["dense blocks", "detector", "chain"],
)
def test_both_ways_agree_on_graphs_of_networks(edges: list[tuple[int, int]]):
    table = network_table(0, edges)
    assert largest_table(table, elimination_order(table)) <= 4**4
    found, other = solve(table), solve(table, most_elements=PROGRAM)
    assert found.optimal and other.optimal
    assert found.total == pytest.approx(other.total)


@pytest.mark.parametrize("seed", range(20))
def test_both_ways_agree_on_larger_random_graphs(seed: int):
    table = random_table(1000 + seed, most=12, impossible=0.05)
    try:
        found = solve(table)
    except InputError:
        with pytest.raises(InputError, match="there is none"):
            solve(table, most_elements=PROGRAM)
        return
    assert found.total == pytest.approx(solve(table, most_elements=PROGRAM).total)


def test_where_tables_would_be_too_large_the_optimum_is_proven_all_the_same():
    edges = [(a, b) for a in range(14) for b in range(a)]
    table = network_table(3, edges)
    assert largest_table(table, elimination_order(table)) == 4**14 > solver.MOST_ELEMENTS
    found = solve(table)
    assert found.optimal
    small = network_table(3, edges[:36])
    assert largest_table(small, elimination_order(small)) == 4**9 > 1000
    assert solve(small, most_elements=1000).total == pytest.approx(solve(small).total)


def test_where_time_runs_out_the_error_says_so(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(solver, "TIME_LIMIT_S", 0.0)
    table = network_table(3, [(a, b) for a in range(9) for b in range(a)])
    with pytest.raises(InputError, match="side by side; none was found in 0 s"):
        solve(table, most_elements=PROGRAM)


def test_of_equal_choices_the_one_of_first_options_is_taken():
    table = CostTable()
    for name in "abc":
        table.variable(name, [1.0, 1.0])
    table.add(np.zeros((2, 2)), "a", "b")
    assert solve(table).choice == {"a": 0, "b": 0, "c": 0}


def test_what_neighbours_cost_counts():
    table = CostTable()
    table.variable("a", [1.0, 2.0])
    table.variable("b", [2.0, 1.0])
    table.add(np.array([[0.0, 5.0], [5.0, 0.0]]), "b", "a")
    assert table.total({"a": 0, "b": 1}) == 7.0
    assert solve(table).total == 3.0


@pytest.mark.parametrize("most_elements", [PROGRAM, solver.MOST_ELEMENTS])
def test_nothing_possible_is_said(most_elements: int):
    table = CostTable()
    table.variable("a", [inf])
    with pytest.raises(InputError, match="options that can stand side by side; there is none"):
        solve(table, most_elements=most_elements)


def test_a_table_without_variables_costs_nothing():
    assert solve(CostTable()).total == 0.0


def test_costs_of_a_pair_add_up_from_either_side():
    table = CostTable()
    table.variable("a", [0.0, 0.0])
    table.variable("b", [0.0])
    table.add([[1.0], [2.0]], "a", "b")
    table.add([[10.0, 20.0]], "b", "a")
    table.add([100.0, 200.0], "a")
    assert table.pairs["a", "b"].tolist() == [[11.0], [22.0]]
    assert table.own["a"].tolist() == [100.0, 200.0]


def test_what_is_not_a_cost_is_refused():
    table = CostTable()
    table.variable("a", [0.0])
    with pytest.raises(InputError, match="one variable 'a'; got a second"):
        table.variable("a", [0.0])
    with pytest.raises(InputError, match="an option; got none"):
        table.variable("b", [])
    with pytest.raises(InputError, match=r"numbers or infinity; got .nan"):
        table.variable("c", [float("nan")])
    table.variable("d", [0.0])
    with pytest.raises(InputError, match=r"shape \(1, 1\); got \(2,\)"):
        table.add(np.zeros(2), "a", "d")
    for names in (("a", "z"), ("a", "a"), ("a", "d", "a")):
        with pytest.raises(InputError, match="two variables of it"):
            table.add(np.zeros((1, 1)), *names)
