"""Defaults of a run. Importing this file costs nothing."""

from typing import Literal

TunerName = Literal["evolutionary", "xgb", "ga", "random", "grid"]
"""Names of `retune.search.tuners.TUNERS`."""
TaskSchedulerName = Literal["gradient", "round-robin", "sequential"]
"""Names of `retune.search.task_schedulers.TASK_SCHEDULERS`."""
Effort = Literal["none", "quick", "full", "exhaustive"]
"""How long a search goes on: not at all; at most 20 s for a network; until little more is expected
of it; until its budget is used."""

DEFAULT_TUNER: TunerName = "evolutionary"
DEFAULT_TASK_SCHEDULER: TaskSchedulerName = "gradient"
QUICK_MINUTES = 1 / 3
"""Measuring time of effort `quick` at most, for a network."""
LEAST_GAIN = 0.01
"""Part of a network's time: where the search is expected to save less, `quick` and `full` end."""
DEFAULT_MAX_ERROR = 1e-5
"""Largest error of a strategy that a task may use, as a part of its output's range."""
