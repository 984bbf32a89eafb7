"""What a run does when nothing else is asked for. Importing this file costs nothing."""

from typing import Literal

TunerName = Literal["evolutionary", "xgb", "ga", "random", "grid"]
"""Names of `retune.search.tuners.TUNERS`."""
TaskSchedulerName = Literal["gradient", "round-robin", "sequential"]
"""Names of `retune.search.allocate.ALLOCATORS`."""

DEFAULT_TUNER: TunerName = "evolutionary"
DEFAULT_ALLOCATOR: TaskSchedulerName = "gradient"
DEFAULT_MAX_ERROR = 1e-5
"""Largest error of a strategy that a task may use, as a part of its output's range."""
