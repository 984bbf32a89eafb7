"""Stages compile, verify and bench: from chosen records to a checked and timed bundle."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np

from retune.bundle.build import build_plan
from retune.bundle.format import read_outline, restate_bundle, steps_key, write_bundle
from retune.bundle.memory import plan_memory
from retune.bundle.plan import (
    LABELS_NOTE,
    LARGEST_ERROR_NOTE,
    MAX_ERROR_NOTE,
    PRECISION_NOTE,
    RECIPE_NOTE,
    NetworkPlan,
)
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import BenchOptions, Timing
from retune.bundle.verify.examination import Comparison, Entrant, Original, Rival, Verdict
from retune.bundle.verify.farm_examiner import open_examiner
from retune.bundle.verify.peers import oracle_version, peer_versions
from retune.core.dims import SizeValues, values_text
from retune.core.ranges import FIXED, tuned_sizes, usual_sizes
from retune.core.results import KernelTime, Latency, SizeLatency
from retune.core.schema import to_json
from retune.core.target import DeviceSpec
from retune.device.measure.gate import HOST
from retune.device.opening import is_absent, playing, spec_of, unraced
from retune.frontend.onnx.inputs import OpenInputs
from retune.pipeline.manifest import (
    ONE_SIZE,
    BenchManifest,
    CompileManifest,
    ImportManifest,
    OutputLabels,
    Selection,
    TaskManifest,
    Variant,
    VerifyManifest,
)
from retune.pipeline.quantization import read_recipe
from retune.pipeline.request import TuneRequest, model_file
from retune.pipeline.sampling import given_content, given_samples, stage_samples
from retune.pipeline.selection import selected_candidates, selected_network
from retune.pipeline.sizes import checked_sizes, opened, usual_request, usual_values
from retune.pipeline.stage import Inputs, stage
from retune.records.conditions import Conditions
from retune.search.conditions import network_conditions

MODULE = "module"
"""Folder of the bundle in the output of stage compile."""
KEY_DIGITS = 8
"""Of the model's key, which name its bundles until one is published."""
_PEERS = ("onnxruntime",)
"""Programs that a bundle is compared with where they are installed."""
_BENCH_SECONDS, _UNTUNED_BENCH_SECONDS = 20.0, 4.0
"""Budget of the benchmark; the second one of a run without trials, whose two bundles are alike."""


def device_conditions(request: TuneRequest) -> Conditions:
    """The facts of the device that a measured output depends on: driver, processor, cores in use.

    For a device that is not here those are of the one that plays it.
    """
    return network_conditions(spec_of(playing(request.device)), ())


def _compile_inputs(
    request: TuneRequest,
    network: ImportManifest,
    tasks: TaskManifest,
    selection: Selection,
    variant: Variant,
) -> Inputs:
    del tasks  # they follow from the network
    made = (network.model_key, selection, variant, request.max_error, device_conditions(request))
    samples = stage_samples(request, network)
    given = (samples.ranges, *given_content(request))
    return (*made, *given) if any(given) else made


@stage(CompileManifest, "compile", _compile_inputs, doing="a bundle is compiled")
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
    plan = selected_plan(request, network, selection, variant)
    plan = write_best_form(plan, folder / MODULE, request.device)
    chosen = {best.task_key for best in selection.best}
    without = sum(t.tunable and t.key not in chosen for t in tasks.tasks)
    made = compiled(plan, folder / MODULE, spec_of(request.device), variant)
    return replace(made, from_records=len(chosen), from_defaults=without)


def selected_plan(
    request: TuneRequest, network: ImportManifest, selection: Selection, variant: Variant
) -> NetworkPlan:
    """The plan of the selected records. Raises: as `stage_compile`."""
    spec, samples = spec_of(request.device), stage_samples(request, network)
    with HOST.working():
        plan = build_plan(
            selected_network(request, selection),
            selected_candidates(request, selection),
            spec,
            model_key=network.model_key,
            notes={"variant": variant, **bundle_notes(request, network)},
            ranges={name: (low, high) for name, low, high in samples.ranges},
        )
    return replace(plan, name=network.model_key[:KEY_DIGITS], samples=given_samples(samples))


def compiled(
    plan: NetworkPlan, bundle: Path, spec: DeviceSpec, variant: Variant
) -> CompileManifest:
    """The facts of the bundle of that plan; where its schedules came from is left open."""
    memory = plan_memory(plan)
    return CompileManifest(
        variant=variant,
        module=MODULE,
        target=spec.fingerprint,
        kernels=len(plan.kernels),
        launches=len(plan.launches),
        weight_bytes=sum(int(a.nbytes) for a in plan.weights.values()),
        arena_bytes=memory.arena_bytes,
        least_bytes=memory.lower_bound_bytes,
        from_records=0,
        from_defaults=0,
        form=plan.form,
        steps_key=steps_key(bundle),
        largest_error=plan.notes[LARGEST_ERROR_NOTE],
        host_steps=tuple(h.opened.title for h in plan.hosts if h.simulated_s is None),
        offloaded=sum(step.simulated_s is not None for step in plan.hosts),
        simulated_us=1e6 * plan.simulated_s,
    )


