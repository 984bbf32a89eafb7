"""The report: one HTML file that needs nothing else, and no network.

Read `render`. It is a pure function of ReportData; the page's text lies in `report.html.j2`.
"""

from retune.core.results import KernelTime, Latency, TaskResult
from retune.report.comparison import compared
from retune.report.data import LayerDetail, LayoutStep, ReportData
from retune.report.layout_picture import layout_chart
from retune.report.page import page, time_text
from retune.report.stored import packed
from retune.report.svg import Bar, Point, bar_chart, curve_chart, scatter_chart

CURVES = 24
"""Curves shown: those of the costliest tasks."""
UNEXPECTED = 0.1
"""Of a kernel's expected time: what it may be off by."""
KERNELS = 20
"""Kernels shown in the profile: the slowest."""
NO_DETAIL = LayerDetail(task_key="", groups=(), chosen=(), schedule="", kernels=(), tried=())


def render(data: ReportData, other: ReportData | None = None) -> str:
    """The whole report as HTML text, beside another one if that is given."""
    return page(
        "report.html.j2",
        data=data,
        packed=packed(data),
        comparison=compared(data, other) if other else None,
        headline=_headline(data),
        sizes=dict(data.facts).get("sizes"),
        tasks=_task_rows(data),
        spent=_are_spent(data),
        timed="in the network" if data.network_times else "alone",
        curves=_curves(data),
        hidden_curves=max(0, len(data.curves) - CURVES),
        roofline=_roofline(data),
        predicted=_predicted(data),
        latency=bar_chart([_latency_bar(row, data) for row in data.latency], "latency"),
        failures=bar_chart(_failure_bars(data), "outcomes of measurements"),
        profile=bar_chart(_profile_bars(data), "time by kernel"),
        layouts=layout_chart(data.layouts.steps) if data.layouts else "",
        unexpected=_unexpected(data),
        hidden_kernels=max(0, len(data.profile) - KERNELS),
        on_host=any(kernel.host and not kernel.simulated for kernel in data.profile),
    )


def _curves(data: ReportData) -> dict[str, str]:
    """Task -> the curve of its search, of the costliest tasks."""
    return {
        curve.task: curve_chart(curve.times_us, notes=curve.notes) for curve in data.curves[:CURVES]
    }


def _links(data: ReportData) -> dict[str, str]:
    """Name of a group of the network -> where the page shows its layer."""
    numbers = {task.entry.key: n for n, task in enumerate(data.tasks, 1)}
    return {
        group.name: f"#layer-{numbers[detail.task_key]}"
        for detail in data.details
        for group in detail.groups
        if detail.task_key in numbers
    }


def _roofline(data: ReportData) -> str:
    """Each launch by its arithmetic for each byte, and what the device's ceilings allow it."""
    links = _links(data)
    points = [
        Point(
            x=kernel.flops / kernel.bytes,
            y=kernel.flops / kernel.us / 1e3,
            limit=kernel.flops / (kernel.us * kernel.roofline) / 1e3 if kernel.roofline else None,
            title=f"{kernel.label}: {_profile_text(kernel, _spent(data))}",
            link=next(
                (links[name] for name in _unnumbered(kernel.label) if name in links), "#tasks"
            ),
        )
        for kernel in data.profile
        if kernel.flops and kernel.bytes and kernel.us and not kernel.host
    ]
    axes = "operations for each byte of least traffic", "GFLOP/s; dash: the ceiling"
    return scatter_chart(points, "roofline of the bundle's launches", axes)


def _unnumbered(label: str) -> tuple[str, str]:
    """A launch's label, and without the number that tells it from others of its group."""
    return label, label.partition(" (")[0]


def _predicted(data: ReportData) -> str:
    """Each task by the time of its record, and by the time that it takes in the bundle."""
    numbers = {task.entry.key: (n, task) for n, task in enumerate(data.tasks, 1)}
    points: list[Point] = []
    for detail in data.details:
        number, task = numbers.get(detail.task_key, (0, None))
        if task is None or not task.best_us or not detail.measured_us:
            continue
        ratio = detail.measured_us / task.best_us
        title = (
            f"{task.entry.name}: {time_text(task.best_us)} by its record, "
            f"{time_text(detail.measured_us)} in the bundle ({ratio:.2f} ×)"
        )
        link = f"#layer-{number}"
        points.append(Point(x=task.best_us, y=detail.measured_us, title=title, link=link))
    axes = "µs by the record", "µs in the bundle"
    return scatter_chart(points, "predicted and measured time", axes, diagonal=True)


