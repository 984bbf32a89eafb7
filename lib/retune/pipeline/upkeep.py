"""Stages of a night that are about all records: training the cost model, compaction."""

from retune.records.store import RecordStore
from retune.search.model.offline import train
from retune.search.model.registry import ModelCard


def stage_retrain(records: str, seed: int) -> ModelCard:
    """The card of the new registered model; it is in use if it beats the one that was.

    Never found again: the store grows behind its path. Raises: InputError if the records are too
    few.
    """
    return train(RecordStore(records), seed)


def stage_compact(records: str) -> int:
    """The files of each finished day are one file; how many files went away by that."""
    return RecordStore(records).compact()
