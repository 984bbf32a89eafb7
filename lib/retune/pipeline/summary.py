"""Texts about a run's stages and its end; the library and the flow share them."""

from collections.abc import Sequence
from dataclasses import replace

from retune.bundle.format import read_outline
from retune.bundle.plan import INTEGERS_NOTE
from retune.codegen.source import ProgramBuffer
from retune.core.dims import most
from retune.core.dtypes import TF32, DType, as_dtype
from retune.core.errors import VerifyError
from retune.core.quantities import counted, flop_text, time_text
from retune.core.results import KernelTime, TaskResult
from retune.device.opening import spec_of
from retune.pipeline.manifest import (
    BestRecord,
    CompileManifest,
    Constraints,
    ImportManifest,
    OutputLabels,
    PrecisionManifest,
    PublishedManifest,
    QuantizeManifest,
    TaskManifest,
    VerifyManifest,
)
from retune.pipeline.precision import precision_named, small_float_of
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun, TuneEvent, TuneResult
from retune.pipeline.slowness import slow_sentence

_WORTH = 0.95
"""Part of the time from which on a lower precision is not worth a word."""
_SHOWN_LABELS = 6
"""Labels of an output that are listed."""
_SHOWN_LAYERS = 6
"""Layers in float32 that are listed; the report has all."""


def event_of(
    request: TuneRequest,
    done: ImportManifest | QuantizeManifest | PrecisionManifest | TaskManifest | CompileManifest,
    sizes: str = "",
) -> TuneEvent:
    """The event for watchers of a run: a stage is done, maybe for some `sizes` alone."""
    match done:
        case ImportManifest():
            text = f"{request.name}: {counted(done.nodes, 'node')}, {flop_text(done.flops)}"
            text += "".join(f"; {labels_text(found)}" for found in done.labels)
            return TuneEvent(stage="import", text=text)
        case QuantizeManifest():
            return TuneEvent(stage="quantize", text=quality_text(done))
        case PrecisionManifest():
            return TuneEvent(stage="precision", text=precision_text(done))
        case TaskManifest():
            text = counted(len(done.tasks), "task") + (f" for {sizes}" if sizes else "")
            text += "".join(f"; {found}" for found in micro_batches_text(done))
            text += f"; measures {request.bounds}; compiles, verifies and times the bundle besides"
            return TuneEvent(stage="extract", text=text)
        case CompileManifest():
            text = f"{counted(done.kernels, 'kernel')}, {_launches(done.launches)}"
            if done.programs:
                text += f", {counted(len(done.programs), 'program')}: {done.served}"
            if done.host_steps:
                text += f", on the host: {'; '.join(done.host_steps)}"
            if done.offloaded:
                text += f", on the accelerator: {accelerated(done)}"
            return TuneEvent(stage="compile", text=text)


def micro_batches_text(tasks: TaskManifest) -> tuple[str, ...]:
    """The layers that run for a part of the batch at a time, and why; '' where none do."""
    return tuple(
        f"{counted(layers, 'layer')} of a batch: {counted(images, 'image')} at a time "
        "(micro-batches), which the last cache holds"
        for images, layers in tasks.micro_batches
    )


def labels_text(found: OutputLabels) -> str:
    """A sentence on what the bundle returns for outputs that are strings or maps in the model."""
    names = ", ".join(found.labels[:_SHOWN_LABELS])
    names += ", ..." if len(found.labels) > _SHOWN_LABELS else ""
    if found.columns:
        return f"output '{found.output}' is a tensor with the columns {names}, not a list of maps"
    return f"output '{found.output}' is a number of {names}, counted from 0, not a string"


def validated(constraints: Constraints, verified: VerifyManifest) -> str:
    """The result of validating a selection, in a line. By how much it is faster, the run's own
    benchmark says: two ratios of one bundle differ."""
    back = len(constraints.given_back)
    speed = "default schedules"
    if constraints.ratio:
        speed = f"faster than {speed}, beyond the comparison's noise"
    if back:
        speed += f"; in the network what was found for {counted(back, 'task')} is no faster"
    return f"{speed}; deviation {verified.max_rel:.1e} of the range"


