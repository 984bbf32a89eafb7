"""Those to blame are found, no more of them than needed, by few trials."""

from collections.abc import Callable
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.pipeline.bisection import bisect


class Network:
    """Fails where all of some combination of keys take part."""

    def __init__(self, combinations: list[set[str]]) -> None:
        self.combinations = combinations
        self.trials = 0

    def fails(self, keys: frozenset[str]) -> bool:
        return any(combination <= keys for combination in self.combinations)

    def passes(self, keys: frozenset[str]) -> bool:
        self.trials += 1
        return not self.fails(keys)


def names(count: int) -> list[str]:
    return [f"k{i}" for i in range(count)]


@st.composite
def culprits(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    keys = names(draw(st.integers(1, 40)))
    return keys, draw(st.sets(st.sampled_from(keys), min_size=1, max_size=5))


@given(culprits())
def test_exactly_the_culprits_are_found(case: tuple[list[str], set[str]]):
    keys, offending = case
    network = Network([{key} for key in offending])
    found = bisect(keys, network.passes)
    assert set(found) == offending and len(found) == len(offending)
    assert network.trials <= 1 + len(offending) * (1 + ceil(log2(len(keys))))


@st.composite
def conspiracies(draw: st.DrawFn) -> tuple[list[str], list[set[str]]]:
    keys = names(draw(st.integers(1, 12)))
    together = st.sets(st.sampled_from(keys), min_size=1, max_size=3)
    return keys, draw(st.lists(together, min_size=1, max_size=5))


@given(conspiracies())
def test_of_those_that_fail_together_no_more_are_found_than_needed(
    case: tuple[list[str], list[set[str]]],
):
    keys, combinations = case
    network = Network(combinations)
    found = bisect(keys, network.passes)
    left = frozenset(keys) - set(found)
    assert found and not network.fails(left)
    assert all(network.fails(left | {key}) for key in found)
    assert network.trials <= 1 + len(found) * (1 + ceil(log2(len(keys))))


def test_where_nothing_passes_none_offends():
    network = Network([set()])
    assert bisect(names(9), network.passes) == ()
    assert network.trials == 1


@pytest.mark.parametrize(("offending", "trials"), [("k0", 8), ("k40", 8), ("k63", 7)])
def test_one_of_64_takes_eight_trials(offending: str, trials: int):
    """One without any, six of halving, and one of the rest, if there is a rest."""
    network = Network([{offending}])
    assert bisect(names(64), network.passes) == (offending,)
    assert network.trials == trials


def test_no_set_is_tried_twice():
    seen: list[frozenset[str]] = []

    def noted(passes: Callable[[frozenset[str]], bool]) -> Callable[[frozenset[str]], bool]:
        return lambda keys: seen.append(keys) or passes(keys)

    bisect(names(30), noted(Network([{"k3"}, {"k17"}, {"k29"}]).passes))
    assert len(set(seen)) == len(seen)
