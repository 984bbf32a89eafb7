"""What a run does when nothing else is asked for. Importing this file costs nothing."""

DEFAULT_TUNER = "evolutionary"
DEFAULT_ALLOCATOR = "gradient"
DEFAULT_MAX_ERROR = 1e-5
"""Largest error of a strategy that a task may use, as a part of its output's range."""
