"""Default schedules on a GPU against PyTorch's graph of launches, over today's architectures.

    python -m benchmarks.gpu_architectures --device nvidia-cuda-0 timm:densenet121 "torchvision:*"

For the machine that has the GPU, torch and the packages of `benchmarks.torch_architectures`;
nothing is tuned. Each architecture is exported by torch, imported and compiled (several at once),
compared with onnxruntime, and then timed alone: its launches with waiting, its kernels alone, and
PyTorch's kernels (float32 without TF32, the faster of both layouts) replayed from a graph of
launches. Prints for each the launches, with `--layers N` so many of the heaviest groups, and a
geometric mean at the end.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.command import parser_of
from benchmarks.gpu import layer_times
from benchmarks.table import geometric_mean
from benchmarks.torch_architectures import ARCHITECTURES, Architecture
from benchmarks.torch_export import export, runnable
from benchmarks.torch_peer import graph_us, median_s, use_float32
from retune.api import build_plan, import_network
from retune.bundle.format import write_bundle
from retune.bundle.module import Module
from retune.bundle.peers import open_peer
from retune.bundle.verify import TOLERANCE, verify
from retune.core.config import cache_root
from retune.device.runtime import open_device

Found = dict[str, Any]


def prepare(name: str, device: str, folder: Path) -> Found:
    """Exports and compiles one architecture into `folder`; what is known of it, or the error."""
    architecture = next(a for a in ARCHITECTURES if a.name == name)
    model = folder / f"{name.replace(':', '-')}.onnx"
    try:
        if not model.is_file():
            export(architecture, architecture.exporters[0], model)
        network = import_network(str(model)).network
        spec = open_device(device).spec
        plan = build_plan(network, {}, spec, model_key=name, notes={})
        write_bundle(plan, model.with_suffix(".bundle"))
    except Exception as error:  # noqa: BLE001  whatever an exporter raises is this row's outcome
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {"model": str(model), "launches": len(plan.launches), "hosts": len(plan.hosts)}


def measure(architecture: Architecture, prepared: Found, options: Namespace) -> Found:
    """Times, deviation and the heaviest groups of one architecture."""
    model = Path(prepared["model"])
    module = Module.load(model.with_suffix(".bundle"), options.device)
    checked = verify(module, open_peer("onnxruntime", model), module.random_inputs, samples=1)
    layers = layer_times(module)
    launches = module.runner(0, len(module.plan.launches))
    launches()
    return prepared | {
        "deviation": checked.max_rel_range,
        "kernels_ms": 1e-3 * sum(layers.values()),
        "ms": 1e3 * median_s(launches, lambda: None),
        "torch_ms": torch_ms(architecture),
        "heaviest": sorted(layers.items(), key=lambda entry: -entry[1])[: options.layers],
    }


def torch_ms(architecture: Architecture) -> float:
    """Milliseconds of PyTorch's kernels in the faster layout, from a graph of launches."""
    import torch  # pyright: ignore[reportMissingImports]

    best = float("inf")
    for layout in (torch.contiguous_format, torch.channels_last):
        example = architecture.make()
        model: Any = runnable(example.model.eval(), example.call).cuda()
        images = all(data.ndim == 4 for data in example.inputs)
        if layout == torch.channels_last and not images:
            continue
        model = model.to(memory_format=layout) if images else model
        inputs = [data.cuda() for data in example.inputs]
        inputs = [data.to(memory_format=layout) for data in inputs] if images else inputs
        with torch.inference_mode():
            best = min(best, 1e-3 * graph_us(lambda m=model, i=inputs: m(*i)))
    return best


def lines(name: str, found: Found) -> Iterator[str]:
    """What is printed of one architecture."""
    if "error" in found:
        yield f"{name:32} {found['error']}"
        return
    right = "" if found["deviation"] <= TOLERANCE else f"  WRONG by {found['deviation']:.1e}"
    yield (
        f"{name:32} {found['ms']:8.3f} ms  kernels {found['kernels_ms']:8.3f}  torch "
        f"{found['torch_ms']:8.3f}  {found['ms'] / found['torch_ms']:5.2f}x  "
        f"{found['launches']} launches{right}"
    )
    for label, us in found["heaviest"]:
        yield f"    {label:56} {us:8.1f} us"


def chosen(patterns: Sequence[str]) -> list[Architecture]:
    """The architectures whose name matches one of the patterns, or contains it."""
    return [a for a in ARCHITECTURES if any(fnmatch(a.name, p) or p in a.name for p in patterns)]


def main() -> None:
    """Measures the architectures named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("architectures", nargs="+", help="names, or patterns of them")
    parser.add_argument("--device", required=True)
    parser.add_argument("--folder", type=Path, default=cache_root() / "gpu-architectures")
    parser.add_argument("--jobs", type=int, default=8, help="architectures compiled at once")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    use_float32()
    wanted = chosen(options.architectures)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        waiting = [pool.submit(prepare, a.name, options.device, options.folder) for a in wanted]
        prepared = [entry.result() for entry in waiting]
    ratios: list[float] = []
    results: dict[str, Found] = {}
    for architecture, entry in zip(wanted, prepared, strict=True):
        found = entry
        if "error" not in entry:
            try:
                found = measure(architecture, entry, options)
                ratios.append(found["ms"] / found["torch_ms"])
            except Exception as error:  # noqa: BLE001  one does not end the others
                found = entry | {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        results[architecture.name] = found
        print("\n".join(lines(architecture.name, found)), flush=True)
    if ratios:
        print(f"{len(ratios)} architectures: geometric mean {geometric_mean(ratios):.2f}x")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
