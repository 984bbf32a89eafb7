"""What the processes of a run of the tests, and later runs, have in common."""

from pathlib import Path

SHARED = Path(__file__).parents[2] / ".pytest_cache" / "retune"
"""The folder of what takes long to make and is always the same; it may be removed at any time."""
