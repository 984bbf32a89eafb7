"""Calm moments of a machine, told by the time of the reference kernel beside each measurement.

Dividing by that time takes a machine's drift out of measurements: of 3,800 candidates measured
twice, with twenty minutes in between, the spread of a time was 0.11 of it before and 0.07 after.
In slow moments it takes out too much: the reference kernel only computes, and what waits for
memory slows down less than it does (seen: 1.66 against 1.26 times). The few slow moments of a long
run would then hold its seeming best.
"""

import numpy as np

_QUIET = 0.25
"""Quantile of the reference times that stands for a quiet machine. Rather no lower one: they vary
without disturbance too (one machine: 638 us for the fastest fiftieth, 722 in the middle, 830 for
all but 3 %)."""
_CALM = 1.15


def calm_limit(reference_us: np.ndarray) -> float:
    """The longest of these reference times that still belongs to a calm moment; NaN is left out.

    Infinite where no time is known.
    """
    known = reference_us[np.isfinite(reference_us)]
    return _CALM * float(np.quantile(known, _QUIET)) if len(known) else np.inf
