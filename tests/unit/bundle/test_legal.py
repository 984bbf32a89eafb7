"""Samples of integers are such that the oracle takes them, or the user is asked for some."""

from collections.abc import Mapping

import numpy as np
import pytest

from retune.bundle.runtime.module import random_inputs
from retune.bundle.verify.legal import legal_ranges
from retune.core.dtypes import BOOL, INT32, TensorType
from retune.core.errors import InputError
from retune.graph.graph import GraphBuilder
from retune.graph.passes.indices import least_values

Arrays = Mapping[str, np.ndarray]
TYPES = {"x": TensorType((5, 3, 4)), "n": TensorType((3,), INT32)}


def oracle(low: int, high: int):
    """A program that refuses other integers."""

    def run(inputs: Arrays) -> Arrays:
        if not low <= inputs["n"].min() <= inputs["n"].max() <= high:
            raise InputError(f"expected integers from {low} to {high}")
        return {}

    return run


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0, 99, None),
        (1, 99, (1, 15)),
        (0, 5, (1, 5)),
        (1, 4, (1, 4)),
        (1, 2, (1, 1)),
        (0, 0, (0, 0)),
    ],
)
def test_ranges_are_narrowed_until_the_oracle_takes_them(
    low: int, high: int, found: tuple[int, int] | None
):
    ranges = legal_ranges(oracle(low, high), TYPES, {}, {})
    assert ranges == ({} if found is None else {"n": found})
    counts = {name: most + 1 for name, (_, most) in ranges.items()}
    least = {name: one for name, (one, _) in ranges.items()}
    values = [random_inputs(TYPES, seed, counts, least)["n"] for seed in range(20)]
    assert low <= np.min(values) and np.max(values) <= high


def test_where_no_range_is_taken_samples_are_asked_for():
    with pytest.raises(InputError, match=r"^n: .* from 100 to 200\); give samples with --samples"):
        legal_ranges(oracle(100, 200), TYPES, {}, {})


def test_what_the_graph_limits_is_not_tried():
    def never(_: Arrays) -> Arrays:
        raise AssertionError("asked")

    assert legal_ranges(never, TYPES, {"n": 7}, {}) == {}
    assert legal_ranges(never, {"x": TYPES["x"], "b": TensorType((2,), BOOL)}, {}, {}) == {}


def test_divisors_are_not_zero():
    build = GraphBuilder("net")
    for name in "abc":
        build.input(name, TensorType((2, 3), INT32))
    turned = build.add("transpose", ["b"], {"perm": (1, 0)})
    across = build.add("transpose", ["a"], {"perm": (1, 0)})
    quotient = build.add("divide", [across, turned])
    graph = build.finish([build.add("mod", ["a", "c"]), quotient])
    assert least_values(graph) == {"b": 1, "c": 1}
    types = {name: graph.types[name] for name in graph.inputs}
    for seed in range(10):
        feeds = random_inputs(types, seed, {}, least_values(graph))
        assert feeds["b"].min() > 0 and feeds["c"].min() > 0
