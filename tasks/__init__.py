"""The stages as Prefect tasks: one file for each, in the order of the chain.

import_network, quantize, precision, extract, tune, layout, select, compile_bundle, verify,
benchmark, report, promote; and for nights plan, champion, retrain, compact. TASKS holds each under
its stage, as `AsTasks` wants them.
"""

from retune.prefect.stage_task import TASKS
from tasks import (
    benchmark,
    champion,
    compact,
    compile_bundle,
    extract,
    import_network,
    layout,
    plan,
    precision,
    promote,
    quantize,
    report,
    retrain,
    select,
    tune,
    verify,
)

__all__ = [
    "TASKS",
    "benchmark",
    "champion",
    "compact",
    "compile_bundle",
    "extract",
    "import_network",
    "layout",
    "plan",
    "precision",
    "promote",
    "quantize",
    "report",
    "retrain",
    "select",
    "tune",
    "verify",
]
