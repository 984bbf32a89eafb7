"""What each effort gives a network: default schedules, a quick and a full search, in turns.

    python -m benchmarks.effort --minutes 20 --out build/effort zoo:squeezenet_v1.1 zoo:mobilenet

Each network is built by default schedules, by effort `quick` with the records that the package has,
and by effort `full` without any, each from an empty store. Then its bundles run in turns, loaded
anew three times, so that memory lies elsewhere. Prints for each network the trials and minutes of
the searches, the three times of each bundle, the ratios full over default and quick over full with
the least and the largest of the three, and their geometric means, and for a full search how long it
took, how many layers kept their default schedules, and what is expected of searching on. Bundles of
the same kernels are measured all the same: they show the noise. No network begins after so many
minutes. With `--efforts none full` there is no quick search; `--precision` and `--quantize` are
those of `retune tune`.
"""

import os
import shutil
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.bundles import Published, publish
from benchmarks.command import parser_of
from benchmarks.networks import NETWORKS, folder_of
from benchmarks.table import geometric_mean
from retune.bundle.format import program_key
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, Contender, compare_times
from retune.device.opening import open_device
from retune.pipeline.request import TuneRequest
from retune.search.defaults import Effort

EFFORTS: Mapping[Effort, str] = {"none": "none", "quick": "", "full": "none"}
"""RETUNE_SHIPPED_RECORDS of each."""
RATIOS: tuple[tuple[Effort, Effort], ...] = (("full", "none"), ("quick", "full"))
PLACEMENTS = 3


def built(model: str, effort: Effort, options: Namespace) -> Published:
    """The bundle of this effort, from an empty store, and a line for what it took."""
    folder = options.out / folder_of(model) / effort
    shutil.rmtree(folder, ignore_errors=True)
    os.environ["RETUNE_SHIPPED_RECORDS"] = EFFORTS[effort]
    request = TuneRequest(
        model=model,
        out=str(folder),
        records=str(folder / "records"),
        work=str(folder / "cache"),
        device=options.device,
        effort=effort,
        minutes=options.search if effort == "full" else None,
        precision=options.precision,
        quantize=options.quantize,
    )
    done = publish(request)
    print(f"{model} {effort}: {done.seconds / 60:.1f} min in all", flush=True)
    return done


def searched(done: Published) -> str:
    """What the search took and found, and what is expected of going on."""
    found, layers = done.searched, len(done.searched.results)
    kept = layers - len(done.selection.tuned)
    further = "" if found.further is None else f"; {found.further:.1%} expected of searching on"
    return (
        f"{found.trials_done} trials in {found.seconds_done:.0f} of {done.seconds:.0f} s; "
        f"{kept} of {layers} layers by default{further}; {found.reason}"
    )


def compared(bundles: Mapping[Effort, Path], device: str, seconds: float) -> list[dict[str, float]]:
    """Milliseconds of each effort's bundle, for each time that they were loaded."""
    rows: list[dict[str, float]] = []
    for _ in range(PLACEMENTS):
        opened = open_device(device)
        modules = {effort: Module.load(path, opened) for effort, path in bundles.items()}
        feeds = next(iter(modules.values())).random_inputs()
        contenders: dict[str, Contender] = {n: partial(m.run, feeds) for n, m in modules.items()}
        options = BenchOptions(budget_s=seconds / PLACEMENTS)
        outcome = compare_times(contenders, options=options)
        rows.append({each.name: 1e3 * each.median_s for each in outcome.timings})
        for module in modules.values():
            module.close()
    return rows


def main() -> None:
    """Measures the networks named on the command line, or those of `benchmarks.networks`."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--out", type=Path, required=True, help="emptied for each network")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seconds", type=float, default=75.0, help="of comparing each network")
    parser.add_argument("--search", type=float, help="minutes of effort full; its own by default")
    parser.add_argument("--efforts", nargs="+", choices=EFFORTS, default=list(EFFORTS))
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--quantize")
    parser.add_argument("--device", default="pocl")
    options = parser.parse_args()
    end = time.perf_counter() + 60 * options.minutes
    efforts: Sequence[Effort] = options.efforts
    every: dict[tuple[Effort, Effort], list[float]] = {
        pair: [] for pair in RATIOS if set(pair) <= set(efforts)
    }
    for model in options.networks:
        if time.perf_counter() > end:
            break
        published = {effort: built(model, effort, options) for effort in efforts}
        bundles = {effort: done.made.file(done.made.module) for effort, done in published.items()}
        keys = {effort: program_key(path) for effort, path in bundles.items()}
        rows = compared(bundles, options.device, options.seconds)
        for name in efforts:
            times = ", ".join(f"{row[name]:.3f}" for row in rows)
            print(f"{model} {name}: {times} ms", flush=True)
        for (one, other), means in every.items():
            found = [row[one] / row[other] for row in rows]
            means.append(geometric_mean(found))
            same = "; the same kernels" if keys[one] == keys[other] else ""
            span = f"{min(found):.3f} to {max(found):.3f}"
            print(f"  {one} / {other}: {means[-1]:.3f} ({span}{same})", flush=True)
        if "full" in published:
            print(f"  full: {searched(published['full'])}", flush=True)
    for (one, other), means in every.items():
        mean = geometric_mean(means)
        print(f"{one} / {other}: geometric mean {mean:.3f}, worst {max(means):.3f}")


if __name__ == "__main__":
    main()