def accelerated(compiled: CompileManifest) -> str:
    """The part of a bundle's time that is counted on an accelerator, and not measured."""
    return f"{counted(compiled.offloaded, 'step')}, simulated {time_text(compiled.simulated_us)}"


def _launches(count: int) -> str:
    return "1 launch" if count == 1 else f"{count:,} launches"


def deviation_text(verified: VerifyManifest) -> str:
    """The deviation of a bundle's outputs from the oracle's, as a text."""
    allowed = verified.decision or f"{verified.tolerance:.0e} is allowed"
    return f"{verified.max_rel:.1e} of the range from {verified.oracle}'s outputs, {allowed}"


def check_verified(compiled: CompileManifest, verified: VerifyManifest) -> None:
    """Raises: VerifyError if the bundle's outputs are too far from the oracle's."""
    if not verified.passed:
        decided = f", {verified.decision}" if verified.decision else ""
        raise VerifyError(
            f"{compiled.file(compiled.module)}: expected outputs within {verified.tolerance:.1e} "
            f"of the range of {verified.oracle}'s, got {verified.max_rel:.1e}{decided}; nothing "
            "was published, please report this bundle"
        )


def summarize(
    request: TuneRequest,
    run: FinishedRun,
    published: PublishedManifest,
    conclusion: tuple[str, ...] = (),
) -> TuneResult:
    """The summary for the user, with these sentences at its end."""
    return TuneResult(
        model=request.model,
        name=request.name,
        module=published.module,
        report=published.report,
        records=request.records,
        target=run.searched.target,
        tasks=task_results(run),
        trials=run.searched.trials_done,
        seconds=run.searched.seconds_done,
        reason=run.searched.reason,
        verified=run.verified,
        latency=run.bench.rows,
        sizes=run.bench.sizes,
        statuses=run.searched.statuses,
        max_error=request.max_error,
        largest_error=run.tuned.largest_error,
        precision=lowered_text(request, run),
        gain=gain_text(request, run),
        settled=validated(run.constraints, run.verified),
        published=published,
        failed=failed_tasks(run),
        slow=slow_sentence(run.bench),
        effort=request.effort or "",
        further=run.searched.further,
        complete=run.searched.complete,
        conclusion=conclusion,
    )


def failed_tasks(run: FinishedRun) -> tuple[tuple[str, str], ...]:
    """Names of the tasks whose search failed, and why. They have their default schedules."""
    names = {entry.key: entry.name for entry in run.tasks.tasks}
    return tuple((names[key], why) for key, why in run.searched.failed)


def task_results(run: FinishedRun) -> tuple[TaskResult, ...]:
    """Every task with what was measured and what was compiled, the costliest first."""
    known = {result.entry.key: result for result in run.searched.results}
    compiled = {best.task_key: best for best in run.selection.best}
    winners = {best.task_key: best for best in run.constraints.winners}
    found = [known.get(entry.key) or TaskResult(entry=entry) for entry in run.tasks.tasks]
    results = [_as_compiled(r, compiled.get(r.entry.key), winners.get(r.entry.key)) for r in found]
    return tuple(sorted(results, key=_cost, reverse=True))


def _as_compiled(
    result: TaskResult, best: BestRecord | None, winner: BestRecord | None
) -> TaskResult:
    """The task with the times of what was compiled and of its default: of one comparison.

    What won in the network, and was given back for the default schedule, knows the latter's time.
    Two times of the default schedule are no gain.
    """
    if best is None and winner is not None and winner.default_us:
        return replace(result, best_us=winner.default_us, default_us=winner.default_us)
    if best is None:
        return replace(result, best_us=result.default_us or result.best_us, alone=True)
    here = None if best.elsewhere else best.time_us
    default_us = here if best.default else best.default_us or result.default_us
    return replace(result, best_us=here, default_us=default_us)


def _cost(result: TaskResult) -> tuple[float, int]:
    weight = result.entry.weight
    return (result.best_us or 0.0) * weight, result.entry.flops * weight


