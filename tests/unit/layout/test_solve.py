"""Solvers against brute force and an integer program."""

from itertools import pairwise
from math import inf, isfinite

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.search.layout.solver.exact import eliminate, elimination_order, largest_table
from retune.search.layout.solver.pbqp import reduce
from retune.search.layout.solver.solve import improved, solve, uniform
from retune.search.layout.solver.table import TableBuilder
from tests.unit.layout.graphs import (
    by_brute_force,
    by_integer_program,
    dense_edges,
    detector_edges,
    network_table,
    random_table,
)


@pytest.mark.parametrize("seed", range(200))
def test_elimination_finds_the_least_total(seed: int):
    table = random_table(seed)
    assert table.total(eliminate(table, elimination_order(table))) == by_brute_force(table)


@pytest.mark.parametrize("seed", range(200))
def test_reductions_claim_no_optimum_that_is_none(seed: int):
    table = random_table(seed)
    least = by_brute_force(table)
    choice, optimal = reduce(table)
    assert table.total(choice) == least if optimal else table.total(choice) >= least


def test_both_outcomes_of_reductions_are_among_the_graphs():
    claims = [reduce(random_table(seed))[1] for seed in range(200)]
    assert any(claims)
    assert not all(claims)


@pytest.mark.parametrize("seed", range(20))
def test_a_chain_is_reduced_without_a_guess(seed: int):
    table = network_table(seed, list(pairwise(range(30))))
    choice, optimal = reduce(table)
    assert optimal
    assert table.total(choice) == pytest.approx(by_integer_program(table))


@pytest.mark.parametrize(
    "edges",
    [dense_edges(4, 24), detector_edges(60, 6), list(pairwise(range(120)))],
    ids=["dense blocks", "detector", "chain"],
)
def test_graphs_of_networks_are_solved_to_the_optimum(edges: list[tuple[int, int]]):
    table = network_table(0, edges)
    exact = solve(table)
    assert (exact.solver, exact.optimal) == ("exact", True)
    assert exact.total == pytest.approx(by_integer_program(table))
    for solver in ("pbqp", "greedy"):
        assert solve(table, solver).total >= exact.total - 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_an_integer_program_agrees_on_larger_random_graphs(seed: int):
    table = random_table(1000 + seed, most=12, impossible=0.05)
    least = by_integer_program(table)
    found = table.total(eliminate(table, elimination_order(table)))
    assert found == pytest.approx(least) if isfinite(least) else found == inf


def test_where_tables_would_be_too_large_the_result_says_that_it_may_not_be_the_best():
    edges = [(a, b) for a in range(9) for b in range(a)]
    table = network_table(3, edges)
    assert largest_table(table, elimination_order(table)) == 4**9
    with pytest.raises(InputError, match="at most 1000 elements; got 262144; choose the solver"):
        solve(table, "exact", most_elements=1000)
    found, exact = solve(table, most_elements=1000), solve(table)
    assert (found.solver, found.optimal) == ("pbqp", False)
    assert exact.total <= found.total <= solve(table, "pbqp").total
    assert improved(table, found.choice) == found.choice


def test_of_equal_choices_the_one_of_first_options_is_taken():
    builder = TableBuilder()
    for name in "abc":
        builder.variable(name, {"rows": 1.0, "blocks": 1.0})
    builder.between("a", "b", np.zeros((2, 2)))
    table = builder.table()
    for solver in ("exact", "pbqp", "greedy"):
        assert solve(table, solver).choice == (0, 0, 0)


def test_greedy_ignores_what_neighbours_cost():
    builder = TableBuilder()
    builder.variable("a", {"rows": 1.0, "blocks": 2.0})
    builder.variable("b", {"rows": 2.0, "blocks": 1.0})
    builder.between("b", "a", np.array([[0.0, 5.0], [5.0, 0.0]]))
    table = builder.table()
    assert table.named(solve(table, "greedy").choice) == {"a": "rows", "b": "blocks"}
    assert solve(table, "greedy").total == 7.0
    assert solve(table).total == 3.0


def test_one_option_everywhere_where_it_exists():
    builder = TableBuilder()
    builder.variable("a", {"rows": 1.0, "blocks": 2.0})
    builder.variable("b", {"rows": 1.0, "planes": 0.5})
    table = builder.table()
    assert table.named(uniform(table, "blocks")) == {"a": "blocks", "b": "planes"}


def test_nothing_possible_is_said():
    builder = TableBuilder()
    builder.variable("a", {"rows": inf})
    with pytest.raises(InputError, match=r"exact solver: .* there is none"):
        solve(builder.table())
    with pytest.raises(InputError, match=r"greedy solver: .* choose the solver exact"):
        solve(builder.table(), "greedy")


def test_a_table_without_variables_costs_nothing():
    assert solve(TableBuilder().table()).total == 0.0


def test_costs_of_a_pair_add_up_from_either_side():
    builder = TableBuilder()
    builder.variable("a", {"x": 0.0, "y": 0.0})
    builder.variable("b", {"x": 0.0})
    builder.between("a", "b", np.array([[1.0], [2.0]]))
    builder.between("b", "a", np.array([[10.0, 20.0]]))
    assert builder.table().pairs[0, 1].tolist() == [[11.0], [22.0]]


def test_what_is_no_cost_is_refused():
    builder = TableBuilder()
    builder.variable("a", {"x": 0.0})
    with pytest.raises(InputError, match="one variable 'a'; got a second"):
        builder.variable("a", {"x": 0.0})
    with pytest.raises(InputError, match="an option at least; got none"):
        builder.variable("b", {})
    with pytest.raises(InputError, match=r"numbers or infinity; got .nan"):
        builder.variable("c", {"x": float("nan")})
    builder.variable("d", {"x": 0.0})
    with pytest.raises(InputError, match=r"shape \(1, 1\); got \(2,\)"):
        builder.between("a", "d", np.zeros(2))
    with pytest.raises(InputError, match="two variables of it"):
        builder.between("a", "z", np.zeros((1, 1)))
