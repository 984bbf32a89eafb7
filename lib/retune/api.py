"""The Python interface: what the command line, the flow and other programs call.

`tune_network` does everything for a network, by the chain of `retune.pipeline.chain`. `tune` does
it for one tensor expression or task, and `compile_network` puts such results into a network.
Importing this module imports neither OpenCL nor Prefect.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import compare_times
from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.manifest import TuneRequest
from retune.pipeline.network import ImportedNetwork, import_network
from retune.pipeline.results import TuneResult
from retune.pipeline.watch import Progress, watching
from retune.search.defaults import DEFAULT_ALLOCATOR, DEFAULT_MAX_ERROR, DEFAULT_TUNER
from retune.search.program import Tuned, measure, space_for, tune
from retune.search.session import Stop
from retune.search.task import Task

__all__ = [
    "ImportedNetwork",
    "Module",
    "Tuned",
    "compare_times",
    "compile_network",
    "extract_tasks",
    "import_network",
    "measure",
    "space_for",
    "tune",
    "tune_network",
]


def extract_tasks(network: ImportedNetwork) -> tuple[Task, ...]:
    """The distinct tasks to tune, in order of first occurrence.

    Groups without a reduction are left out: data movements and element-wise chains run at memory
    speed by the default schedule.
    """
    return tuple(task for task in network.network.tasks.values() if task.tunable)


def compile_network(
    network: ImportedNetwork, tuned: Sequence[Tuned] = (), *, device: Device | str = "pocl"
) -> Module:
    """The network loaded on the device, with these results in place of the default schedules.

    Raises: InputError if a result is of a task that the network does not have.
    """
    tasks = dict(network.network.tasks)
    for result in tuned:
        if result.task.key not in tasks:
            raise InputError(
                f"{network.network.graph.name}: {result.task.name} is none of its tasks; tune one "
                "of extract_tasks(network)"
            )
        tasks[result.task.key] = result.task
    opened = open_device(device) if isinstance(device, str) else device
    plan = build_plan(
        replace(network.network, tasks=tasks),
        {result.task.key: result.candidate for result in tuned},
        opened.spec,
        model_key=content_key(str(network.onnx), list(tasks)),
        notes={"tuned": ", ".join(result.task.name for result in tuned) or "nothing"},
    )
    return Module(plan, opened)


def tune_network(
    model: str | Path,
    out: Path | str,
    *,
    device: str = "pocl",
    trials: int | None = None,
    minutes: float | None = None,
    tuner: str = DEFAULT_TUNER,
    allocator: str = DEFAULT_ALLOCATOR,
    patience: int = 0,
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    records: Path | str | None = None,
    layout: str = "NHWC",
    max_error: float = DEFAULT_MAX_ERROR,
    quantize: QuantizeSettings | None = None,
    calibration: Path | str = "",
    accuracy_drop: float | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> TuneResult:
    """Tunes a network and publishes `out/module` and `out/report.html`.

    Measures until `trials` are done or `minutes` are over; without either, until no task has
    anything left to try. `records` is the store's folder (default: the one that RETUNE_RECORDS
    names); `shapes` binds inputs whose shape the model leaves open. `max_error` is the
    largest error of a layer, as a part of its output's range (0: only direct convolutions). With
    `quantize` the network becomes one of integers first, by samples of the file or folder
    `calibration`, or `random` ones. The other options are those of `retune tune`, see TuneRequest.

    Doing the same again, or after a kill, redoes nothing that was finished. `progress` is told
    of each event (default: the logger `retune.progress`). When `stop` says so, no further batch is
    measured, and the bundle is made of what was found. Raises: InputError
    for a model, option or folder that cannot be used, VerifyError if the bundle is wrong.
    """
    request = TuneRequest(
        model=str(model),
        out=str(out),
        records=str(records or records_root()),
        work=str(cache_root()),
        device=device,
        trials=trials,
        minutes=minutes,
        tuner=tuner,
        allocator=allocator,
        patience=patience,
        seed=seed,
        shapes=tuple(sorted((shapes or {}).items())),
        layout=layout,
        max_error=max_error,
        quantize=quantize,
        calibration=str(calibration),
        accuracy_drop=accuracy_drop,
    )
    with watching(progress, stop):
        return run_chain(request, InProcess())
