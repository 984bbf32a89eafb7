"""Registers a fleet's nights as a deployment of a Prefect server, as the fleet's file has them."""

from dataclasses import dataclass
from typing import Any, cast

from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound
from prefect.filesystems import WritableFileSystem
from prefect.schedules import Cron
from prefect.types.entrypoint import EntrypointType

from retune.prefect.blocks import load_block

STORAGE = "PREFECT_RESULTS_DEFAULT_STORAGE_BLOCK"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlacement:
    """Where the runs of a deployment are carried out, and what becomes of their results."""

    pool: str = "retune"
    queue: str = "default"
    results: str = ""
    """A block of the server for Prefect's copies of results, such as `local-file-system/results`.
    Empty: a folder of the worker's host."""


def deploy_fleet(
    flow: Flow[..., Any],
    *,
    name: str,
    config: str,
    cron: str,
    timezone: str,
    workers: WorkerPlacement,
) -> str:
    """The full name of the deployment, which starts nights by that schedule and no other.

    The work pool is made if there is none. The same call again changes what differs. The code is
    what is installed on the worker; `config` is a path on its host.

    Raises: InputError for a block that the server does not have, or that stores nothing.
    """
    _check_storage(workers.results)
    _make_pool(workers.pool)
    made = cast(
        RunnerDeployment,
        flow.to_deployment(
            name=name,
            description=f"Nights of the fleet {name}, as {config} has them.",
            tags=["retune", f"fleet:{name}"],
            schedule=Cron(cron, timezone=timezone, slug="nights"),
            parameters={"config": config},
            work_pool_name=workers.pool,
            work_queue_name=workers.queue,
            job_variables={"env": {STORAGE: workers.results}} if workers.results else {},
            concurrency_limit=ConcurrencyLimitConfig(
                limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
            ),
            entrypoint_type=EntrypointType.MODULE_PATH,
        ),
    )
    made.apply()
    return made.full_name


def _check_storage(slug: str) -> None:
    if slug:
        load_block(
            slug,
            WritableFileSystem,
            where="--results",
            example="local-file-system/retune-results",
            purpose="stores files",
        )


def _make_pool(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