def bundle_notes(request: TuneRequest, network: ImportManifest) -> dict[str, str]:
    """Notes on a bundle, beside which of the run's bundles it is."""
    return {
        "layout": request.layout,
        **({PRECISION_NOTE: request.precision} if request.lowered else {}),
        MAX_ERROR_NOTE: f"{request.max_error:g}",
        **_recipe_note(network),
        **labels_note(network.labels),
    }


def labels_note(labels: Sequence[OutputLabels]) -> dict[str, str]:
    """A note that tells what the numbers and the columns of the bundle's outputs mean."""
    if not labels:
        return {}
    return {LABELS_NOTE: json.dumps({found.output: found.labels for found in labels})}


def _recipe_note(network: ImportManifest) -> dict[str, str]:
    """A note that tells `verify` what the bundle has to compute."""
    return {RECIPE_NOTE: to_json(read_recipe(Path(network.recipe)))} if network.recipe else {}


def write_best_form(plan: NetworkPlan, bundle: Path, device: str) -> NetworkPlan:
    """The bundle holds the plan in the form that is the fastest one there; that plan."""
    write_bundle(plan, bundle)
    if is_absent(device):
        return plan
    with open_examiner(device) as examiner:
        best = replace(plan, form=examiner.best_form(bundle))
    if best.form != plan.form:
        restate_bundle(bundle, bundle, lambda written: replace(written, form=best.form))
    return best


def _verify_inputs(
    request: TuneRequest, network: ImportManifest, compiled: CompileManifest
) -> Inputs:
    del network  # the bundle is of it
    asked = given_content(request) or request.samples
    made = (compiled.key, asked, oracle_version(), device_conditions(request))
    return (*made, "by rounding, with notes, states of calls, one sample of further sizes")


@stage(VerifyManifest, "verify", _verify_inputs, doing="outputs are compared with the oracle's")
def stage_verify(
    _: Path, request: TuneRequest, network: ImportManifest, compiled: CompileManifest
) -> VerifyManifest:
    """Compare the bundle's outputs with the oracle's, on seeded or given samples.

    Those are of the usual sizes; of each other size that is checked there is one random sample.
    Those of a bundle for a device that is not here are of the one that plays it.
    """
    player, usual = playing(request.device), usual_request(request)
    samples = stage_samples(usual, network)
    given = given_samples(samples)
    count = request.samples if isinstance(request.samples, int) else None
    bundle = compiled.file(compiled.module)
    checked, originals = _checked(request, compiled), _originals(request, network, compiled)
    found: list[Verdict] = []
    with open_examiner(player) as examiner:
        for number, values in enumerate(checked):
            usual_sizes = values in ({}, usual_values(request))
            comparison = Comparison(
                network=originals(values),
                samples=count if usual_sizes else 1,
                given=given if usual_sizes else {},
                seed=number,
                sizes=values,
            )
            found.append(examiner.verify(bundle, comparison))
    verdict = max(found, key=lambda each: each.found.used)
    outcome = verdict.found
    where = "" if player == request.device else f" (kernels ran on {player}, not on the device)"
    return VerifyManifest(
        oracle=f"{verdict.oracle} {verdict.version}{where}",
        samples=sum(each.found.samples for each in found),
        max_abs=_finite(outcome.max_abs),
        max_rel=_finite(outcome.max_rel_range),
        tolerance=outcome.tolerance,
        passed=outcome.passed,
        by_parts=outcome.by_parts,
        criterion=outcome.criterion,
        rounding=outcome.rounding,
        used=_finite(outcome.used),
        decision=outcome.decision,
        notes=(*verdict.notes, *samples.notes),
        top1=outcome.top1,
        sizes=tuple(values_text(values) for values in checked if values),
    )


def _finite(value: float) -> float:
    """JSON has no infinity; the largest float says the same."""
    return min(value, float(np.finfo(np.float64).max))


def _checked(request: TuneRequest, compiled: CompileManifest) -> list[dict[str, int]]:
    """The sizes at which a bundle is compared with the oracle; a fixed one has none."""
    if not compiled.programs:
        return [{}]
    return checked_sizes(request, [dict(values) for values in compiled.traced])


