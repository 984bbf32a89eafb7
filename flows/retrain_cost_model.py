"""The flow that trains the cost model again, on everything that was measured so far.

`retune model train` runs it. Importing this module imports Prefect; `retune_prefect.launch` first sees to
its server.
"""

from pathlib import Path

from prefect import flow
from prefect.artifacts import create_table_artifact

from retune.stages.rows import model_rows
from retune.search.registry import registered
from tasks.model import train_model


@flow(name="retrain-cost-model", persist_result=True, result_serializer="json")
def retrain_cost_model(records: str, seed: int) -> str:
    """The name of the model that it registers; the table of all models becomes an artifact.

    Raises: InputError if the records are too few.
    """
    name = train_model(records, seed)
    create_table_artifact(
        key="cost-models",
        table=model_rows(registered(Path(records))),
        description="Cost models, the oldest first; tuning uses the newest that beat another",
    )
    return name
