"""What further search is expected to save: by what was measured, noise and a prior."""

import numpy as np
import pytest

from retune.search.defaults import LEAST_GAIN
from retune.search.expectation import (
    NOISE,
    TYPICAL_GAIN,
    Outlook,
    expected_share,
    further_gain,
    prior_gain,
)


def exact_gain(costs: np.ndarray, prior: float = TYPICAL_GAIN, default: int | None = None) -> float:
    """What is expected where all repeats of a measurement took the same time."""
    return further_gain(costs, np.zeros(len(costs)), prior, default)


def test_without_measurements_it_is_what_was_expected_before():
    assert exact_gain(np.zeros(0), 0.3) == 0.3
    assert exact_gain(np.full(5, np.nan)) == TYPICAL_GAIN


def test_a_model_says_what_to_expect_as_far_as_it_is_trusted():
    scores = np.array([0.6, 0.2, 0.8])
    assert prior_gain(scores, 0.0) == prior_gain(np.zeros(0), 0.9) == TYPICAL_GAIN
    assert prior_gain(scores, 1.0) == pytest.approx(0.25)
    assert prior_gain(scores, 0.5) == pytest.approx((0.25 + TYPICAL_GAIN) / 2)
    assert prior_gain(scores[::-1], 1.0) == 0.0


def test_it_is_what_the_second_half_of_the_trials_saved_over_all_orders():
    """By a simulation of the definition: random halves of the trials, and all of them."""
    rng = np.random.default_rng(0)
    costs = np.exp(rng.normal(0.0, 0.5, 64))
    halves = [rng.permutation(costs)[:32].min() for _ in range(4000)]
    saved = 1.0 - costs.min() / np.mean(halves)
    assert exact_gain(costs, 0.0) == pytest.approx(saved, abs=NOISE + 0.01)


def test_measurements_outweigh_the_prior_and_differences_within_noise_are_none():
    alike = 100.0 * (1.0 + NOISE * np.linspace(0.0, 1.0, 24))
    assert exact_gain(alike, 0.0) == pytest.approx(0.0)
    assert exact_gain(alike) < LEAST_GAIN < exact_gain(alike[:8])


def test_what_lies_within_the_error_of_repeats_is_not_a_gain():
    """On a busy machine, some of equal candidates seem faster: search has gained nothing yet."""
    rng = np.random.default_rng(0)
    costs, errors = 100.0 * np.exp(rng.normal(0.0, 0.15, 24)), np.full(24, 0.15)
    assert further_gain(costs, errors) < LEAST_GAIN < exact_gain(costs)
    lucky = np.append(np.full(23, 100.0), 40.0)
    assert further_gain(lucky, errors, 0.0) > LEAST_GAIN


def test_an_error_that_is_not_known_is_a_typical_one():
    costs = np.array([80.0, 100.0, 101.0, 102.0])
    errors = np.array([np.nan, 0.05, 0.05, 0.05])
    assert further_gain(costs, errors) == further_gain(costs, np.full(4, 0.05)) < exact_gain(costs)
    assert further_gain(costs, np.full(4, np.nan)) == exact_gain(costs)


def test_candidates_that_are_slower_than_the_default_leave_little_to_expect():
    """The default schedule is known from the start: a search without it is nobody's."""
    costs = np.array([100.0, 300.0, 400.0, 900.0])
    assert exact_gain(costs, 0.0, default=0) == 0.0
    lucky = np.array([120.0, 100.0, 300.0, 400.0, 900.0])
    assert exact_gain(lucky, 0.0, default=0) < 0.1 < exact_gain(lucky, 0.0)


def test_a_lucky_candidate_leaves_more_to_expect():
    usual = np.full(24, 100.0)
    assert exact_gain(np.append(usual, 60.0)) > 10 * exact_gain(np.append(usual, 99.5))


def test_the_network_is_the_sum_of_its_tasks_by_their_time():
    heavy, light = Outlook(time=90.0, gain=0.1), Outlook(time=10.0, gain=0.5)
    assert expected_share([heavy, light]) == pytest.approx(0.14)
    assert expected_share([heavy, Outlook(time=None, gain=0.3)]) == pytest.approx(0.2)
    assert expected_share([Outlook(time=None, gain=0.3)]) == pytest.approx(0.3)
    assert expected_share([]) == 0.0
