"""The self-contained HTML report of a tuning run: `render(ReportData(...))`."""

from retune.report.data import (
    Curve,
    KernelShare,
    LatencyBar,
    ReportData,
    ReportTask,
    Verification,
)
from retune.report.html import render

__all__ = [
    "Curve",
    "KernelShare",
    "LatencyBar",
    "ReportData",
    "ReportTask",
    "Verification",
    "render",
]