def _originals(
    request: TuneRequest, network: ImportManifest, compiled: CompileManifest
) -> Callable[[SizeValues], Original]:
    """A function from sizes to the bundle's network; a network of fixed shapes has no sizes."""
    recipe = Path(network.recipe).read_text(encoding="utf-8") if network.recipe else ""
    stated = opened(request)
    if compiled.programs:
        outline = read_outline(compiled.file(compiled.module))
        stated = OpenInputs(outline.input_shapes, outline.values)
    else:
        stated = replace(stated, shapes={value.name: value.shape for value in network.inputs})

    def original(values: SizeValues) -> Original:
        own = stated.at(values)
        return Original(
            onnx=model_file(request), shapes=own.shapes, values=own.values, recipe=recipe
        )

    return original


def _bench_inputs(
    request: TuneRequest,
    network: ImportManifest,
    untuned: CompileManifest,
    tuned: CompileManifest,
    alone: Sequence[CompileManifest] = (),
) -> Inputs:
    del network  # the bundles are of it
    keys = [made.key for made in (untuned, tuned, *alone)]
    return keys, peer_versions(_peers(request)), device_conditions(request)


def _peers(request: TuneRequest) -> tuple[str, ...]:
    asked = request.fail_if_slower_than
    return _PEERS if asked is None or asked in _PEERS else (*_PEERS, asked)


@stage(BenchManifest, "bench", _bench_inputs, doing="the bundle is timed beside others")
def stage_bench(
    _: Path,
    request: TuneRequest,
    network: ImportManifest,
    untuned: CompileManifest,
    tuned: CompileManifest,
    alone: Sequence[CompileManifest] = (),
) -> BenchManifest:
    """Latencies of the untuned and the tuned bundle and the installed peers, measured in turns.

    Where both run the same steps, the tuned one alone is timed. One for ranges is timed at the
    sizes that it is tuned for, beside those for each of these sizes `alone`. With the tuned
    bundle's profile, step by step, against the roofline of the device now. A device that is not
    here has no times, and nobody else's are given for its own.
    """
    if is_absent(request.device):
        return BenchManifest(rows=(), profile=())
    distinct = (tuned,) if tuned.has_steps_of(untuned) else (untuned, tuned)
    bundles = {made.variant: made.file(made.module) for made in distinct}
    peers = peer_versions(taking) if (taking := _taking_part(request, network)) else ()
    points = tuned_sizes(opened(request).extents) if tuned.programs else (FIXED,)
    originals = _originals(request, network, tuned)
    rows: list[tuple[Latency, ...]] = []
    waited = 0.0
    with open_examiner(request.device) as examiner:
        for point, own in zip_longest(points, alone):
            values = dict(point.values)
            entrants: dict[str, Entrant] = {**bundles}
            if own is not None:
                entrants[ONE_SIZE] = own.file(own.module)
            rivals = {name: Rival(peer=name, network=originals(values)) for name in peers}
            budget_s = _UNTUNED_BENCH_SECONDS if request.trials == 0 else _BENCH_SECONDS
            options = BenchOptions(budget_s=budget_s / len(points))
            outcome = examiner.compare({**entrants, **rivals}, options=options, sizes=values)
            rows.append(tuple(latency_of(timing) for timing in outcome.timings))
            waited = max(waited, outcome.waited)
        board = examiner.where
        steps = examiner.profile(bundles["tuned"])
    usual = points.index(usual_sizes(points))
    return BenchManifest(
        rows=tuple(row for row in rows[usual] if row.name != ONE_SIZE),
        profile=tuple(_kernel_time(step) for step in steps),
        board=board,
        sizes=tuple(
            SizeLatency(sizes=str(point), rows=each)
            for point, each in zip(points, rows, strict=True)
            if tuned.programs
        ),
        waited=waited,
    )


def _taking_part(request: TuneRequest, network: ImportManifest) -> tuple[str, ...]:
    """The peers that can run the network where the request's device is; boards run none."""
    if unraced(request.device):
        return ()
    without = stage_samples(usual_request(request), network).oracle not in _PEERS
    return tuple(n for n in _peers(request) if not (without and n in _PEERS))


def _kernel_time(step: LaunchProfile) -> KernelTime:
    return KernelTime(
        label=step.label,
        kernel=step.kernel,
        us=1e6 * step.median_s,
        flops=step.flops,
        bytes=step.bytes,
        roofline=step.roofline,
        in_16_bits=step.in_16_bits,
        in_8_bits=step.in_8_bits,
        times=step.times,
        host=step.host,
    )


def latency_of(timing: Timing) -> Latency:
    """The contender's quartiles."""
    return Latency(
        name=timing.name,
        median_us=1e6 * timing.median_s,
        p25_us=1e6 * timing.first_quartile_s,
        p75_us=1e6 * timing.third_quartile_s,
        runs=len(timing.times_s),
    )
