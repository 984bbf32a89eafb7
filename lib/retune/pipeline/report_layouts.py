"""What the report shows of the plan of layouts."""

from collections import defaultdict

from retune.pipeline.layout_choice import choice_of
from retune.pipeline.layouts import summary
from retune.pipeline.network import open_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.results import FinishedRun
from retune.report.data import LaidStep, ReportLayouts
from retune.search.layout.laying import copy_name, laid_out
from retune.search.layout.layouts import TRANSFORM


def report_layouts(request: TuneRequest, run: FinishedRun) -> ReportLayouts | None:
    """The plan with what was expected and measured; None where layouts were not planned."""
    done = run.layouts
    if not done.totals:
        return None
    kept = run.selection.layouts == done.plan.placement
    return ReportLayouts(
        summary=summary(done),
        totals=tuple((total.name, total.us, total.copies) for total in done.totals),
        kept=_kept(run, kept=kept),
        steps=_steps(request, run, kept=kept),
    )


def _kept(run: FinishedRun, *, kept: bool) -> str:
    ratio = run.constraints.rows_ratio
    if not run.layouts.plan.images:
        return ""
    if not kept:
        told = f" ({ratio:.3f} of the time in rows)" if ratio else ""
        return f"The bundle has all images in rows: it was not faster beyond doubt otherwise{told}."
    return f"The bundle takes {ratio:.3f} of the time in rows, in turns." if ratio else ""


def _steps(request: TuneRequest, run: FinishedRun, *, kept: bool) -> tuple[LaidStep, ...]:
    """The plan's kernels and copies; times of the bundle are known where it is the plan's."""
    plan = run.layouts.plan
    network = laid_out(open_network(request).network, choice_of(plan))
    kernels = {kernel.group: kernel for kernel in plan.kernels}
    copies = {
        copy_name(image.image, layout): (image, layout)
        for image in plan.images
        for layout in image.copies
    }
    measured: defaultdict[str, float] = defaultdict(float)
    for row in run.bench.profile if kept else ():
        measured[row.label] += row.us
    makers: dict[str, str] = {}
    found: list[LaidStep] = []
    for placed in network.groups:
        group = placed.group
        reads = tuple(dict.fromkeys(makers[v] for v in group.inputs if v in makers))
        makers |= dict.fromkeys(group.outputs, group.name)
        time = measured.get(group.name)
        if group.name.startswith(TRANSFORM):
            image, layout = copies[group.outputs[0]]
            share = image.us / len(image.copies)
            step = LaidStep(
                label=group.name, reads=reads, read=image.made, made=layout, us=share,
                measured_us=time, copy=True,
            )  # fmt: skip
        elif group.name in kernels:
            kernel = kernels[group.name]
            step = LaidStep(
                label=group.name, reads=reads, read=kernel.read, made=kernel.made, us=kernel.us,
                measured_us=time,
            )  # fmt: skip
        else:
            step = LaidStep(label=group.name, reads=reads, read="rows", made="rows", us=0.0)
        found.append(step)
    return tuple(found)
