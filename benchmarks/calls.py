"""Whole calls of tiny networks: each form of a bundle against onnxruntime.

    python -m benchmarks.calls --records artifacts/records zoo:mlp zoo:kws

A call is `Module.run`, its copies and Python's part of it included. Each network runs in every form
that the device allows, and in onnxruntime on all cores and on one, in turns, in two ways. `row`:
calls one after the other, as `compare_times` takes them. `apart`: single calls with a pause before
each, after which the processor is as cold as a caller finds it who calls now and then. The form
that a bundle would get (`best_form`) is marked.
"""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.command import parser_of
from benchmarks.networks import known_candidates
from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.runtime.executor import forms_here
from retune.bundle.runtime.forms import best_form
from retune.bundle.runtime.module import Module
from retune.bundle.verify.bench import BenchOptions, Contender, compare_times
from retune.bundle.verify.peers import open_peer
from retune.core.config import cache_root, records_root
from retune.device.measure.lease import lease
from retune.device.opencl.runtime import open_device
from retune.records.store import RecordStore

TINY = ("zoo:mlp", "zoo:kws")
_PEERS = {"onnxruntime": None, "onnxruntime on one core": 1}
_PAUSE_S = 5e-3
"""Between calls apart: threads are asleep by then, PoCL's at once."""


def contenders_of(model: str, records: Path, device: str) -> tuple[dict[str, Contender], str]:
    """A call of the network in each form and peer, and the name of the form of its bundle."""
    network = import_network(model, {}, "NHWC", cache_root())
    opened = open_device(device)
    chosen = known_candidates(network.network, RecordStore(records), opened.spec)
    plan = build_plan(network.network, chosen, opened.spec, model_key=model, notes={})
    modules = {form: Module(replace(plan, form=form), opened) for form in forms_here(plan, opened)}
    feeds = next(iter(modules.values())).random_inputs()
    calls: dict[str, Contender] = {n: (lambda m=m: m.run(feeds)) for n, m in modules.items()}
    for name, threads in _PEERS.items():
        peer = open_peer("onnxruntime", network.onnx, threads=threads)
        calls[name] = lambda peer=peer: peer(feeds)
    print(f"{model}: {1e-6 * network.flops:.2f} MFLOP, {len(chosen)} tasks from records")
    with lease(opened.spec):
        return calls, best_form(plan, opened).form


def in_a_row(calls: Mapping[str, Contender], seconds: float) -> dict[str, float]:
    """Median seconds of each, called again and again."""
    outcome = compare_times(calls, options=BenchOptions(budget_s=seconds))
    return {timing.name: timing.median_s for timing in outcome.timings}


def apart(calls: Mapping[str, Contender], seconds: float) -> dict[str, float]:
    """Median seconds of each, in turns, with a pause before each call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            time.sleep(_PAUSE_S)
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(found) for name, found in times.items()}


def show(way: str, medians: Mapping[str, float], best: str) -> None:
    """One line for each contender, with its time over onnxruntime's."""
    base = medians["onnxruntime"]
    for name, seconds in medians.items():
        mark = "  <- the bundle's" if name == best else ""
        print(f"  {way:6} {name:24} {1e6 * seconds:8.1f} us  {seconds / base:5.2f}x{mark}")


def main() -> None:
    """Measures the networks named on the command line, or all of TINY."""
    parser = parser_of(__doc__)
    parser.add_argument("networks", nargs="*", default=list(TINY))
    parser.add_argument("--records", type=Path, default=records_root())
    parser.add_argument("--device", default="pocl")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each way of a network")
    options = parser.parse_args()
    for model in options.networks:
        calls, best = contenders_of(model, options.records, options.device)
        show("row", in_a_row(calls, options.seconds), best)
        show("apart", apart(calls, options.seconds), best)


if __name__ == "__main__":
    main()
