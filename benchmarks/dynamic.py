"""One bundle for ranges of sizes against bundles of fixed shapes and onnxruntime, in turns.

    python -m benchmarks.dynamic zoo:resnet18_v1 data=1..32,3,224,224 --seconds 2
    python -m benchmarks.dynamic minilm.onnx batch=1..8 seq=1..256 unet.onnx h=64..512 --minutes 5

Behind a model are its shapes, as of `retune tune --shape`. All bundles have default schedules; the
sizes are the ends of the ranges and random ones between them, most of which nothing was traced for.
One line for each size: the milliseconds of a call, then the ratios. The last lines are the
geometric mean and the largest ratio, and size and time to load against the bundle of the largest
shape. With `--minutes` each model gets an equal share of what is left; sizes beyond it are left
out, and the lines say how many were compared. With `--calls` the bundle is called so often with
random sizes as well: what its process has more of then.
"""

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.memory import resident_mib
from benchmarks.table import geometric_mean
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.peers import open_peer
from retune.cli.options import parse_shapes
from retune.core.dims import Size, values_text
from retune.core.errors import InputError
from retune.core.names import check_model_file
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import Device, open_device
from retune.device.opening import spec_of
from retune.pipeline.delivery import stage_compile
from retune.pipeline.manifest import Selection
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.programs import stage_compile_programs
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.sizes import fixed_request, random_sizes, sizes, tuned_requests, usual_request

_LOADS = 3
_WARM = 500
"""Calls before memory is looked at: parts are prepared for some sizes at most, and kept."""


def fixed_bundle(request: TuneRequest) -> Path:
    """The bundle of a request of fixed shapes, of default schedules."""
    network = stage_import(request)
    nothing = Selection(target=spec_of(request.device).fingerprint)
    tasks = stage_extract(request, network)
    made = stage_compile(request, network, tasks, nothing, "untuned")
    return made.file(made.module)


def range_bundle(request: TuneRequest) -> tuple[Path, str]:
    """The bundle of a request with ranges, of default schedules; what its programs serve."""
    target = spec_of(request.device).fingerprint
    chosen = tuple(
        Selection(sizes=point, model_key=stage_import(own).model_key, target=target)
        for point, own in tuned_requests(request)
    )
    network = stage_import(usual_request(request))
    made = stage_compile_programs(request, network, chosen, "untuned")
    return made.file(made.module), made.served


def loaded(bundle: Path, device: Device) -> tuple[Module, float]:
    """The module, and the least seconds that loading it took: by then its kernels are in the
    driver's cache."""

    def load() -> tuple[Module, float]:
        started = time.perf_counter()
        return Module.load(bundle, device), time.perf_counter() - started

    found = [load() for _ in range(_LOADS)]
    return found[-1][0], min(seconds for _, seconds in found)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in it."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@dataclass(slots=True, kw_only=True)
class RangeBundle:
    """A model's bundle for ranges, and what comparing it has found."""

    request: TuneRequest
    device: Device
    bundle: Path
    module: Module
    load_s: float
    ratios: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """Its time over that of the fixed bundle, and of onnxruntime, for each size."""

    def compare(self, values: Mapping[str, int], seconds: float) -> tuple[Path, float]:
        """One line of these sizes; the fixed bundle and the seconds that loading it took.

        Raises: AssertionError where the two bundles differ by more than rounding.
        """
        made = fixed_bundle(fixed_request(self.request, values))
        fixed, fixed_s = loaded(made, self.device)
        feeds = self.module.random_inputs(sizes=values)
        shapes = {name: array.shape for name, array in feeds.items()}
        peer = open_peer("onnxruntime", model_file(self.request), shapes=shapes)
        for name, array in fixed.run(feeds).items():
            limit = 1e-3 * max(float(np.ptp(array)), 1.0)
            np.testing.assert_allclose(self.module.run(feeds)[name], array, rtol=0, atol=limit)
        with lease(self.device.spec):
            found = compare_times(
                {
                    "ranges": lambda: self.module.run(feeds),
                    "fixed": lambda: fixed.run(feeds),
                    "onnxruntime": lambda: peer(feeds),
                },
                options=BenchOptions(budget_s=seconds),
            )
        times = {timing.name: timing.median_s for timing in found.timings}
        own = times["ranges"]
        text = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in times.items())
        ratios = own / times["fixed"], own / times["onnxruntime"]
        compared = f"{ratios[0]:.3f}x fixed, {ratios[1]:.2f}x"
        print(f"{values_text(values)}: {text}: {compared}", flush=True)
        self.ratios.append(ratios)
        return made, fixed_s

    def compare_all(self, points: Sequence[Mapping[str, int]], seconds: float, end: float) -> None:
        """Lines of the sizes, of which the first are the largest, until `end`; then the results."""
        fixed, fixed_s = self.compare(points[0], seconds)
        for values in points[1:]:
            if time.monotonic() < end:
                self.compare(values, seconds)
        ours, theirs = zip(*self.ratios, strict=True)
        count = f"{len(ours)} of {len(points)} sizes"
        print(f"{count} against fixed: {geometric_mean(ours):.3f}x, at most {max(ours):.3f}x")
        print(f"against onnxruntime: {geometric_mean(theirs):.2f}x, at most {max(theirs):.2f}x")
        size = folder_bytes(self.bundle) / folder_bytes(fixed)
        load = f"load {self.load_s:.2f} s, {self.load_s / fixed_s:.2f}x"
        print(f"size {size:.2f}x, {load}", flush=True)


