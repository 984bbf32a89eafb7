"""The stages as Prefect tasks: one file for each, in the order of the chain.

import_network, extract, tune, select, compile_bundle, verify, benchmark, report; and retrain, for
cost models. TASKS holds each of them under its stage: what the flows hand to `AsTasks`.
"""

from retune_prefect.stage_task import TASKS
from tasks import (
    benchmark,
    compile_bundle,
    extract,
    import_network,
    report,
    retrain,
    select,
    tune,
    verify,
)

__all__ = [
    "TASKS",
    "benchmark",
    "compile_bundle",
    "extract",
    "import_network",
    "report",
    "retrain",
    "select",
    "tune",
    "verify",
]
