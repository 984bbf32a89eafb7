"""What runs leave behind and nobody uses any more: outputs of stages, runs' records, programs.

Read `plan_pruning`, which removes nothing, and `prune`. Records, cost models and published versions
lie elsewhere and stay. Whatever is removed too early is made again when it is needed.
"""

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from retune.core.errors import BusyError
from retune.core.locking import exclusive
from retune.device.opencl.binaries import programs_unused_since
from retune.pipeline.running import find_runs_before
from retune.pipeline.stage import Output, outputs_unused_since


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What is to be removed, or was."""

    outputs: tuple[Output, ...]
    """Of stages."""
    runs: tuple[Path, ...]
    """Folders of the records of runs that ended."""
    programs: tuple[Path, ...]
    """Compiled ones, in the user's cache."""

    @property
    def bytes(self) -> int:
        """On the disk, less what published versions share with it."""
        return (
            sum(output.bytes for output in self.outputs)
            + sum(map(size_below, self.runs))
            + sum(map(size_of, self.programs))
        )


def plan_pruning(work: Path, programs: Path | None, since: datetime) -> Leftovers:
    """What nobody has used since that moment, below the work folder and among the programs."""
    return Leftovers(
        outputs=outputs_unused_since(work, since),
        runs=find_runs_before(work, since),
        programs=() if programs is None else programs_unused_since(programs, since),
    )


def prune(found: Leftovers) -> None:
    """Nothing of it is there any longer, but for what somebody uses at this moment."""
    for output in found.outputs:
        remove_locked(output.folder, output.lock)
    for folder in found.runs:
        shutil.rmtree(folder, ignore_errors=True)
    for path in found.programs:
        path.unlink(missing_ok=True)


def remove_locked(folder: Path, lock: Path) -> None:
    """The folder is gone, unless another process holds its lock."""
    try:
        with exclusive(lock, wait=False):
            shutil.rmtree(folder, ignore_errors=True)
    except BusyError:
        return
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def size_below(folder: Path) -> int:
    """Bytes of the files in the folder that are in no other one."""
    files: Iterable[Path] = folder.rglob("*")
    return sum(map(size_of, files))


def size_of(path: Path) -> int:
    """Bytes of the file; 0 if another folder has it too, or if it is gone."""
    try:
        found = path.lstat()
    except OSError:
        return 0
    return found.st_size if found.st_nlink == 1 else 0
