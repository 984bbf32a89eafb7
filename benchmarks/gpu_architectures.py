"""Default schedules on a GPU against PyTorch's graph of launches, over today's architectures.

    python -m benchmarks.gpu_architectures --device nvidia-cuda-0 timm:densenet121 "torchvision:*"

For the machine that has the GPU, torch and the packages of `benchmarks.torch_architectures`. Each
architecture is exported by torch, imported and compiled (several at once), compared with
onnxruntime (what is further off than roundings alone make it is called wrong, see
`bundle.verify.rounding`), and then timed alone, with waiting: its launches, one launch of groups
that stay where the device has that, and PyTorch's kernels (float32 without TF32, the faster of both
layouts) replayed from a graph of launches. With `--minutes M` it is also tuned so long before, and
timed as tuned; with `--layers N` also its kernels one by one, and so many of the heaviest. At the
end come geometric means: of launches, and of the faster form.

`--precision float16` stores values in that type, and has PyTorch compute in it; `tf32` has both
multiply by instructions of TF32; `--batch 1 16` takes one input, and 16 of them at once. With
`--launches-from 16` batches of 16 and more run as launches alone, which saves the compiling of the
other form. `--judge-batches` asks what roundings alone make of batches, too: minutes of numpy each.
`--seconds S` begins no measurement after that time, and says which are missing. With `--jobs N` so
many are compiled, and tuned, at once, each by its share of the cores; measurements take turns.
"""

import json
import os
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from benchmarks.bundles import publish
from benchmarks.command import parser_of
from benchmarks.gpu import layer_times
from benchmarks.table import geometric_mean
from benchmarks.torch_architectures import ARCHITECTURES, Architecture, Example
from benchmarks.torch_export import export, runnable
from benchmarks.torch_peer import graph_us, median_s, use_float32
from retune.api import build_plan, import_network
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import Form, NetworkPlan
from retune.bundle.runtime.executor import forms_here
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import Verification, tolerance_of, verify
from retune.bundle.verify.peers import open_peer
from retune.bundle.verify.rounding import RoundingModel
from retune.core.config import cache_root
from retune.core.dtypes import TF32
from retune.device.opencl.host import core_numbers
from retune.device.opencl.runtime import Device
from retune.device.opening import open_device
from retune.pipeline.precision import precision_named
from retune.pipeline.request import TuneRequest

Found = dict[str, Any]
TUNED = "tuned "
"""Before the name of a form that was tuned."""
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
"""Types between kernels, as torch calls them too; `tf32`: float32, whose products are of TF32."""


@dataclass(frozen=True, slots=True)
class Row:
    """What a line of the table is of."""

    name: str
    """Of an architecture."""
    batch: int

    def __str__(self) -> str:
        return f"{self.name} x{self.batch}"

    @property
    def architecture(self) -> Architecture:
        """The architecture on so many inputs at once."""
        return of_batch(next(a for a in ARCHITECTURES if a.name == self.name), self.batch)


def prepare(row: Row, options: Namespace) -> Found:
    """Exports and compiles one architecture into the folder; its facts, or the error."""
    started, architecture = time.monotonic(), row.architecture
    model = options.folder / f"{row.name.replace(':', '-')}.{row.batch}.onnx"
    try:
        if not model.is_file():
            export(architecture, architecture.exporters[0], model)
        opened = open_device(options.device)
        precision = precision_named(options.precision, opened.spec)
        network = import_network(str(model), precision=precision).network
        plans = {"": build_plan(network, {}, opened.spec, model_key=row.name, notes={})}
        if options.minutes:
            plans[TUNED] = tuned(model, options)
        for label, plan in plans.items():
            write_bundle(plan, bundle_of(model, label, options))
            for form in forms_of(plan, opened, row, options):
                Module(replace(plan, form=form), opened)  # the driver keeps what it compiled
    except Exception as error:  # noqa: BLE001  whatever an exporter raises is this row's outcome
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    facts = {"launches": len(plans[""].launches), "prepared_s": time.monotonic() - started}
    return {"model": str(model), "plans": list(plans), **facts}


def bundle_of(model: Path, label: str, options: Namespace) -> Path:
    """Where the default's bundle is, or the tuned one."""
    return model.with_suffix(f".{options.precision}.{label.strip() or 'default'}.bundle")


