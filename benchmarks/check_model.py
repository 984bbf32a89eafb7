"""One ONNX file through retune, as far as it goes: imported, compiled, compared, timed.

    python -m benchmarks.check_model FILE.onnx --layout NHWC --until times

Prints a line of JSON after each stage, with all that is known by then; the last one says in `stage`
how far it came, and in `error` why not further. What `architectures` runs for each file, in a
process of its own: nothing that one network does can end the others' check.
"""

import json
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from benchmarks.passes import alone
from retune.api import ImportedNetwork, import_network
from retune.bundle.build import build_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, compare_times
from retune.bundle.verify.examination import Comparison, Original
from retune.bundle.verify.examiner_child import verdict_on
from retune.bundle.verify.in_network import open_finalists
from retune.bundle.verify.peers import open_peer
from retune.cli.options import parse_shapes, parse_values
from retune.core.errors import RetuneError
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.inputs import OpenInputs
from retune.pipeline.request import TuneRequest
from retune.pipeline.sizes import fixed_inputs

STAGES = ("import", "compile", "verify", "times")
HEAVIEST = 3
"""Kernels that are named."""
_SAMPLES = 3
"""As `retune tune` takes."""
_PASSES = 20
"""Of the network, to time its steps."""

Facts = dict[str, object]


def facts_of(options: Namespace, stated: OpenInputs) -> Iterator[Facts]:
    """What each of STAGES finds, once it is over. Raises: whatever is wrong with the network."""
    start, path, shapes = time.perf_counter(), options.file, stated.shapes
    network = import_network(str(path), shapes, options.layout, values=stated.values)
    yield {
        "nodes": network.nodes,
        "tasks": len(network.network.tasks),
        "gflop": network.flops / 1e9,
        "import_s": time.perf_counter() - start,
    }
    opened, start = open_device(options.device), time.perf_counter()
    plan = plan_of(network, opened)
    module = Module(plan, opened)
    yield {
        "compile_s": time.perf_counter() - start,
        "host": [step.opened.title for step in plan.hosts],
    }
    peer = open_peer("onnxruntime", path, shapes=shapes)
    feeds, original = (
        module.random_inputs(),
        Original(onnx=path, shapes=plan.input_shapes, values=stated.values),
    )
    verdict = verdict_on(module, opened.spec, Comparison(network=original, samples=_SAMPLES))
    outcome = verdict.found
    yield {
        "oracle": verdict.oracle,
        "deviation": outcome.max_rel_range,
        "passed": outcome.passed,
        "rounding": outcome.rounding,
        "by_parts": outcome.by_parts,
        "problems": [f"{e.name}: {e.problem}" for e in outcome.outputs if e.problem],
        "constant": [name for name, array in peer(feeds).items() if is_constant(array)],
    }
    fastest = Module(best_form(plan, opened), opened)
    timed = compare_times(
        {"default": lambda: fastest.run(feeds), "onnxruntime": lambda: peer(feeds)},
        options=BenchOptions(budget_s=options.seconds),
    )
    yield {
        "form": fastest.form,
        "median_ms": {t.name: 1e3 * t.median_s for t in timed.timings},
        "heaviest": heaviest(plan, module, opened, feeds),
    }


def is_constant(array: np.ndarray) -> bool:
    """True if it is empty or all elements are equal, so that agreeing with them says little."""
    return not array.size or (array.size > 1 and bool((array == array.flat[0]).all()))


def plan_of(network: ImportedNetwork, device: Device) -> NetworkPlan:
    """The network with default schedules."""
    return build_plan(network.network, {}, device.spec, model_key=str(network.onnx), notes={})


def heaviest(
    plan: NetworkPlan, module: Module, device: Device, feeds: Mapping[str, np.ndarray]
) -> list[Facts]:
    """The kernels that take the largest parts of the network's time, taken in their places.

    Where the device has no clock for that (`bundle.verify.in_network`), or the host has steps of
    its own, each step by itself.
    """
    profile = [(step.kernel, step.flops, step.median_s) for step in module.profile(3, feeds)]
    contest = None if plan.hosts else open_finalists(alone(plan), device)
    if contest is not None and contest.resolved:
        times = contest.times(np.zeros((_PASSES, len(plan.launches)), np.int64))
        medians = np.median(times, axis=0).tolist()
        profile = [(x.kernel, x.flops, s) for x, s in zip(plan.launches, medians, strict=True)]
    by_kernel: dict[str, list[tuple[int, float]]] = {}
    for kernel, flops, taken in profile:
        by_kernel.setdefault(kernel, []).append((flops, taken))
    seconds = {kernel: sum(taken for _, taken in steps) for kernel, steps in by_kernel.items()}
    return [
        {
            "kernel": kernel,
            "steps": len(by_kernel[kernel]),
            "ms": 1e3 * seconds[kernel],
            "share": seconds[kernel] / sum(seconds.values()),
            "gflops": sum(flops for flops, _ in by_kernel[kernel]) / seconds[kernel] / 1e9,
        }
        for kernel in sorted(seconds, key=seconds.__getitem__, reverse=True)[:HEAVIEST]
    ]


def reason_of(error: Exception) -> str:
    """One line; what is not meant for users says what kind of error it is."""
    text = " ".join(str(error).split())
    return text if isinstance(error, RetuneError) else f"{type(error).__name__}: {text}"


def main() -> None:
    """Checks the file named on the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--layout", choices=("NHWC", "NCHW"), default="NHWC")
    parser.add_argument("--until", choices=STAGES, default="verify")
    parser.add_argument("--shape", action="append", default=[], help="INPUT=1,3,224,224")
    parser.add_argument("--value", action="append", default=[], help="INPUT=16000: its elements")
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=5.0, help="of timing")
    options: Namespace = parser.parse_args()
    known: Facts = {"stage": STAGES[0]}
    shapes, values = parse_shapes(options.shape), parse_values(options.value)
    request = TuneRequest(model=options.file, out="", shapes=shapes, values=values)
    stages = facts_of(options, fixed_inputs(request))
    print(json.dumps(known), flush=True)
    try:
        for stage, following in zip(STAGES, (*STAGES[1:], "done"), strict=True):
            known |= next(stages)
            known["stage"] = "done" if stage == options.until else following
            print(json.dumps(known), flush=True)
            if stage == options.until:
                break
    except Exception as error:  # noqa: BLE001 - a survey names bugs too, and goes on
        print(json.dumps(known | {"error": reason_of(error)}), flush=True)


if __name__ == "__main__":
    main()
