"""The data of the report, gathered from a run's manifests and from the record store."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from retune.bundle.format import read_outline
from retune.core.dims import values_text
from retune.core.layouts import IOLayouts
from retune.core.names import is_built_in
from retune.core.quantities import counted, flop_text, numbered, time_text
from retune.core.results import KernelTime, TaskResult
from retune.core.target import model_of
from retune.device.opening import is_simulated
from retune.pipeline.layouts import summary
from retune.pipeline.network import open_network
from retune.pipeline.report_details import run_trials, trial_notes
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.pipeline.sizes import sizes, usual_values
from retune.pipeline.slowness import slow_sentence
from retune.pipeline.summary import (
    accelerated,
    failed_tasks,
    gain_text,
    lowered_text,
    micro_batches_text,
    precision_text,
    quality_text,
    task_results,
    validated,
)
from retune.report.data import LayoutStep, ReportCurve, ReportData, ReportLayouts
from retune.report.vta import queue_chart
from retune.search.layout.assignment import copy_name, with_layouts
from retune.targets.vta.step import TITLE, OffloadedStep
from retune.targets.vta.timing import simulate


def report_data(
    request: TuneRequest, run: FinishedRun, *, created: datetime, published: str = ""
) -> ReportData:
    """The report of a finished run and of why it is `published`; curves are read from the store."""
    results = task_results(run)
    curves = _curves(request, run, results)
    return ReportData(
        simulated=is_simulated(request.device),
        network=request.model if is_built_in(request.model) else request.name,
        target=model_of(run.searched.target),
        created=created.strftime("%Y-%m-%d %H:%M UTC"),
        tasks=tuple(_task(result, curves.get(result.entry.key)) for result in results),
        curves=tuple(curves.values()),
        failures=run.searched.statuses,
        latency=run.bench.rows,
        profile=_profile(run.bench.profile),
        verification=run.verified,
        facts=_facts(request, run, published),
        queues=_queues(run),
        integers=quality_text(run.quantized) if run.quantized else "",
        layers=run.quantized.layers if run.quantized else (),
        precision=precision_text(run.precision) if run.precision else "",
        types=run.precision.layers if run.precision else (),
        layouts=_layouts(request, run),
        network_times=bool(run.constraints.iterations),
    )


def _curves(
    request: TuneRequest, run: FinishedRun, results: Sequence[TaskResult]
) -> dict[str, ReportCurve]:
    """Task key -> its trials in this run, in the order of the results."""
    if not Path(request.records).is_dir():
        return {}
    trials: dict[str, list[tuple[float | None, str]]] = {}
    for key, us, note in trial_notes(run_trials(Path(request.records), run.searched.run_id)):
        trials.setdefault(key, []).append((us, note))
    return {
        entry.key: ReportCurve(
            task=entry.name,
            times_us=tuple(us for us, _ in trials[entry.key]),
            notes=tuple(note for _, note in trials[entry.key]),
        )
        for entry in (result.entry for result in results)
        if entry.key in trials
    }


def _profile(rows: Sequence[KernelTime]) -> tuple[KernelTime, ...]:
    """The rows by the labels that people see; a task of several kernels has several."""
    shown = [replace(row, simulated=row.kernel == TITLE) for row in rows]
    labels = numbered([r.kernel if r.host and not r.simulated else r.label for r in shown])
    return tuple(replace(row, label=label) for row, label in zip(shown, labels, strict=True))


def _queues(run: FinishedRun) -> tuple[str, str] | None:
    """The accelerator's longest step, and its queues over time; None without an accelerator."""
    if not run.tuned.offloaded:
        return None
    plan = read_outline(run.tuned.file(run.tuned.module))
    longest = max(plan.hosts, key=lambda host: host.simulated_s or 0.0)
    step = longest.opened
    assert isinstance(step, OffloadedStep), "it has a simulated time"
    return longest.label, queue_chart(simulate(step.module))


def _task(result: TaskResult, curve: ReportCurve | None) -> TaskResult:
    """A run measures the default schedule of each task first."""
    measured_us = curve.times_us[0] if curve else None
    return replace(result, default_us=result.default_us or measured_us)


