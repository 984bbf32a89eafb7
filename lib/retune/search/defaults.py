"""What a run does when nothing else is asked for. Importing this file costs nothing."""

DEFAULT_TUNER = "evolutionary"
DEFAULT_ALLOCATOR = "gradient"
