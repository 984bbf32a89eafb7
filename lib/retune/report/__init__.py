"""Self-contained HTML pages: of a run `render(ReportData(...))`, of a night `render_night`."""

from retune.report.data import (
    KernelTime,
    LaidStep,
    Latency,
    LayerQuality,
    ReportCurve,
    ReportData,
    ReportLayouts,
    ReportTask,
    ReportVerification,
)
from retune.report.html import render
from retune.report.night import FleetRow, NightPage, render_night

__all__ = [
    "FleetRow",
    "KernelTime",
    "LaidStep",
    "Latency",
    "LayerQuality",
    "NightPage",
    "ReportCurve",
    "ReportData",
    "ReportLayouts",
    "ReportTask",
    "ReportVerification",
    "render",
    "render_night",
]
