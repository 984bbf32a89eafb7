"""A comparison finds the fastest finalist of every task, all tasks at once or one by one."""

import numpy as np
import pytest

from retune.search.comparison import ROUNDS, FinalistComparison

TRUTH = ([1.0, 0.9, 1.1], [5.0], [2.0, 2.5], [3.0, 3.3, 2.8, 2.9])
"""Seconds of each finalist of each task."""


def iterations(choices: np.ndarray, noise: float, rng: np.random.Generator) -> np.ndarray:
    """What each task takes; whatever disturbs a machine only makes it longer."""
    true = np.array([[t[c] for t, c in zip(TRUTH, row, strict=True)] for row in choices])
    return true * (1.0 + noise * rng.exponential(1.0, true.shape))


def finished(
    *, resolved: bool, noise: float = 0.0, seed: int = 0, most: int = 1000
) -> tuple[FinalistComparison, int]:
    """The comparison, run until it is decided, and the iterations that it took."""
    rng = np.random.default_rng(seed)
    comparison = FinalistComparison([len(t) for t in TRUTH], rng)
    count = 0
    while not comparison.decided and count < most:
        for choices in comparison.round(resolved=resolved):
            seconds = iterations(choices, noise, rng)
            seen = seconds if resolved else seconds.sum(axis=1, keepdims=True)
            comparison.observe(choices, seen, resolved=resolved)
            count += len(choices)
    return comparison, count


@pytest.mark.parametrize("resolved", [True, False])
def test_the_fastest_of_each_task_wins(resolved: bool):
    comparison, _ = finished(resolved=resolved)
    assert comparison.leaders.tolist() == [1, 0, 0, 2]
    assert comparison.decided


@pytest.mark.parametrize("resolved", [True, False])
def test_noise_that_delays_seldom_changes_the_winner(resolved: bool):
    wins = [finished(resolved=resolved, noise=0.01, seed=s)[0].leaders.tolist() for s in range(20)]
    assert sum(w == [1, 0, 0, 2] for w in wins) >= 18


def test_who_is_surely_slower_leaves_and_the_comparison_is_short():
    _, together = finished(resolved=True)
    assert together <= 6 * 4
    _, alone = finished(resolved=False)
    assert alone <= 6 * sum(map(len, TRUTH))


def test_equals_are_not_comparisond_for_ever():
    comparison = FinalistComparison([2], np.random.default_rng(0))
    count = 0
    while not comparison.decided:
        (choices,) = comparison.round(resolved=True)
        comparison.observe(choices, np.ones((2, 1)), resolved=True)
        count += 1
    assert count == ROUNDS


def test_each_round_gives_every_finalist_a_turn():
    comparison = FinalistComparison([3, 1, 2], np.random.default_rng(0))
    (choices,) = comparison.round(resolved=True)
    assert choices.shape == (3, 3)
    assert sorted(choices[:, 0].tolist()) == [0, 1, 2]
    assert set(choices[:, 2].tolist()) == {0, 1}


def test_while_one_task_varies_the_others_have_their_leaders():
    comparison = FinalistComparison([2, 2], np.random.default_rng(0))
    seen: list[list[int]] = []
    for choices in comparison.round(resolved=False):
        seen += choices.tolist()
        best = np.where(choices[:, :1] == 1, 1.0, 2.0)
        comparison.observe(choices, best, resolved=False)
    assert sorted(seen[:2]) == [[0, 0], [1, 0]]
    assert sorted(seen[2:]) == [[1, 0], [1, 1]]


def test_a_finalist_that_failed_is_out_and_the_default_never_is():
    comparison = FinalistComparison([3], np.random.default_rng(0))
    comparison.eliminate(0, 1)
    comparison.eliminate(0, 0)
    (choices,) = comparison.round(resolved=True)
    assert sorted(choices[:, 0].tolist()) == [0, 2]


def test_before_any_iteration_the_default_leads():
    comparison = FinalistComparison([3, 2], np.random.default_rng(0))
    assert comparison.leaders.tolist() == [0, 0]
    assert not comparison.decided


def test_the_default_is_part_of_every_round_as_what_all_are_compared_with():
    comparison = FinalistComparison([3, 2], np.random.default_rng(0))
    for _ in range(8):
        (choices,) = comparison.round(resolved=True)
        comparison.observe(choices, 2.0 - 0.5 * choices, resolved=True)
    assert comparison.leaders.tolist() == [2, 1] and comparison.decided
    counts = [[len(samples) for samples in task] for task in comparison.samples]
    assert counts[0][0] >= 8 and counts[1][0] >= 8, "it could not win after the first four"


def test_a_default_that_was_disturbed_at_first_may_win_later():
    comparison = FinalistComparison([2], np.random.default_rng(0))
    for number in range(ROUNDS):
        (choices,) = comparison.round(resolved=True)
        first = 1.5 if number < 4 else 0.9
        comparison.observe(choices, np.where(choices == 0, first, 1.0), resolved=True)
    assert comparison.leaders.tolist() == [0]


@pytest.mark.parametrize("resolved", [True, False])
def test_what_the_leaders_save_is_the_sum_over_tasks(resolved: bool):
    comparison, _ = finished(resolved=resolved)
    assert comparison.saved == pytest.approx((0.1 + 0.2, 0.0))
    assert FinalistComparison([3, 2], np.random.default_rng(0)).saved == (0.0, 0.0)


def savings(gain: float, seed: int) -> tuple[float, float, float, float]:
    """Of 12 tasks of a second, whose last finalist of five saves `gain`: what the leaders save,
    what is expected of them and its error, and what their own samples promise."""
    rng = np.random.default_rng(seed)
    comparison = FinalistComparison([5] * 12, rng)
    for _ in range(ROUNDS):
        (choices,) = comparison.round(resolved=True)
        true = np.where(choices == 4, 1.0 - gain, 1.0)
        noise = 0.03 * rng.exponential(1.0, true.shape)
        comparison.observe(choices, true * (1.0 + noise), resolved=True)
    leaders, every = comparison.leaders, [comparison.standing(task) for task in range(12)]
    promised = sum(s[0] - s[leader] for s, leader in zip(every, leaders, strict=True))
    return gain * float(np.sum(leaders == 4)), *comparison.saved, float(promised)


@pytest.mark.parametrize("gain", [0.0, 0.005, 0.03])
def test_what_is_expected_to_be_saved_is_not_what_was_lucky(gain: float):
    """Over many comparisons it is right, where the leaders' own samples promise too much."""
    true, expected, errors, promised = np.array([savings(gain, seed) for seed in range(40)]).T
    assert expected.mean() == pytest.approx(true.mean(), abs=0.012)
    assert gain > 0.01 or promised.mean() > true.mean() + 0.012, "where finalists are alike"
    assert np.mean(expected + 1.96 * errors >= true) > 0.85