def forms_of(plan: NetworkPlan, device: Device, row: Row, options: Namespace) -> list[Form]:
    """The forms that are timed."""
    every = forms_here(plan, device)
    return [form for form in every if form == "queued" or row.batch < options.launches_from]


def of_batch(architecture: Architecture, count: int) -> Architecture:
    """The architecture on so many inputs at once: its example's, again and again."""
    if count == 1:
        return architecture

    def make() -> Example:
        torch: Any = import_module("torch")
        example = architecture.make()
        inputs = tuple(torch.cat([x] * count) if x.ndim else x for x in example.inputs)
        return replace(example, inputs=inputs)

    return replace(architecture, make=make)


def prepare_all(wanted: Sequence[Row], options: Namespace) -> list[Found]:
    """What `prepare` found of each, by so many processes at once, of one thread each.

    A process that computes with all cores beside as many others as there are cores waits for
    them: 33 exports took more than seven minutes on 16 cores.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # for those that start now: torch's and numpy's
    context = get_context("spawn")
    shares = context.SimpleQueue()
    for number in range(options.jobs):
        shares.put(core_numbers()[number :: options.jobs])
    with ProcessPoolExecutor(
        options.jobs, mp_context=context, initializer=take_cores, initargs=(shares,)
    ) as pool:
        waiting = [pool.submit(prepare, row, options) for row in wanted]
        return [entry.result() for entry in waiting]


def take_cores(shares: SimpleQueue[tuple[int, ...]]) -> None:
    """This process, and those that it starts, use their share of the cores, if there are enough."""
    if own := shares.get():
        os.sched_setaffinity(0, own)


def measure(row: Row, prepared: Found, options: Namespace) -> Found:
    """Times, deviation and the heaviest groups of one architecture."""
    model = Path(prepared["model"])
    device = open_device(options.device)
    peer = open_peer("onnxruntime", model)
    times: dict[str, float] = {}
    checks: list[Verification] = []
    stored = precision_named(options.precision, device.spec)
    rounding = RoundingModel(lambda: import_network(str(model), precision=stored).network.graph)
    judged = row.batch == 1 or options.judge_batches
    explained = rounding if judged else None
    layers: dict[str, float] = {}
    plans = {n: read_bundle(bundle_of(model, n, options)) for n in prepared["plans"]}
    timed = {
        label + form: replace(plan, form=form)
        for label, plan in plans.items()
        for form in forms_of(plan, device, row, options)
    }
    for name, plan in timed.items():
        module = Module(plan, device)
        feeds = module.random_inputs
        allowed = max(tolerance_of(plan), 5 * TF32.tolerance * (options.precision == TF32))
        checks.append(verify(module, peer, feeds, samples=1, tolerance=allowed, rounding=explained))
        if name == "queued" and options.layers:
            layers = layer_times(module)
        times[name] = 1e3 * median_s(module.run_launches, lambda: None)
    worst = max(checks, key=lambda check: check.used)
    return prepared | {
        "deviation": worst.max_rel_range,
        "verdict": verdict(worst, judged=judged),
        "kernels_ms": 1e-3 * sum(layers.values()) if layers else None,
        "ms": times,
        "torch_ms": torch_ms(row.architecture, options.precision),
        "heaviest": sorted(layers.items(), key=lambda entry: -entry[1])[: options.layers],
    }


def tuned(model: Path, options: Namespace) -> NetworkPlan:
    """What `retune tune` publishes after so many minutes of measuring, without earlier records."""
    request = TuneRequest(
        model=str(model),
        out="",
        records=str(options.folder / f"{model.stem}.records"),
        work=str(options.folder),
        device=options.device,
        minutes=options.minutes,
        precision=options.precision,
    )
    made = publish(request).made
    return read_bundle(made.file(made.module))


def torch_ms(architecture: Architecture, precision: str) -> float:
    """Milliseconds of PyTorch's kernels in the faster layout, from a graph of launches."""
    torch: Any = import_module("torch")
    example, stored = architecture.make(), "float32" if precision == TF32 else precision
    dtype = getattr(torch, stored)
    model: Any = runnable(example.model.eval(), example.call).cuda().to(dtype)
    inputs = [x.cuda().to(dtype) if x.is_floating_point() else x.cuda() for x in example.inputs]
    images = all(data.ndim == 4 for data in inputs)
    best = float("inf")
    for layout in (torch.contiguous_format, *([torch.channels_last] if images else [])):
        if images:
            model = model.to(memory_format=layout)
            inputs = [data.to(memory_format=layout) for data in inputs]
        with torch.inference_mode():
            best = min(best, 1e-3 * graph_us(lambda m=model, i=inputs: m(*i)))
    return best