def _unexpected(data: ReportData) -> list[LayoutStep]:
    """Kernels and copies whose time in the bundle is not what was expected."""
    steps = data.layouts.steps if data.layouts else ()
    return [step for step in steps if step.off and abs(step.off - 1) > UNEXPECTED]


def _headline(data: ReportData) -> list[tuple[str, str]]:
    """The three or four numbers that matter, each with its name."""
    medians = {row.name: row.median_us for row in data.latency}
    tuned = medians.get("tuned")
    numbers: list[tuple[str, str]] = []
    if tuned is not None:
        numbers.append(("latency, tuned", time_text(tuned)))
        for name, median in medians.items():
            if name != "tuned":
                numbers.append((f"{name}, relative to tuned", f"{median / tuned:.2f} ×"))
    deviation = f"{data.verification.max_rel:.1e}"
    numbers.append((f"deviation from {data.verification.oracle}", deviation))
    return numbers


def _are_spent(data: ReportData) -> bool:
    """Whether the bundle's launches were timed, so that shares are of the time spent in it."""
    return any(detail.measured_us for detail in data.details)


def _task_rows(data: ReportData) -> list[dict[str, object]]:
    """A row for each task, the costliest first: in the bundle, or by records if it was not timed.

    `share` is that of the sum over all of them, in per cent; None where the time is not known.
    """
    spent = _are_spent(data)
    details = {detail.task_key: detail for detail in data.details}
    found: list[tuple[float, TaskResult, int]] = []
    for number, task in enumerate(data.tasks, 1):
        us = details.get(task.entry.key, NO_DETAIL).measured_us if spent else task.best_us
        found.append(((us or 0.0) * task.entry.weight, task, number))
    total = sum(us for us, _, _ in found) or 1.0
    return [
        {
            "number": number,
            "task": task,
            "detail": details.get(task.entry.key, NO_DETAIL),
            "share": 100.0 * us / total if us else None,
            "gain": task.default_us / task.best_us if task.best_us and task.default_us else None,
        }
        for us, task, number in sorted(found, key=lambda each: each[0], reverse=True)
    ]


def _latency_bar(row: Latency, data: ReportData) -> Bar:
    tuned = next((r.median_us for r in data.latency if r.name == "tuned"), None)
    text = time_text(row.median_us)
    if tuned and row.name != "tuned":
        text += f" ({row.median_us / tuned:.2f} × tuned)"
    style = {"tuned": "ours", "untuned": "plain"}.get(row.name, "peer")
    return Bar(
        label=row.name,
        value=row.median_us,
        text=text,
        low=row.p25_us,
        high=row.p75_us,
        style=style,
    )


def _failure_bars(data: ReportData) -> list[Bar]:
    total = sum(count for _, count in data.failures) or 1
    return [
        Bar(
            label=name.replace("_", " "),
            value=count,
            text=f"{count} ({100 * count / total:.1f} %)",
            style="good" if name == "ok" else "bad",
        )
        for name, count in data.failures
    ]


def _profile_bars(data: ReportData) -> list[Bar]:
    total = _spent(data)
    slowest = sorted(data.profile, key=lambda kernel: kernel.us, reverse=True)[:KERNELS]
    return [
        Bar(
            label=kernel.label,
            value=kernel.us,
            text=_profile_text(kernel, total),
            style="peer" if kernel.host else "plain",
        )
        for kernel in slowest
        if kernel.us > 0
    ]


def _spent(data: ReportData) -> float:
    return sum(kernel.us for kernel in data.profile) or 1.0


def _profile_text(kernel: KernelTime, total: float) -> str:
    parts = [time_text(kernel.us), f"{100 * kernel.us / total:.1f} %"]
    if kernel.simulated:
        parts.append("on the accelerator, simulated")
    elif kernel.host:
        parts.append("on the host")
    if kernel.times > 1:
        parts.append(f"{kernel.times:,} runs a call")
    if kernel.flops:
        rate = kernel.flops / kernel.us / 1e3
        parts.append(f"{rate:,.0f} GFLOP/s" if rate >= 100 else f"{rate:.3g} GFLOP/s")
    if kernel.roofline is not None:
        parts.append(f"{100 * kernel.roofline:.0f} % of roofline")
    return ", ".join(parts)
