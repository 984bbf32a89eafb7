"""Default schedules on a GPU against PyTorch's graph of launches, over today's architectures.

    python -m benchmarks.gpu_architectures --device nvidia-cuda-0 timm:densenet121 "torchvision:*"

For the machine that has the GPU, torch and the packages of `benchmarks.torch_architectures`;
nothing is tuned. Each architecture is exported by torch, imported and compiled (several at once),
compared with onnxruntime (what is further off than roundings alone make it is called wrong, see
`bundle.verify.rounding`), and then timed alone, with waiting: its launches, one launch of groups
that stay where the device has that, and PyTorch's kernels (float32 without TF32, the faster of both
layouts) replayed from a graph of launches. With `--layers N` also its kernels one by one, and so
many of the heaviest. At the end come geometric means: of launches, and of the faster form.

`--precision float16` stores values in that type, and has PyTorch compute in it; `tf32` has both
multiply by instructions of TF32; `--batch 16` takes so many inputs at once.
"""

import json
import os
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of
from benchmarks.gpu import layer_times
from benchmarks.table import geometric_mean
from benchmarks.torch_architectures import ARCHITECTURES, Architecture, Example
from benchmarks.torch_export import export, runnable
from benchmarks.torch_peer import graph_us, median_s, use_float32
from retune.api import build_plan, import_network
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.runtime.executor import forms_here
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import Verification, tolerance_of, verify
from retune.bundle.verify.peers import open_peer
from retune.bundle.verify.rounding import RoundingModel
from retune.core.config import cache_root
from retune.core.dtypes import TF32
from retune.device.opening import open_device
from retune.pipeline.precision import precision_named

Found = dict[str, Any]
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
"""Types between kernels, as torch calls them too; `tf32`: float32, whose products are of TF32."""


def prepare(name: str, options: Namespace) -> Found:
    """Exports and compiles one architecture into the folder; its facts, or the error."""
    architecture = of_batch(next(a for a in ARCHITECTURES if a.name == name), options.batch)
    model = options.folder / f"{name.replace(':', '-')}.{options.batch}.onnx"
    bundle = model.with_suffix(f".{options.precision}.bundle")
    try:
        if not model.is_file():
            export(architecture, architecture.exporters[0], model)
        opened = open_device(options.device)
        precision = precision_named(options.precision, opened.spec)
        network = import_network(str(model), precision=precision).network
        plan = build_plan(network, {}, opened.spec, model_key=name, notes={})
        write_bundle(plan, bundle)
        for form in forms_here(plan, opened):
            Module(replace(plan, form=form), opened)  # the driver keeps what it compiled
    except Exception as error:  # noqa: BLE001  whatever an exporter raises is this row's outcome
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    facts = {"launches": len(plan.launches), "hosts": len(plan.hosts)}
    return {"model": str(model), "bundle": str(bundle), **facts}


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


def prepare_all(wanted: Sequence[Architecture], options: Namespace) -> list[Found]:
    """What `prepare` found of each, by so many processes at once, of one thread each.

    A process that computes with all cores beside as many others as there are cores waits for
    them: 33 exports took more than seven minutes on 16 cores.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # for those that start now: torch's and numpy's
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(prepare, a.name, options) for a in wanted]
        return [entry.result() for entry in waiting]


def measure(architecture: Architecture, prepared: Found, options: Namespace) -> Found:
    """Times, deviation and the heaviest groups of one architecture."""
    model = Path(prepared["model"])
    device = open_device(options.device)
    plan = read_bundle(Path(prepared["bundle"]))
    peer = open_peer("onnxruntime", model)
    times: dict[str, float] = {}
    checks: list[Verification] = []
    graph = import_network(str(model)).network.graph
    rounding = RoundingModel(lambda: graph)
    layers: dict[str, float] = {}
    for form in forms_here(plan, device):
        module = Module(replace(plan, form=form), device)
        feeds = module.random_inputs
        allowed = max(tolerance_of(plan), 5 * TF32.tolerance * (options.precision == TF32))
        checks.append(verify(module, peer, feeds, samples=1, tolerance=allowed, rounding=rounding))
        if form == "queued" and options.layers:
            layers = layer_times(module)
        times[form] = 1e3 * median_s(module.run_launches, lambda: None)
    worst = max(checks, key=lambda check: check.used)
    return prepared | {
        "deviation": worst.max_rel_range,
        "verdict": "" if worst.criterion == "range" and worst.passed else verdict(worst),
        "kernels_ms": 1e-3 * sum(layers.values()) if layers else None,
        "ms": times,
        "torch_ms": torch_ms(of_batch(architecture, options.batch), options.precision),
        "heaviest": sorted(layers.items(), key=lambda entry: -entry[1])[: options.layers],
    }


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


def lines(name: str, found: Found) -> Iterator[str]:
    """What is printed of one architecture."""
    if "error" in found:
        yield f"{name:32} {found['error']}"
        return
    alone, peer = found["kernels_ms"], found["torch_ms"]
    kernels = "" if alone is None else f"  kernels {alone:7.3f}"
    forms = "  ".join(f"{form} {ms:7.3f} ms {ms / peer:5.2f}x" for form, ms in found["ms"].items())
    steps = f"{found['launches']} launches{found['verdict']}"
    yield f"{name:32} {forms}{kernels}  torch {peer:7.3f}  {steps}"
    for label, us in found["heaviest"]:
        yield f"    {label:56} {us:8.1f} us"


def verdict(found: Verification) -> str:
    """What is said of outputs that are not within the tolerance."""
    right = "" if found.passed else "WRONG, "
    return f"  {right}off by {found.max_rel_range:.1e}, {found.decision}"


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
    parser.add_argument("--batch", type=int, default=1, help="inputs at once")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    use_float32(tf32=options.precision == TF32)
    wanted = chosen(options.architectures)
    prepared = prepare_all(wanted, options)
    ratios: dict[str, list[float]] = {"launches": [], "the faster form": []}
    results: dict[str, Found] = {}
    for architecture, entry in zip(wanted, prepared, strict=True):
        found = entry
        if "error" not in entry:
            try:
                found = measure(architecture, entry, options)
                ratios["launches"].append(found["ms"]["queued"] / found["torch_ms"])
                ratios["the faster form"].append(min(found["ms"].values()) / found["torch_ms"])
            except Exception as error:  # noqa: BLE001  one does not end the others
                found = entry | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        results[architecture.name] = found
        print("\n".join(lines(architecture.name, found)), flush=True)
    for form, found in ratios.items():
        if found:
            print(
                f"{len(found)} architectures, {form}: geometric mean {geometric_mean(found):.2f}x"
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
