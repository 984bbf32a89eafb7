"""What the processes of a run of the tests, and later runs, have in common."""

from pathlib import Path

from retune.core.replacing import replacing

SHARED = Path(__file__).parents[2] / ".pytest_cache" / "retune"
"""The folder of what takes long to make and is always the same; it may be removed at any time."""

FOUND = SHARED / "found"
"""What was found out of the devices of this machine."""


def copy_files(folder: Path, to: Path) -> None:
    """What retune keeps for a machine is there too, and no locks."""
    for path in (*folder.glob("*.json"), *folder.glob("*.db")):
        content, copy = path.read_bytes(), to / path.name
        if not copy.exists() or copy.read_bytes() != content:
            with replacing(copy) as stream:
                stream.write(content)
