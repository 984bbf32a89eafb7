"""One bundle for ranges of sizes against bundles of fixed shapes and onnxruntime, in turns.

    python -m benchmarks.dynamic zoo:resnet18_v1 --shape data=1..32,3,224,224 --seconds 2
    python -m benchmarks.dynamic minilm.onnx --shape batch=1..8 --shape sequence=1..256 --count 10

For each model all bundles have default schedules; the sizes are the ends of the ranges and random
ones between them, most of which nothing was traced for. One line for each size: the milliseconds of
a call, then the ratios. The last lines are the geometric mean and the largest ratio, and size and
time to load against the bundle of the largest shape.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.command import parser_of
from benchmarks.table import geometric_mean
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.cli.options import parse_shapes
from retune.core.dims import values_text
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import Device, open_device
from retune.device.opening import spec_of
from retune.pipeline.delivery import stage_compile
from retune.pipeline.manifest import Selection, SizeSelection
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.programs import stage_compile_programs
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.sizes import fixed_request, random_sizes, sizes, tuned_requests, usual_request


def fixed_bundle(request: TuneRequest) -> Path:
    """The bundle of a request of fixed shapes, of default schedules."""
    network = stage_import(request)
    nothing = Selection(target=spec_of(request.device).fingerprint)
    tasks = stage_extract(request, network)
    made = stage_compile(request, network, tasks, nothing, "untuned")
    return made.file(made.module)


def range_bundle(request: TuneRequest) -> tuple[Path, tuple[str, ...]]:
    """The bundle of a request with ranges, of default schedules; the sizes of its programs."""
    target = spec_of(request.device).fingerprint
    chosen = tuple(
        SizeSelection(
            values=point.values,
            weight=point.weight,
            model_key=stage_import(own).model_key,
            selection=Selection(target=target),
        )
        for point, own in tuned_requests(request)
    )
    network = stage_import(usual_request(request))
    made = stage_compile_programs(request, network, chosen, "untuned")
    return made.file(made.module), made.programs


def loaded(bundle: Path, device: Device) -> tuple[Module, float]:
    """The module, and the seconds that loading it took."""
    started = time.perf_counter()
    return Module.load(bundle, device), time.perf_counter() - started


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def compare(
    request: TuneRequest, module: Module, values: Mapping[str, int], seconds: float, device: Device
) -> tuple[float, float]:
    """One line; the time of the bundle for ranges over that of the fixed one, and of onnxruntime.

    Raises: AssertionError where the two bundles differ by more than rounding.
    """
    fixed, _ = loaded(fixed_bundle(fixed_request(request, values)), device)
    feeds = module.random_inputs(sizes=values)
    shapes = {name: array.shape for name, array in feeds.items()}
    peer = open_peer("onnxruntime", model_file(request), shapes=shapes)
    with lease(device.spec):
        found = compare_times(
            {
                "ranges": lambda: module.run(feeds),
                "fixed": lambda: fixed.run(feeds),
                "onnxruntime": lambda: peer(feeds),
            },
            options=BenchOptions(budget_s=seconds),
        )
    times = {timing.name: timing.median_s for timing in found.timings}
    own = times["ranges"]
    text = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in times.items())
    ratios = own / times["fixed"], own / times["onnxruntime"]
    print(f"{values_text(values)}: {text}: {ratios[0]:.3f}x fixed, {ratios[1]:.2f}x", flush=True)
    return ratios


def main() -> None:
    """Compares each model of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--shape", action="append", default=[], help="as of retune tune")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--count", type=int, default=10, help="sizes")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    parser.add_argument("--work", type=Path, default=Path("build/dynamic"))
    options = parser.parse_args()
    device = open_device(options.device)
    for model in options.models:
        request = TuneRequest(
            model=model,
            out=str(options.work),
            work=options.work,
            shapes=parse_shapes(options.shape),
            layout=options.layout,
            device=options.device,
        )
        every = sizes(request)
        bundle, programs = range_bundle(request)
        module, load_s = loaded(bundle, device)
        print(f"{model}: {', '.join(map(str, every))}; programs: {'; '.join(programs)}", flush=True)
        most = {size.name: size.most for size in every}
        points = [{size.name: size.least for size in every}, most]
        points += random_sizes(every, options.count - len(points), request.seed)
        ratios = [compare(request, module, p, options.seconds, device) for p in points]
        ours, theirs = zip(*ratios, strict=True)
        print(f"against fixed shapes: {geometric_mean(ours):.3f}x, at most {max(ours):.3f}x")
        print(f"against onnxruntime: {geometric_mean(theirs):.2f}x, at most {max(theirs):.2f}x")
        largest = fixed_bundle(fixed_request(request, most))
        _, fixed_s = loaded(largest, device)
        size = folder_bytes(bundle) / folder_bytes(largest)
        print(f"size {size:.2f}x, load {load_s:.2f} s, {load_s / fixed_s:.2f}x", flush=True)


if __name__ == "__main__":
    main()
