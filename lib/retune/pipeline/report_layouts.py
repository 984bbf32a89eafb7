"""The report's part on layout assignment."""

from collections import defaultdict

from retune.core.layouts import IOLayouts
from retune.pipeline.layouts import summary
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.report.data import LayoutStep, ReportLayouts
from retune.search.layout.assignment import copy_name, with_layouts


def report_layouts(request: TuneRequest, run: FinishedRun) -> ReportLayouts | None:
    """The plan with what was expected and measured; None where layouts were not planned."""
    done = run.layouts
    if not done.totals:
        return None
    kept = run.selection.layouts == done.plan.layouts
    return ReportLayouts(
        summary=summary(done),
        totals=tuple((total.name, total.us, total.copies) for total in done.totals),
        kept=_kept(run, kept=kept),
        steps=_steps(request, run, kept=kept),
    )


def _kept(run: FinishedRun, *, kept: bool) -> str:
    ratio = run.constraints.nhwc_ratio
    if not run.layouts.plan.layouts.activations:
        return ""
    if not kept:
        told = f" ({ratio:.3f} of the time in NHWC)" if ratio else ""
        return f"The bundle is NHWC throughout: other layouts were not faster beyond doubt{told}."
    return f"The bundle takes {ratio:.3f} of the time in NHWC, in turns." if ratio else ""


def _steps(request: TuneRequest, run: FinishedRun, *, kept: bool) -> tuple[LayoutStep, ...]:
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
