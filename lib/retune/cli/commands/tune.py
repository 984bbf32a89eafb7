"""`retune tune`: the whole way from a model to a verified bundle."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.interrupt import ctrl_c_ends_measuring
from retune.cli.options import Json, Quiet, Verbose
from retune.cli.progress import progress_on_stderr
from retune.cli.request import takes_request
from retune.core.errors import InputError
from retune.core.names import check_model_file
from retune.core.quantities import counted
from retune.core.target import model_of
from retune.pipeline.request import RANDOM, TuneRequest, check_request
from retune.pipeline.results import SlowerThanPeer, TuneResult
from retune.pipeline.rows import latency_lines, match_rows, result_data, task_rows

NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run in plain Python, without a flow.")
]


@takes_request()
def tune(
    request: TuneRequest,
    no_prefect: NoPrefect = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Tune a network: a verified bundle and a report.

    Candidates are measured, the best compiled, verified, and compared with others.
    """
    if request.trials is not None and request.minutes is not None and request.effort != "quick":
        first = "--effort none" if request.effort == "none" else "--trials"  # which has no trials
        raise InputError(f"{first} and --minutes: expected one of them, got both; leave one out")
    with progress_on_stderr(verbose=verbose, quiet=quiet):
        carry_out(request, no_prefect=no_prefect, json=json)


def carry_out(request: TuneRequest, *, no_prefect: bool, json: bool) -> None:
    """The run of the request, from its start or from where it stopped, and its end on stdout."""
    check_model_file(request.model)
    check_request(request)  # before a server is started for it
    if request.calibration == RANDOM:
        say("retune: ranges of random samples are true of nothing real; use them for timing only")
    slower: SlowerThanPeer | None = None
    with ctrl_c_ends_measuring():
        try:
            result = _run(request, no_prefect)
        except SlowerThanPeer as error:
            result, slower = error.result, error
    if json:
        print_json(result_data(result))
    else:
        print_result(result)
    if slower is not None:
        raise slower


def print_result(result: TuneResult) -> None:
    """What a person wants to know at the end of a run."""
    from retune.bundle.versions import LOCK

    print_table(
        [{k: v for k, v in row.items() if k != "records"} for row in task_rows(result)],
        f"tasks of {result.model} on {model_of(result.target)}",
        optional=("op", "output", "failed", "mflop", "gflops", "total_us"),
    )
    matches = match_rows(result)
    if any(row["match"] != "miss" for row in matches):
        print_table(matches, "records before the search")
    # What was measured, and the times at the sizes that occur most, are said by the conclusion.
    if statuses := ", ".join(f"{count} {status}" for status, count in result.statuses):
        print_line(f"outcomes  {statuses}; {result.reason}")
    for number, line in enumerate(latency_lines(result) if result.sizes else ()):
        print_line(f"{'latency' if number == 0 else '':9} {line}")
    if not result.latency:
        print_line(f"latency   none: {model_of(result.target)} is not here to be timed")
    if result.slow:
        print_line(f"slow      {result.slow}")
    _print_accuracy(result)
    if result.precision:
        print_line(f"precision {result.precision}")
    print_line(
        f"layers    largest error of a strategy: {result.largest_error} (of a layer's range; "
        f"--max-error allows {result.max_error:g})"
    )
    print_line(f"check     {result.settled}")
    if result.published is not None:
        print_line(
            f"published {'yes' if result.published.promoted else 'no'}: {result.published.why}"
        )
    for task, why in result.failed:
        print_line(f"failed    the search of {task}, which has its default schedule: {why}")
    print_line(f"bundle    {result.module}")
    print_line(f"report    {result.report}")
    print_line(f"lock      {Path(result.module).with_name(LOCK)}")
    print_line(f"records   {result.records}")
    for line in ("", *result.conclusion) if result.conclusion else ():
        print_line(line)


def _print_accuracy(result: TuneResult) -> None:
    """How far the bundle's outputs are from the oracle's."""
    verified = result.verified
    print_line(
        f"deviation at most {verified.max_abs:.2e}, {verified.max_rel:.1e} of the output's range, "
        f"from {verified.oracle} ({counted(verified.samples, 'sample')})"
    )
    if verified.decision:
        print_line(f"          {verified.decision}")
    if verified.top1 is not None:
        print_line(f"top-1     {100 * verified.top1:.1f}% of the rows as {verified.oracle}")
    for note in verified.notes:
        print_line(f"note      {note}")
    if verified.by_parts:
        print_line("          part by part, as results of host steps or int8 jump at rounding")


def _run(request: TuneRequest, no_prefect: bool) -> TuneResult:
    if no_prefect or find_spec("prefect") is None:
        if not no_prefect:
            say("retune: prefect is not installed; running without a flow")
        from retune.pipeline.calling import InProcess
        from retune.pipeline.chain import run_chain

        return run_chain(request, InProcess())
    from retune.pipeline.network import stage_import
    from retune.pipeline.sizes import usual_request
    from retune.prefect.launch import run_flow

    # A server takes seconds to start, and a model that cannot be used should be answered at
    # once. The flow finds the output of the stage, and the network in this process's memory.
    stage_import(usual_request(request))
    return run_flow(lambda: _in_flow(request))


def _in_flow(request: TuneRequest) -> TuneResult:
    from flows.tune_network import parameters_of, tune_network

    return cast(TuneResult, tune_network(**parameters_of(request)))
