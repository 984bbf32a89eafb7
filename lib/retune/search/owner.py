"""Ownership of a run: one process at a time reads its records and proposes its candidates.

A session reads what its run has measured when it is made, and numbers its trials from there. Two
sessions of one run at the same time would propose the same candidates under the same numbers, even
if they never measured at once.
"""

from contextlib import AbstractContextManager
from pathlib import Path

from retune.core.locking import exclusive_once


def own_run(
    records: Path, run_id: str, name: str, *, wait: bool = True
) -> AbstractContextManager[None]:
    """The run's records in that store are written by this context alone, while it lasts.

    To be entered before a `Session` of the run is made, and to be left after its last batch. If
    another owns the run, the call waits and says so; `name` is what people know the run by.

    Raises: BusyError without `wait`; InputError if the store cannot be written to.
    """
    lock = records / ".runs" / f"{run_id}.lock"
    return exclusive_once(lock, f"run {name} ({run_id[:8]}) is being tuned", wait=wait)
