"""The flow of a tuning run: the chain of stages, each of them a Prefect task run.

Read `tune_network`. Each stage's output lies on disk under the key of its inputs, so a run that was
killed, cancelled or is started again redoes nothing that was finished.
"""

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled
from prefect.task_runners import TaskRunner, ThreadPoolTaskRunner
from pydantic import Field

import tasks
from retune.core.config import cache_root, records_root
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.chain import run_chain
from retune.pipeline.manifest import Publish, TuneRequest
from retune.pipeline.results import TuneResult
from retune.prefect.artifacts import show_result, tuning_progress
from retune.prefect.cancelling import RunCancelled
from retune.prefect.flow_run import HOOKS, flow_run, name_of_run, subject
from retune.prefect.stage_task import AsTasks


def parameters_of(request: TuneRequest) -> dict[str, Any]:
    """The parameters of the flow that ask for this request."""
    given = {field.name: getattr(request, field.name) for field in fields(request)}
    given["shapes"] = {name: list(shape) for name, shape in request.shapes}
    given["quantize"] = request.quantize and asdict(request.quantize)
    return given


MOST_SEARCHES = 1024
"""Threads for search tasks: nearly all of them wait for their turn."""


@flow(
    name="tune-network",
    flow_run_name=name_of_run,
    task_runner=cast("TaskRunner[Any]", ThreadPoolTaskRunner(max_workers=MOST_SEARCHES)),
    persist_result=True,
    result_serializer="json",
    **HOOKS,
)
def tune_network(
    model: str,
    out: str,
    device: str = "pocl",
    minutes: Annotated[float | None, Field(gt=0)] = None,
    trials: Annotated[int | None, Field(ge=0)] = None,
    tuner: Literal["evolutionary", "xgb", "ga", "random", "grid"] = "evolutionary",
    allocator: Literal["gradient", "round-robin", "sequential"] = "gradient",
    patience: Annotated[int, Field(ge=0)] = 0,
    seed: Annotated[int, Field(ge=0)] = 0,
    shapes: dict[str, list[int]] | None = None,
    layout: Literal["auto", "NHWC", "NCHW", "NCHW16c"] = "NHWC",
    max_error: Annotated[float, Field(ge=0)] = 1e-5,
    samples: Annotated[int, Field(ge=1)] = 2,
    publish: Publish = "always",
    keep: Annotated[int, Field(ge=2)] = 10,
    quantize: QuantizeSettings | None = None,
    calibration: str = "",
    accuracy_drop: Annotated[float | None, Field(ge=0, le=100)] = None,
    campaign: str = "",
    records: str | None = None,
    work: str | None = None,
) -> TuneResult | State[TuneResult]:
    """Tunes a network for a device, and publishes the bundle and the report.

    Args:
        model: An ONNX file, zoo:NAME or light:NAME.
        out: Folder for the bundle (module) and the report (report.html).
        device: A device of `retune devices`.
        minutes: Time for measuring; 10 if neither this nor `trials` is given.
        trials: Measurements over all tasks; 0 compiles with what is known.
        tuner: How candidates are proposed.
        allocator: Which task's turn it is.
        patience: Trials without a gain after which a task gets no further ones; 0 is never.
        seed: The same seed proposes the same candidates.
        shapes: Shapes of inputs that the model leaves open, by input or symbol.
        layout: How images lie: what measuring finds for each of them, or all of them alike.
        max_error: Largest error of a layer, as a part of its output's range.
        samples: Inputs on which the bundle is compared with the oracle.
        publish: Whether the bundle takes the place of the published one always, or if it is faster.
        keep: Versions that are kept beside the published one and its predecessor.
        quantize: How the network is quantized first; it stays as it is without.
        calibration: Samples for that, an .npz file, a folder of them, or random.
        accuracy_drop: Points of agreement with the float network that may be lost.
        campaign: Another one searches on where the same request would find itself done.
        records: The record store; default is the folder that RETUNE_RECORDS names.
        work: Folder of the stages' outputs; default is the one that RETUNE_CACHE names.
    """
    request = TuneRequest(
        model=model,
        out=out,
        device=device,
        minutes=10.0 if minutes is None and trials is None else minutes,
        trials=trials,
        tuner=tuner,
        allocator=allocator,
        patience=patience,
        seed=seed,
        shapes=tuple(sorted((name, tuple(shape)) for name, shape in (shapes or {}).items())),
        layout=layout,
        max_error=max_error,
        samples=samples,
        publish=publish,
        keep=keep,
        quantize=quantize,
        calibration=calibration,
        accuracy_drop=accuracy_drop,
        campaign=campaign,
        records=records or str(records_root()),
        work=work or str(cache_root()),
    )
    tags = [f"model:{subject(model)}", f"device:{device}"]
    try:
        with flow_run(tags=tags, device=device), tuning_progress(model, device):
            result = run_chain(request, AsTasks(tasks.TASKS))
            show_result(result, device)
            return result
    except RunCancelled as cancelled:
        return Cancelled(message=str(cancelled))