def lines(row: Row, found: Found) -> Iterator[str]:
    """What is printed of one architecture."""
    if "error" in found:
        yield f"{row!s:32} {found['error']}"
        return
    alone, peer = found["kernels_ms"], found["torch_ms"]
    kernels = "" if alone is None else f"  kernels {alone:7.3f}"
    forms = "  ".join(f"{form} {ms:7.3f} ms {ms / peer:5.2f}x" for form, ms in found["ms"].items())
    steps = f"{found['launches']} launches{found['verdict']}"
    yield f"{row!s:32} {forms}{kernels}  torch {peer:7.3f}  {steps}"
    for label, us in found["heaviest"]:
        yield f"    {label:56} {us:8.1f} us"


def verdict(found: Verification, *, judged: bool) -> str:
    """What is said of outputs that are not within the tolerance; nothing of others.

    They may be right, unless it was `judged` what roundings alone make of them.
    """
    if found.criterion == "range" and found.passed:
        return ""
    failed = "WRONG, " if judged else "not judged, "
    return f"  {'' if found.passed else failed}off by {found.max_rel_range:.1e}, {found.decision}"


def chosen(patterns: Sequence[str]) -> list[Architecture]:
    """The architectures whose name matches one of the patterns, or contains it."""
    return [a for a in ARCHITECTURES if any(fnmatch(a.name, p) or p in a.name for p in patterns)]


def main() -> None:
    """Measures the architectures named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("architectures", nargs="+", help="names, or patterns of them")
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, default=cache_root() / "gpu-architectures")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count(), help="architectures compiled at once"
    )
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1], help="inputs at once")
    parser.add_argument("--launches-from", type=int, default=1 << 30, metavar="BATCH")
    parser.add_argument("--judge-batches", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--minutes", type=float, help="of tuning, for each")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    options.folder.mkdir(parents=True, exist_ok=True)
    use_float32(tf32=options.precision == TF32)
    wanted = [Row(a.name, n) for a in chosen(options.architectures) for n in options.batch]
    results: dict[str, Found] = {}
    for row, entry in zip(wanted, prepare_all(wanted, options), strict=True):
        if time.monotonic() - started > options.seconds:
            results[str(row)] = {"error": f"not begun within {options.seconds:g} s"}
        else:
            results[str(row)] = measured(row, entry, options)
        print("\n".join(lines(row, results[str(row)])), flush=True)
    for count in options.batch:
        print_means(count, [results[str(row)] for row in wanted if row.batch == count])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def measured(row: Row, prepared: Found, options: Namespace) -> Found:
    """As `measure`; what it raises, or what `prepare` raised, is the row's outcome."""
    if "error" in prepared:
        return prepared
    try:
        return measure(row, prepared, options)
    except Exception as error:  # noqa: BLE001  one does not end the others
        return prepared | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}


def print_means(batch: int, found: Sequence[Found]) -> None:
    """Geometric means over those that were measured."""
    rows = [row for row in found if "error" not in row]
    if not rows:
        return
    for label in ("", TUNED):
        times = [_of_forms(row, label) for row in rows]
        if all(times):
            peers = [row["torch_ms"] for row in rows]
            ratios = [found["queued"] / peer for found, peer in zip(times, peers, strict=True)]
            faster = [min(found.values()) / peer for found, peer in zip(times, peers, strict=True)]
            print(
                f"batch {batch}: {len(rows)} architectures, geometric means: {label}launches "
                f"{geometric_mean(ratios):.2f}x, the faster form {geometric_mean(faster):.2f}x"
            )


def _of_forms(row: Found, label: str) -> dict[str, float]:
    """Milliseconds of the default's forms, or of the tuned ones."""
    return {
        name.removeprefix(TUNED): ms
        for name, ms in row["ms"].items()
        if name.startswith(TUNED) == (label == TUNED)
    }


if __name__ == "__main__":
    main()
