"""Rank correlation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.search.model.ranks import rank_correlation

_VALUES = st.lists(st.integers(-50, 50), min_size=2, max_size=12)


@given(_VALUES)
def test_only_the_order_counts(values: list[int]):
    a = np.array(values, float)
    expected = 1.0 if np.ptp(a) else 0.0
    assert rank_correlation(a, a**3) == pytest.approx(expected)
    assert rank_correlation(a, -np.exp(a / 50)) == pytest.approx(-expected)


def test_equal_values_share_their_mean_rank():
    """Against the textbook's formula by hand: ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3."""
    found = rank_correlation(np.array([1.0, 2.0, 2.0, 9.0]), np.array([0.0, 1.0, 2.0, 3.0]))
    assert found == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))