def call_often(module: Module, every: Sequence[Size], calls: int, device: Device) -> None:
    """Calls of random sizes: memory of the process after some, and after all of them, and how often
    programs were built and memory of the device was allocated."""
    asked: Counter[str] = Counter()
    for name in ("build", "allocate", "allocate_shared", "upload"):
        before = getattr(device, name)
        device.__dict__[name] = lambda *a, n=name, f=before, **k: asked.update([n]) or f(*a, **k)
    first = 0.0
    for number, values in enumerate(random_sizes(every, calls, seed=calls)):
        if number == _WARM:
            first = resident_mib("VmRSS")
        module.run(module.random_inputs(number, values))
    last = resident_mib("VmRSS")
    for name in ("build", "allocate", "allocate_shared", "upload"):
        del device.__dict__[name]
    print(f"{calls} calls: {first:.1f} MiB after {_WARM}, {last:.1f} MiB; asked for: {dict(asked)}")


def networks(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Models, each with its shapes, which are behind it.

    Raises: InputError before minutes are spent, for files and texts that cannot be right.
    """
    found: list[tuple[str, list[str]]] = []
    for word in words:
        if "=" not in word:
            found.append((word, []))
        elif found:
            found[-1][1].append(word)
        else:
            raise InputError(f"{word}: expected a model before its shapes")
    for model, shapes in found:
        check_model_file(model)
        parse_shapes(shapes)
    return found


def opened(model: str, shapes: Sequence[str], options: Namespace, device: Device) -> RangeBundle:
    """The model's bundle for these shapes, loaded; a line says its sizes and programs."""
    request = TuneRequest(
        model=model,
        out=str(options.work),
        work=options.work,
        shapes=parse_shapes(shapes),
        layout=options.layout,
        device=options.device,
    )
    bundle, programs = range_bundle(request)
    module, load_s = loaded(bundle, device)
    ranges = ", ".join(map(str, sizes(request)))
    print(f"{model}: {ranges}; programs: {programs}", flush=True)
    return RangeBundle(request=request, device=device, bundle=bundle, module=module, load_s=load_s)


def main() -> None:
    """Compares each model of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("models", nargs="+", help="each with its shapes behind it")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--count", type=int, default=10, help="sizes")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each size")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all models")
    parser.add_argument("--calls", type=int, default=0, help="of random sizes, for memory")
    parser.add_argument("--work", type=Path, default=Path("build/dynamic"))
    options = parser.parse_args()
    try:
        left = networks(options.models)
    except InputError as error:
        parser.error(str(error))
    device, end = open_device(options.device), time.monotonic() + 60 * options.minutes
    for number, (model, shapes) in enumerate(left):
        now = time.monotonic()
        made = opened(model, shapes, options, device)
        every = sizes(made.request)
        points = [{size.name: size.most for size in every}]
        points += [{size.name: size.least for size in every}]
        points += random_sizes(every, options.count - len(points), made.request.seed)
        made.compare_all(points, options.seconds, now + (end - now) / (len(left) - number))
        if options.calls:
            call_often(made.module, every, options.calls, device)


if __name__ == "__main__":
    main()
