"""Stages compile, verify, bench and report: from chosen records to a published bundle."""

import logging
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from retune.bundle.bench import Benchmark, BenchOptions, Timing, compare_times
from retune.bundle.build import build_plan
from retune.bundle.by_parts import parts_of
from retune.bundle.format import write_bundle
from retune.bundle.forms import best_form
from retune.bundle.memory import plan_memory
from retune.bundle.module import Module
from retune.bundle.peers import open_peer, open_reference
from retune.bundle.plan import LARGEST_ERROR_NOTE, MAX_ERROR_NOTE
from retune.bundle.simulated import open_module, simulated_times
from retune.bundle.verify import verify
from retune.bundle.versions import promote, prune
from retune.device.ceilings import Ceilings
from retune.device.opening import board_of, open_device, spec_of
from retune.stages.manifest import (
    BenchManifest,
    CompileManifest,
    FinishedRun,
    ImportManifest,
    KernelTime,
    Latency,
    ReportManifest,
    Selection,
    TaskManifest,
    TuneRequest,
    Variant,
    VerifyManifest,
)
from retune.stages.network import open_network
from retune.stages.publishing import keep_version
from retune.stages.selection import selected_candidates, selected_network
from retune.stages.stage import Inputs, stage

_LOG = logging.getLogger("retune.stages")

_MODULE = "module"
_PEERS = ("onnxruntime",)
"""Programs that a bundle is compared with where they are installed."""
_BENCH_SECONDS = 20.0


def _compile_inputs(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    variant: Variant,
) -> Inputs:
    del tasks  # they follow from the network
    return network.model_key, selection, variant, request.max_error


@stage(CompileManifest, "compile", _compile_inputs)
def stage_compile(
    folder: Path,
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    variant: Variant,
) -> CompileManifest:
    """The bundle of the selected records; tasks without one get their default schedule.

    Made again where another record is the best of some task. Raises: InputError if the device is
    unknown, or lacks an element type of the network; RecordError if a selected record is gone.
    """
    spec = spec_of(request.device)
    chosen = selected_candidates(request, selection)
    plan = build_plan(
        selected_network(request, selection),
        chosen,
        spec,
        model_key=network.model_key,
        notes={
            "variant": variant,
            "model": request.model,
            "layout": request.layout,
            MAX_ERROR_NOTE: f"{request.max_error:g}",
        },
    )
    plan = best_form(plan, open_device(request.device))
    write_bundle(plan, folder / _MODULE)
    memory = plan_memory(plan)
    tuned = sum(t.tunable for t in tasks.tasks)
    return CompileManifest(
        variant=variant,
        module=_MODULE,
        target=spec.fingerprint,
        kernels=len(plan.kernels),
        launches=len(plan.launches),
        weight_bytes=sum(int(a.nbytes) for a in plan.weights.values()),
        arena_bytes=memory.arena_bytes,
        least_bytes=memory.lower_bound_bytes,
        from_records=len(chosen),
        from_defaults=tuned - len(chosen),
        form=plan.form,
        largest_error=plan.notes[LARGEST_ERROR_NOTE],
        host_steps=tuple(step.opened.title for step in plan.hosts),
    )


def _verify_inputs(
    request: TuneRequest, network: ImportManifest, compiled: CompileManifest
) -> Inputs:
    del network  # the bundle is of it
    return compiled.key, request.samples


@stage(VerifyManifest, "verify", _verify_inputs)
def stage_verify(
    _: Path, request: TuneRequest, network: ImportManifest, compiled: CompileManifest
) -> VerifyManifest:
    """The bundle's outputs against the oracle's, on seeded samples."""
    module = open_module(compiled.file(compiled.module), request.device)
    graph = open_network(request).network.graph
    oracle = open_reference(Path(network.onnx), graph, shapes=_shapes(network))
    parts = parts_of(module, Path(network.onnx), graph)
    feeds = module.random_inputs
    outcome = verify(module, oracle, feeds, samples=request.samples, parts=parts)
    return VerifyManifest(
        oracle=f"{oracle.name} {oracle.version}",
        samples=outcome.samples,
        max_abs=_finite(outcome.max_abs),
        max_rel=_finite(outcome.max_rel_range),
        tolerance=outcome.tolerance,
        passed=outcome.passed,
        by_parts=outcome.by_parts,
    )


def _finite(value: float) -> float:
    """JSON has no infinity; the largest float says the same."""
    return min(value, float(np.finfo(np.float64).max))


def _shapes(network: ImportManifest) -> dict[str, tuple[int, ...]]:
    return {value.name: value.shape for value in network.inputs}


def _bench_inputs(
    request: TuneRequest, network: ImportManifest, untuned: CompileManifest, tuned: CompileManifest
) -> Inputs:
    del request, network  # the bundles are of them
    return untuned.key, tuned.key


@stage(BenchManifest, "bench", _bench_inputs)
def stage_bench(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    untuned: CompileManifest,
    tuned: CompileManifest,
) -> BenchManifest:
    """Latencies of the untuned and the tuned bundle and the installed peers, measured in turns.

    With the tuned bundle's profile, step by step, against the roofline of the device now.
    """
    modules = {m.variant: open_module(m.file(m.module), request.device) for m in (untuned, tuned)}
    feeds = modules["tuned"].random_inputs()
    if (board := board_of(request.device)) is not None:
        _LOG.info("%s is simulated: its bundles are not compared with peers", board.name)
        outcome = simulated_times({name: m.plan for name, m in modules.items()}, board)
        return _bench(outcome, modules["tuned"], feeds)
    contenders: dict[str, Callable[[], object]] = {
        name: lambda module=module: module.run(feeds) for name, module in modules.items()
    }
    for name in _PEERS:
        if find_spec(name) is not None:
            peer = open_peer(name, Path(network.onnx), shapes=_shapes(network))
            contenders[name] = lambda peer=peer: peer(feeds)
    outcome = compare_times(contenders, options=BenchOptions(budget_s=_BENCH_SECONDS))
    return _bench(outcome, modules["tuned"], feeds)


def _bench(outcome: Benchmark, tuned: Module, feeds: Mapping[str, np.ndarray]) -> BenchManifest:
    return BenchManifest(
        rows=tuple(_latency(t) for t in outcome.timings), profile=_profile(tuned, feeds)
    )


def _profile(module: Module, feeds: Mapping[str, np.ndarray]) -> tuple[KernelTime, ...]:
    rows = module.profile(inputs=feeds, ceilings=Ceilings(module.device))
    return tuple(
        KernelTime(
            label=row.label,
            kernel=row.kernel,
            us=1e6 * row.median_s,
            flops=row.flops,
            bytes=row.bytes,
            roofline=row.roofline,
            host=row.host,
        )
        for row in rows
    )


def _latency(timing: Timing) -> Latency:
    return Latency(
        name=timing.name,
        median_us=1e6 * timing.median_s,
        p25_us=1e6 * timing.first_quartile_s,
        p75_us=1e6 * timing.third_quartile_s,
        runs=len(timing.times_s),
    )


def stage_report(request: TuneRequest, run: FinishedRun) -> ReportManifest:
    """Holds after the call: `out/module` is the tuned bundle and `out/report.html` the report.

    Both are published in one step, as a version beside those before it; who asks for a run wants
    its bundle, so it is not compared with theirs. Not cached: the folder is the user's.
    """
    version = keep_version(request, run, "ordered", "its run was asked for, whatever was before")
    promote(Path(request.out), version.number)
    prune(Path(request.out))
    return ReportManifest(module=str(request.module), report=str(request.report))
