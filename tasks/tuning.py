"""Prefect tasks: one round of measurements, and the choice of the best records.

Neither is cached by Prefect: only the stage knows whether the store still has the records.
"""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.stages.codec import to_json
from retune.stages.manifest import (
    FinalistsManifest,
    ImportManifest,
    RoundManifest,
    TaskManifest,
    TuneRequest,
)
from retune_prefect.caching import RETRY
from retune.stages.watch import log_event
from retune.stages.watch import STOP


@task(
    name="tune-round",
    task_run_name="tune-round-{index}",
    cache_policy=NO_CACHE,
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def tune_round(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    index: int,
    previous: RoundManifest | None,
) -> str:
    """JSON of the RoundManifest; the round's records are in the store before it returns."""
    from retune.api import stage_tune_round

    return to_json(
        stage_tune_round(request, network, tasks, index, previous, log_event, STOP.is_set)
    )


@task(
    name="finalists",
    cache_policy=NO_CACHE,
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def decide_finalists(request: TuneRequest, network: ImportManifest, last: RoundManifest) -> str:
    """JSON of the FinalistsManifest; its records are in the store before it returns."""
    from retune.api import stage_finalists

    return to_json(stage_finalists(request, network, last, log_event, STOP.is_set))


@task(name="select", cache_policy=NO_CACHE, persist_result=True, result_serializer="json")
def select_records(request: TuneRequest, tasks: TaskManifest, finalists: FinalistsManifest) -> str:
    """JSON of the Selection."""
    from retune.api import stage_select

    return to_json(stage_select(request, tasks, finalists))