def _facts(request: TuneRequest, run: FinishedRun, published: str) -> tuple[tuple[str, str], ...]:
    network, searched, tuned = run.network, run.searched, run.tuned
    facts: Mapping[str, str] = {
        "model": request.model,
        "device": f"{request.device}: {run.searched.target}",
        "inputs": ", ".join(f"{v.name} {v.dtype}{list(v.shape)}" for v in network.inputs),
        "layout": network.layout,
        "operations": f"{flop_text(network.flops)} in {counted(network.nodes, 'node')}",
        "parameters": f"{network.parameters:,}",
        "tuner": f"{request.tuner}, seed {request.seed}",
        "measured": f"{searched.trials_done} candidates in {searched.seconds_done:.0f} s "
        f"({searched.reason})",
        "bundle": str(request.module),
        "kernels": f"{tuned.kernels} kernels, {tuned.launches} launches, {tuned.form}",
        "schedules": f"{tuned.from_records} from records, {tuned.from_defaults} default",
        "validation": validated(run.constraints, run.verified),
        "errors of strategies": f"{request.max_error:g} of a layer's range allowed, "
        f"{tuned.largest_error} used",
        "weights": _size(tuned.weight_bytes),
        "memory between kernels": f"{_size(tuned.arena_bytes)} (least possible: "
        f"{_size(tuned.least_bytes)})",
        "records": request.records,
    }
    if parts := micro_batches_text(run.tasks):
        facts = {**facts, "micro-batches": "; ".join(parts)}
    if gain := gain_text(request, run):
        facts = {**facts, "smaller values": gain}
    if run.precision is None and (lowered := lowered_text(request, run)):
        facts = {**facts, "precision": lowered}
    if run.verified.top1 is not None:
        facts = {**facts, "top-1 agreement": f"{100 * run.verified.top1:.1f} %"}
    if tuned.programs:
        facts = {**facts, **_sizes(request, run)}
    if slow := slow_sentence(run.bench):
        facts = {**facts, "slow": slow}
    if tuned.host_steps:
        facts = {**facts, "host steps": "; ".join(tuned.host_steps)}
    if run.bench.board:
        facts = {**facts, "board": run.bench.board}
    if tuned.offloaded:
        text = f"{accelerated(tuned)}; times of the bundle are these and the measured rest"
        facts = {**facts, "accelerator": text}
    if published:
        facts = {**facts, "published": published}
    if failed := failed_tasks(run):
        reasons = "; ".join(f"{name}: {why}" for name, why in failed)
        facts = {**facts, "default schedule, as the search failed": reasons}
    return tuple(facts.items())


def _sizes(request: TuneRequest, run: FinishedRun) -> dict[str, str]:
    """The report's part on a bundle for ranges: ranges, programs, checks, and times at all
    sizes."""
    usual = values_text(usual_values(request))
    ranges = ", ".join(map(str, sizes(request)))
    times = {
        f"latency at {each.sizes}": ", ".join(
            f"{row.name} {time_text(row.median_us)}" for row in each.rows
        )
        for each in run.bench.sizes
    }
    own = {"sizes": f"{ranges}; latency and tasks are those at {usual}"} if ranges else {}
    return {
        **own,
        "programs": run.tuned.served,
        **({"beside bundles for one size": str(regret)} if (regret := run.bench.regret) else {}),
        "checked at": "; ".join(run.verified.sizes),
        **times,
    }


def _size(count: int) -> str:
    return f"{count / 2**20:.2f} MiB" if count >= 1 << 20 else f"{count / 2**10:.1f} KiB"


def _layouts(request: TuneRequest, run: FinishedRun) -> ReportLayouts | None:
    """The plan with what was expected and measured; None where layouts were not planned."""
    done = run.layouts
    if not done.totals:
        return None
    kept = run.selection.layouts == done.plan.layouts
    return ReportLayouts(
        summary=summary(done),
        totals=tuple((total.name, total.us, total.copies) for total in done.totals),
        kept=_kept_text(run, kept=kept),
        steps=_layout_steps(request, run, kept=kept),
    )


def _kept_text(run: FinishedRun, *, kept: bool) -> str:
    ratio = run.constraints.nhwc_ratio
    if not run.layouts.plan.layouts.activations:
        return ""
    if not kept:
        told = f" ({ratio:.3f} of the time in NHWC)" if ratio else ""
        return f"The bundle is NHWC throughout: other layouts were not faster beyond doubt{told}."
    return f"The bundle takes {ratio:.3f} of the time in NHWC, in turns." if ratio else ""


def _layout_steps(request: TuneRequest, run: FinishedRun, *, kept: bool) -> tuple[LayoutStep, ...]:
    """The plan's kernels and copies; times of the bundle are known where it is the plan's."""
    plan = run.layouts.plan
    network = with_layouts(open_network(request).network, plan.layouts)
    copies = {
        copy_name(value, layout): (
            IOLayouts(how.made, layout),
            plan.copies_us[value] / len(how.copies),
        )
        for value, how in plan.layouts.activations.items()
        for layout in how.copies
    }
    measured: defaultdict[str, float] = defaultdict(float)
    for row in run.bench.profile if kept else ():
        measured[row.label] += row.us
    makers: dict[str, str] = {}
    found: list[LayoutStep] = []
    for group in (placed.group for placed in network.groups):
        reads = tuple(dict.fromkeys(makers[v] for v in group.inputs if v in makers))
        makers |= dict.fromkeys(group.outputs, group.name)
        copy = copies.get(group.outputs[0])
        kernel = plan.layouts.of_kernel(group.name), plan.kernels_us.get(group.name, 0.0)
        io, us = copy or kernel
        found.append(
            LayoutStep(
                label=group.name,
                reads=reads,
                io=io,
                us=us,
                measured_us=measured.get(group.name),
                copy=copy is not None,
            )
        )
    return tuple(found)
