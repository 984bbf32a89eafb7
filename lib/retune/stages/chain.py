"""The order of the stages, written once: from a request to a published bundle.

Read `run_chain`. What calls a stage is passed in: this process does, or Prefect, which makes a task
run of each call. A new stage is one line here, beside its own file.
"""

from dataclasses import replace

from retune.stages.calling import Caller
from retune.stages.delivery import stage_bench, stage_compile, stage_report, stage_verify
from retune.stages.manifest import FinishedRun, TuneRequest, TuneResult
from retune.stages.network import stage_extract, stage_import
from retune.stages.request import check_request
from retune.stages.selection import stage_select
from retune.stages.settling import stage_settle
from retune.stages.summary import check_verified, event_of, summarize
from retune.stages.tuning import join_searches, stage_finalists, stage_search
from retune.stages.watch import tell


def run_chain(request: TuneRequest, by: Caller) -> TuneResult:
    """All stages of a request. Raises: as `retune.api.tune_network` does."""
    check_request(request)
    network = by.call(stage_import, request)
    tell(event_of(network))
    tasks = by.call(stage_extract, request, network)
    tell(event_of(tasks))
    wanted = [(request, network, tasks, entry.key) for entry in tasks.tasks if entry.tunable]
    searched = join_searches(request, tasks, by.together(stage_search, wanted))
    finalists = by.call(stage_finalists, request, network, searched)
    chosen = by.call(stage_select, request, tasks, finalists)
    settled = by.call(stage_settle, request, network, tasks, chosen)
    tell(event_of(settled))
    nothing = replace(settled.selection, best=())
    untuned = by.call(stage_compile, request, network, tasks, nothing, "untuned")
    tuned = by.call(stage_compile, request, network, tasks, settled.selection, "tuned")
    tell(event_of(tuned))
    verified = by.call(stage_verify, request, network, tuned)
    check_verified(tuned, verified)
    bench = by.call(stage_bench, request, network, untuned, tuned)
    finished = FinishedRun(
        network=network,
        tasks=tasks,
        searched=searched,
        settled=settled,
        tuned=tuned,
        verified=verified,
        bench=bench,
    )
    return summarize(request, finished, by.call(stage_report, request, finished))
