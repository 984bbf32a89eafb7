"""Prefect task: a cost model trained on the whole record store."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune_prefect.caching import RETRY


@task(name="train-model", cache_policy=NO_CACHE, persist_result=True, **RETRY)
def train_model(records: str, seed: int) -> str:
    """The name of the registered model. Not cached: the store grows behind its path."""
    from retune.records.store import RecordStore
    from retune.search.offline import train

    return train(RecordStore(records), seed).name
