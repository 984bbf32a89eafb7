"""Self-contained HTML pages: of a run `render(ReportData(...))`, of a night `render_night`."""

from retune.report.data import (
    Curve,
    KernelShare,
    LatencyBar,
    LayoutStep,
    QuantizedLayer,
    ReportData,
    ReportLayouts,
    ReportTask,
    Verification,
)
from retune.report.html import render
from retune.report.night import FleetRow, NightPage, render_night

__all__ = [
    "Curve",
    "FleetRow",
    "KernelShare",
    "LatencyBar",
    "LayoutStep",
    "NightPage",
    "QuantizedLayer",
    "ReportData",
    "ReportLayouts",
    "ReportTask",
    "Verification",
    "render",
    "render_night",
]
