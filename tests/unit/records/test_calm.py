"""What counts as a calm moment, by the reference times of a run."""

import numpy as np
import pytest

from retune.records.calm import calm_limit


def test_the_limit_is_that_of_most_moments_and_not_of_the_luckiest_or_slowest():
    usual = np.full(90, 100.0)
    assert calm_limit(np.concatenate([[50.0] * 5, usual, [300.0] * 5])) == pytest.approx(115.0)


def test_what_is_not_known_limits_nothing():
    assert calm_limit(np.array([])) == np.inf
    assert calm_limit(np.array([np.nan])) == np.inf
    assert calm_limit(np.array([np.nan, 100.0])) == pytest.approx(115.0)
