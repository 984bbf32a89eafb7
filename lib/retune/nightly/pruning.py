"""Removal of old nights: their folders and pages, and outputs of stages.

Read `plan_pruning`, which removes nothing, and `prune`. Published versions, records and cost models
lie elsewhere and stay. Whatever is removed too early is made again when it is needed: an output of
a stage is found by the content of its inputs, or is missing.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from retune.core.errors import InputError
from retune.nightly.config import NightlyConfig
from retune.nightly.members import page_of
from retune.nightly.night import FOLDER, LOCK, NightState, Processes, attempt_of, read_nights
from retune.pipeline.pruning import Leftovers, remove_locked, size_below, size_of
from retune.pipeline.pruning import plan_pruning as plan_leftovers
from retune.pipeline.pruning import prune as remove_leftovers


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """What is to be removed, or was."""

    nights: tuple[str, ...]
    """Names, the oldest first."""
    kept: tuple[str, ...]
    folders: tuple[Path, ...]
    """Of these nights."""
    pages: tuple[Path, ...]
    leftovers: Leftovers
    """What no kept night has used: outputs of stages, and finished runs."""

    @property
    def bytes(self) -> int:
        """On the disk, less what published versions share with it."""
        sizes = sum(map(size_below, self.folders)) + sum(map(size_of, self.pages))
        return sizes + self.leftovers.bytes


def plan_pruning(
    config: NightlyConfig,
    processes: Processes,
    now: datetime,
    *,
    keep: int | None = None,
    days: int | None = None,
) -> Pruning:
    """Nights but the last `keep`, or but those that were begun in the last `days`, can go.

    The latest night stays in any case, and so does one that is being run. Raises: InputError if not
    exactly one of both is given.
    """
    if (keep is None) == (days is None):
        raise InputError("expected either --keep NIGHTS or --days DAYS, got both or none")
    nights = read_nights(Path(config.work))
    if keep is not None:
        old = nights[: -max(keep, 1)]
    else:
        oldest = now.astimezone(UTC) - timedelta(days=days or 0)
        old = tuple(night for night in nights[:-1] if _begun(night) < oldest)
    gone = tuple(night for night in old if not _runs(night, processes))
    kept = tuple(night for night in nights if night not in gone)
    since = min((_begun(night) for night in kept), default=now)
    work = Path(config.work)
    pages = (page_of(config, night.name) for night in gone)
    return Pruning(
        nights=tuple(night.name for night in gone),
        kept=tuple(night.name for night in kept),
        folders=tuple(work / FOLDER / night.name for night in gone),
        pages=tuple(page for page in pages if page.is_file()),
        leftovers=plan_leftovers(work, None, since),
    )


def prune(pruning: Pruning) -> None:
    """Nothing of it is there any longer, but for what somebody uses at this moment."""
    for folder in pruning.folders:
        remove_locked(folder, folder / LOCK)
    for page in pruning.pages:
        page.unlink(missing_ok=True)
    remove_leftovers(pruning.leftovers)


def _begun(night: NightState) -> datetime:
    return datetime.fromisoformat(night.begun)


def _runs(night: NightState, processes: Processes) -> bool:
    last = attempt_of(night, processes)
    return last is not None and last.end == "running"
