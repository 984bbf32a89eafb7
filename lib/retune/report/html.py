"""The report: one HTML file that needs nothing else, and no network.

Read `render`. It is a pure function of ReportData; the page's text lies in `report.html.j2`.
"""

from retune.core.results import KernelTime, Latency, TaskResult
from retune.report.data import LayoutStep, ReportData
from retune.report.layout_picture import layout_chart
from retune.report.page import page, time_text
from retune.report.svg import Bar, bar_chart, curve_chart

CURVES = 24
"""Curves shown: those of the costliest tasks."""
UNEXPECTED = 0.1
"""Of a kernel's expected time: what it may be off by."""
KERNELS = 20
"""Kernels shown in the profile: the slowest."""


def render(data: ReportData) -> str:
    """The whole report as HTML text."""
    curves = [
        {
            "task": curve.task,
            "svg": curve_chart(curve.times_us),
        }
        for curve in data.curves[:CURVES]
    ]
    return page(
        "report.html.j2",
        data=data,
        headline=_headline(data),
        tasks=[_task_row(task, _total_us(data)) for task in data.tasks],
        curves=curves,
        hidden_curves=max(0, len(data.curves) - CURVES),
        latency=bar_chart([_latency_bar(row, data) for row in data.latency], "latency"),
        failures=bar_chart(_failure_bars(data), "outcomes of measurements"),
        profile=bar_chart(_profile_bars(data), "time by kernel"),
        layouts=layout_chart(data.layouts.steps) if data.layouts else "",
        unexpected=_unexpected(data),
        hidden_kernels=max(0, len(data.profile) - KERNELS),
        on_host=any(kernel.host and not kernel.simulated for kernel in data.profile),
    )


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


def _total_us(data: ReportData) -> float:
    return sum((task.best_us or 0.0) * task.entry.weight for task in data.tasks) or 1.0


def _task_row(task: TaskResult, total_us: float) -> dict[str, object]:
    best = task.best_us
    return {
        "task": task,
        "share": 100.0 * best * task.entry.weight / total_us if best else None,
        "gain": task.default_us / best if best and task.default_us else None,
    }


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
    total = sum(kernel.us for kernel in data.profile) or 1.0
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


def _profile_text(kernel: KernelTime, total: float) -> str:
    parts = [time_text(kernel.us), f"{100 * kernel.us / total:.1f} %"]
    if kernel.simulated:
        parts.append("on the accelerator, simulated")
    elif kernel.host:
        parts.append("on the host")
    if kernel.flops:
        parts.append(f"{kernel.flops / kernel.us / 1e3:.3g} GFLOP/s")
    if kernel.roofline is not None:
        parts.append(f"{100 * kernel.roofline:.0f} % of roofline")
    return ", ".join(parts)
