"""Prefect tasks: a model becomes a network, and a network becomes tuning tasks."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.stages.codec import to_json
from retune.stages.manifest import ImportManifest, TuneRequest
from retune_prefect.caching import content_cache


@task(name="import", cache_policy=NO_CACHE, persist_result=True, result_serializer="json")
def import_network(request: TuneRequest) -> str:
    """JSON of the ImportManifest. Not cached here: the model's file may have changed."""
    from retune.api import stage_import

    return to_json(stage_import(request))


@task(
    name="extract",
    cache_key_fn=content_cache("extract"),
    persist_result=True,
    result_serializer="json",
)
def extract_tasks(request: TuneRequest, network: ImportManifest) -> str:
    """JSON of the TaskManifest."""
    from retune.api import stage_extract

    return to_json(stage_extract(request, network))
