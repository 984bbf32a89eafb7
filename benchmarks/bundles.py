"""Tunes networks one after the other, each into a bundle of its own.

    python -m benchmarks.bundles --out build/tuned --effort full zoo:resnet18_v1 light:inception_v1

What `retune tune` publishes, less its comparison with peers and the report: the search, the
comparison of the finalists, and the validation. `benchmarks.networks --bundles tuned=build/tuned`
then measures all of them in one run. Start with an empty store (`--records`) to know what the
search is worth.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from benchmarks.command import parser_of
from benchmarks.networks import NETWORKS, folder_of
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.verify.farm_examiner import sharing_processes
from retune.core.config import cache_root, records_root
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import select
from retune.pipeline.delivery import stage_compile, stage_verify
from retune.pipeline.manifest import CompileManifest, Constraints, Selection, TunedTasks
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.quantization import quantized_network, stage_quantize
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import TuneEvent
from retune.pipeline.summary import validated
from retune.pipeline.tuning import join_tuned, stage_finalists, stage_tune
from retune.pipeline.watch import watching
from retune.search.defaults import DEFAULT_MAX_ERROR, Effort


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the stages of a run came to, up to its bundle."""

    searched: TunedTasks
    constraints: Constraints
    selection: Selection
    made: CompileManifest
    seconds: float
    """Of all stages."""


def publish(request: TuneRequest) -> Published:
    """The stages of a run up to its bundle; a line for each of the last three."""
    began = time.perf_counter()
    network = stage_import(request)
    if request.quantize is not None:
        network = quantized_network(network, stage_quantize(request, network))
    tasks = stage_extract(request, network)
    keys = [entry.key for entry in tasks.tasks if entry.tunable]
    found = InProcess().together(stage_tune, [(request, network, tasks, key) for key in keys])
    done = join_tuned(request, network, tasks, dict(zip(keys, found, strict=True)))
    say(request, f"{done.trials_done} trials in {done.seconds_done:.0f} s")
    with watching(lambda event: report(request, event)):
        finalists = stage_finalists(request, network, done)
    with sharing_processes():
        selection, constraints = select(request, network, tasks, finalists, InProcess())
        made = stage_compile(request, network, tasks, selection, "tuned")
        say(request, validated(constraints, stage_verify(request, network, made)))
    return Published(
        searched=done,
        constraints=constraints,
        selection=selection,
        made=made,
        seconds=time.perf_counter() - began,
    )


def report(request: TuneRequest, event: TuneEvent) -> None:
    """Prints what a stage says."""
    say(request, event.text)


def say(request: TuneRequest, text: str) -> None:
    """Prints a line with the time of day and the network."""
    print(f"{time.strftime('%X')} {request.model}: {text}", flush=True)


def main() -> None:
    """Tunes the networks named on the command line, or those of `benchmarks.networks`."""
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the bundles")
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, help="exhaustive, of so many minutes")
    budget.add_argument("--effort", choices=get_args(Effort), help="default: full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-error", type=float, default=DEFAULT_MAX_ERROR)
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--device", default="pocl")
    options = parser.parse_args()
    for model in options.networks:
        request = TuneRequest(
            model=model,
            out=str(options.out / folder_of(model)),
            records=str(options.records),
            work=str(cache_root()),
            device=options.device,
            minutes=options.minutes,
            effort=options.effort,
            seed=options.seed,
            max_error=options.max_error,
        )
        made = publish(request).made
        write_bundle(read_bundle(made.file(made.module)), request.module)


if __name__ == "__main__":
    main()