def quality_text(done: QuantizeManifest) -> str:
    """The deviation of a quantized network from the float one, in a line."""
    agreed = [f"{100 * q.top1:.1f}% top-1" for q in done.held_out if q.top1 is not None]
    cosine = min((q.cosine for q in done.held_out), default=1.0)
    kind = "random samples" if done.random else "samples"
    text = f"{done.scheme}, {len(done.layers)} layers by {done.samples} {kind}: cosine {cosine:.5f}"
    text += "".join(f", {part}" for part in agreed[:1]) + " with the float network, held out"
    return text + (f"; left in floats: {', '.join(done.left)}" if done.left else "")


def lowered_text(request: TuneRequest, run: FinishedRun) -> str:
    """The type of the network's values and its loss of accuracy; '' where it is float32."""
    if run.precision is not None:
        return precision_text(run.precision)
    if not request.lowered:
        return ""
    if DType(request.precision) is not TF32:
        return f"{request.precision} between kernels, sums in float32"
    if precision_named(request.precision, spec_of(request.device)).operands is TF32:
        return f"products of {TF32}, all else in float32"
    return f"float32: the device has no instructions that multiply {TF32}"


def gain_text(request: TuneRequest, run: FinishedRun) -> str:
    """The gain that a smaller type would bring; '' where it is small, or the type is not float32.

    Each launch takes the part of its time that the ceilings say: by its traffic or its arithmetic.
    """
    if request.lowered or request.quantize is not None:
        return ""
    steps = [step for step in run.bench.profile if not step.simulated]
    dtype = small_float_of(spec_of(request.device))
    parts = {
        f"--precision {dtype}": _part([(step, step.in_16_bits) for step in steps]),
        "--quantize int8": _part([(step, step.in_8_bits) for step in steps]),
    }
    found = [
        f"{option} (at best {part:.2f}x the time, by the device's ceilings)"
        for option, part in parts.items()
        if part <= _WORTH
    ]
    if not found or not _is_of_float32(run):
        return ""
    return "; ".join(found)


def _part(steps: Sequence[tuple[KernelTime, float | None]]) -> float:
    """Part of the whole time, where each step takes its own; 1 where that is not known."""
    if any(part is None and not step.host for step, part in steps):
        return 1.0
    total = sum(step.us for step, _ in steps)
    return sum(step.us * (1.0 if p is None else p) for step, p in steps) / total if total else 1.0


def _is_of_float32(run: FinishedRun) -> bool:
    """Whether the bundle stores no smaller floats, and computes with no quantized values."""
    outline = read_outline(run.tuned.file(run.tuned.module))
    types = {as_dtype(buffer.dtype) for buffer in outline.buffers}
    if INTEGERS_NOTE in outline.notes or any(t.is_small_float for t in types):
        return False
    return not has_packed_weights(outline.buffers)


def has_packed_weights(buffers: Sequence[ProgramBuffer]) -> bool:
    """Whether most of the weights' bytes are packed integers of 2, 4 or 8 bits."""
    weights = [buffer for buffer in buffers if buffer.role == "weight"]
    integers = [each for each in weights if as_dtype(each.dtype).is_integer]
    return 2 * sum(most(each.bytes) for each in integers) > sum(most(e.bytes) for e in weights)


def precision_text(done: PrecisionManifest) -> str:
    """The deviation of a network in mixed precision from the float32 one, in a line."""
    kind = "random samples" if done.random else "samples"
    agreed = [f", {100 * q.top1:.1f}% top-1" for q in done.quality if q.top1 is not None]
    text = f"mixed {done.stored}, {len(done.kept)} of {len(done.layers)} layers in float32: "
    text += f"deviation {done.deviation:.1e} of the range ({done.max_deviation:g} allowed)"
    text += f"{''.join(agreed[:1])} by {done.samples} {kind}"
    names = ", ".join(done.kept[:_SHOWN_LAYERS])
    names += ", ..." if len(done.kept) > _SHOWN_LAYERS else ""
    return text + (f"; in float32: {names}" if names else "")
