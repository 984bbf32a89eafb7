"""Control groups as Linux shows them to a process, and the cores that they leave it."""

from math import inf
from pathlib import Path

LIMITS: tuple[tuple[dict[str, str], str, float], ...] = (
    ({}, "", inf),
    ({"cpu.max": "max 100000"}, "0::/", inf),
    ({"cpu.max": "150000 100000"}, "0::/", 1.5),
    ({"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, "9:x:/\n0::/a/b", 3.0),
    ({"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", 2.0),
    ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu:/", inf),
)
"""Files of the groups, the file that names the process's own group, and the cores."""


def write_groups(folder: Path, files: dict[str, str], own: str) -> None:
    """The folder has the files in `groups`, and the process's own group in `own`."""
    for name, text in files.items():
        path = folder / "groups" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (folder / "own").write_text(f"{own}\n")
