"""Rank correlation of two orders of the same candidates."""

import numpy as np


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's coefficient of two arrays [n]: 1 for the same order, -1 for the opposite one.

    Equal values share the mean of their ranks. 0 where all values of one array are equal: it says
    nothing of an order.
    """
    first, second = _ranks(a), _ranks(b)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Rank of each value, from 0 for the least; equal values share their mean rank."""
    _, number, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[number]
