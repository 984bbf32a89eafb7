"""Settings and strategies that the property tests share: repeatable, quick, without a database."""

from collections.abc import Mapping

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from retune.ir.expr import Expr, Var, binary, const, select
from tests.support.dags import Choose


def quick(examples: int) -> settings:
    """So many examples, the same ones in every run."""
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def chooser(data: st.DataObject) -> Choose:
    """A source of small choices that hypothesis can shrink."""
    return lambda count: data.draw(st.integers(0, count - 1))


def seeded(seed: int) -> Choose:
    """A source of small choices from a seed."""
    rng = np.random.default_rng(seed)
    return lambda count: int(rng.integers(0, count))


VARIABLES = tuple(Var(name) for name in ("i", "j", "k"))
RANGES: Mapping[Var, tuple[int, int]] = {
    VARIABLES[0]: (0, 6),
    VARIABLES[1]: (-5, 4),
    VARIABLES[2]: (3, 3),
}
"""Lowest and highest value of each variable of `integers()`."""

_LEAVES = st.one_of(st.sampled_from(VARIABLES), st.integers(-7, 9).map(const))


def _grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    pair = st.tuples(inner, inner)
    divisors = st.sampled_from([-4, -3, -1, 1, 2, 3, 4, 8])
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), pair).map(
            lambda t: binary(t[0], *t[1])  # type: ignore[arg-type]
        ),
        st.tuples(st.sampled_from(["floordiv", "mod"]), inner, divisors).map(
            lambda t: binary(t[0], t[1], t[2])  # type: ignore[arg-type]
        ),
        st.tuples(st.sampled_from(["lt", "le", "eq", "ne"]), pair, pair).map(
            lambda t: select(binary(t[0], *t[1]), *t[2])  # type: ignore[arg-type]
        ),
    )


def integer_expressions() -> st.SearchStrategy[Expr]:
    """Expressions over VARIABLES with every integer operator, negative operands too."""
    return st.recursive(_LEAVES, _grow, max_leaves=10)
