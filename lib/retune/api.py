"""The Python interface: what the command line and the flow call.

`tune_network` does everything; the `stage_*` functions are its steps, each of which writes its
output once under the key of its inputs. Importing this module imports neither OpenCL nor Prefect.
"""

from collections.abc import Mapping
from pathlib import Path

from retune.core.config import cache_root
from retune.core.errors import VerifyError
from retune.search.task import Task
from retune.stages.delivery import stage_bench, stage_compile, stage_report, stage_verify
from retune.stages.manifest import (
    Progress,
    RoundManifest,
    Selection,
    TuneEvent,
    TuneRequest,
    TuneResult,
)
from retune.stages.network import ImportedNetwork, import_network, stage_extract, stage_import
from retune.stages.summary import summarize
from retune.stages.tuning import stage_select, stage_tune_round

__all__ = [
    "ImportedNetwork",
    "extract_tasks",
    "import_network",
    "stage_bench",
    "stage_compile",
    "stage_extract",
    "stage_import",
    "stage_report",
    "stage_select",
    "stage_tune_round",
    "stage_verify",
    "tune_network",
]


def extract_tasks(network: ImportedNetwork) -> tuple[Task, ...]:
    """The distinct tasks to tune, in order of first occurrence.

    Groups without a reduction are left out: data movements and element-wise chains run at memory
    speed by the default schedule.
    """
    return tuple(task for task in network.network.tasks.values() if task.tunable)


def tune_network(
    model: str,
    out: Path,
    *,
    device: str = "pocl",
    trials: int | None = None,
    minutes: float | None = None,
    tuner: str = "random",
    seed: int = 0,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    records: Path | None = None,
    layout: str = "NHWC",
    progress: Progress = lambda event: None,
) -> TuneResult:
    """Tunes a network and publishes `out/module` and `out/report.html`.

    Doing the same again, or after a kill, redoes nothing that was finished. Raises: InputError
    for a model or option that cannot be used, VerifyError if the bundle is wrong.
    """
    request = TuneRequest(
        model=model,
        out=str(out),
        records=str(records or Path("artifacts/records")),
        work=str(cache_root()),
        device=device,
        trials=trials,
        minutes=minutes,
        tuner=tuner,
        seed=seed,
        shapes=tuple(sorted((shapes or {}).items())),
        layout=layout,
    )
    return run_stages(request, progress)


def run_stages(request: TuneRequest, progress: Progress) -> TuneResult:
    """All stages of a request in order, in this process."""

    def say(stage: str, text: str) -> None:
        progress(TuneEvent(stage=stage, text=text))

    network = stage_import(request)
    say("import", f"{network.name}: {network.nodes} nodes, {network.flops / 1e9:.2f} GFLOP")
    tasks = stage_extract(request, network)
    say("extract", f"{len(tasks.tasks)} tasks")
    rounds: list[RoundManifest] = []
    while not rounds or not rounds[-1].finished:
        previous = rounds[-1] if rounds else None
        rounds.append(stage_tune_round(request, network, tasks, len(rounds), previous, progress))
    selection = stage_select(request, tasks)
    nothing = Selection(target=selection.target)
    untuned = stage_compile(request, network, tasks, nothing, "untuned")
    tuned = stage_compile(request, network, tasks, selection, "tuned")
    say("compile", f"{tuned.kernels} kernels, {tuned.launches} launches")
    verified = stage_verify(request, network, tuned)
    if not verified.passed:
        raise VerifyError(
            f"{tuned.module}: expected outputs within {verified.tolerance:.1e} of the range of "
            f"{verified.oracle}'s, got {verified.max_rel:.1e}; nothing was published"
        )
    bench = stage_bench(request, network, untuned, tuned)
    published = stage_report(request, network, tasks, tuple(rounds), tuned, verified, bench)
    return summarize(
        request, network, tasks, rounds, verified=verified, bench=bench, published=published
    )
