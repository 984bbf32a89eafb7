"""Prefect tasks: compile, verify, measure against others, report."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from retune.stages.codec import to_json
from retune.stages.manifest import (
    CompileManifest,
    FinishedRun,
    ImportManifest,
    Selection,
    TaskManifest,
    TuneRequest,
    Variant,
)
from retune_prefect.caching import RETRY, content_cache


@task(
    name="compile",
    task_run_name="compile-{variant}",
    cache_key_fn=content_cache("compile"),
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def compile_bundle(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    variant: Variant,
) -> str:
    """JSON of the CompileManifest."""
    from retune.api import stage_compile

    return to_json(stage_compile(request, network, tasks, selection, variant))


@task(
    name="settle",
    cache_key_fn=content_cache("settle"),
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def settle_selection(
    request: TuneRequest, network: ImportManifest, tasks: TaskManifest, chosen: Selection
) -> str:
    """JSON of the SettledManifest."""
    from retune.api import stage_settle

    return to_json(stage_settle(request, network, tasks, chosen))


@task(
    name="verify",
    cache_key_fn=content_cache("verify"),
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def verify_bundle(request: TuneRequest, network: ImportManifest, compiled: CompileManifest) -> str:
    """JSON of the VerifyManifest."""
    from retune.api import stage_verify

    return to_json(stage_verify(request, network, compiled))


@task(
    name="bench",
    cache_key_fn=content_cache("bench"),
    persist_result=True,
    result_serializer="json",
    **RETRY,
)
def bench_bundles(
    request: TuneRequest,
    network: ImportManifest,
    untuned: CompileManifest,
    tuned: CompileManifest,
) -> str:
    """JSON of the BenchManifest."""
    from retune.api import stage_bench

    return to_json(stage_bench(request, network, untuned, tuned))


@task(name="report", cache_policy=NO_CACHE, persist_result=True, result_serializer="json")
def publish_report(request: TuneRequest, run: FinishedRun) -> str:
    """JSON of the ReportManifest; the bundle and the report lie in the user's folder."""
    from retune.api import stage_report

    return to_json(stage_report(request, run))
