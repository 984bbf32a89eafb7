"""The flow that trains the cost model again, on everything that was measured so far."""

from pathlib import Path
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from pydantic import Field

import tasks
from retune.core.config import records_root
from retune.pipeline.rows import model_rows
from retune.pipeline.upkeep import stage_retrain
from retune.prefect.artifacts import show_table
from retune.prefect.cancelling import RunCancelled
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run
from retune.prefect.stage_task import AsTasks
from retune.prefect.surviving import kept
from retune.search.model.registry import ModelCard, registered


@flow(
    name="retrain-cost-model",
    flow_run_name=name_of_run,
    persist_result=True,
    result_serializer="json",
    **HOOKS,
)
@kept
def retrain_cost_model(
    records: str | None = None, seed: Annotated[int, Field(ge=0)] = 0
) -> ModelCard | State[ModelCard]:
    """Trains and registers a cost model; tuning uses it if it beats the one in use.

    Args:
        records: The record store; default is the folder that RETUNE_RECORDS names.
        seed: Of the folds and the trees.
    """
    root = records or str(records_root())
    try:
        with flow_run(tags=["cost-model"]):
            card = AsTasks(tasks.TASKS).call(stage_retrain, root, seed)
            show_table(
                "cost-models",
                rows=model_rows(registered(Path(root))),
                description="Cost models, the oldest first; the newest that beat another is in use",
            )
            return card
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))
