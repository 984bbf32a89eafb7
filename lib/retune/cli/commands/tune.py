"""`retune tune`: the whole way from a model to a verified bundle."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, cast

import typer

from retune.cli.commands.farm import Certs, Scheduler, farm_device
from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.interrupt import ctrl_c_ends_measuring
from retune.cli.options import (
    Json,
    Layout,
    LayoutSolver,
    Model,
    Records,
    ShapeList,
    check_model,
    parse_layout,
    parse_shapes,
    place,
    sorted_shapes,
)
from retune.cli.progress import progress_on_stderr
from retune.cli.quantizing import (
    AccuracyDrop,
    Activations,
    BiasCorrection,
    Calibration,
    GlobalScale,
    RandomCalibration,
    RangeMethod,
    Skip,
    WeightBits,
    Weights,
    calibration_of,
    settings_of,
)
from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.parameters import named, parse_parameters
from retune.core.quantities import counted
from retune.core.target import model_of
from retune.pipeline.manifest import Publish, TuneRequest
from retune.pipeline.results import TuneResult
from retune.pipeline.rows import latency_lines, result_data, task_rows
from retune.search.defaults import DEFAULT_ALLOCATOR, DEFAULT_MAX_ERROR, DEFAULT_TUNER

DEFAULT_MINUTES = 10.0

Tuner = Annotated[
    str, typer.Option(help="How candidates are proposed: evolutionary, xgb, ga, random, grid.")
]
Allocator = Annotated[
    str, typer.Option(help="Task scheduler: gradient, round-robin or sequential.")
]
Patience = Annotated[
    int, typer.Option(help="End a task after so many trials without gain; 0: never.")
]
MaxError = Annotated[
    float,
    typer.Option(
        help="Largest error of a layer, as a part of its output's range; 0: only direct "
        "convolutions."
    ),
]
NoPrefect = Annotated[
    bool, typer.Option("--no-prefect", help="Run in plain Python, without a flow.")
]


PublishWhen = Annotated[
    str, typer.Option(help="When the bundle takes the published one's place: always, or if faster.")
]
DeviceParams = Annotated[
    list[str] | None,
    typer.Option(
        "--device-param",
        help="A limit in place of the device's: max_local_bytes=32768. Repeatable.",
    ),
]
Campaign = Annotated[
    str, typer.Option(help="Search on where the same command without it would be done already.")
]


def tune(
    model: Model,
    out: Annotated[
        Path,
        typer.Option(help="Folder for the bundle and the report.", parser=place, metavar="PATH"),
    ],
    device: Annotated[
        str,
        typer.Option(
            help="A device or profile of `retune devices`, or farm:KEY for boards of a farm."
        ),
    ] = "pocl",
    device_param: DeviceParams = None,
    scheduler: Scheduler = "",
    certs: Certs = None,
    trials: Annotated[
        int | None, typer.Option(help="Measurements; 0 compiles with what is known.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Time for measuring.", show_default="10")
    ] = None,
    tuner: Tuner = DEFAULT_TUNER,
    allocator: Allocator = DEFAULT_ALLOCATOR,
    patience: Patience = 0,
    seed: Annotated[int, typer.Option(help="The same seed proposes the same candidates.")] = 0,
    shape: ShapeList = None,
    records: Records = None,
    layout: Layout = "NHWC",
    layout_solver: LayoutSolver = "",
    max_error: MaxError = DEFAULT_MAX_ERROR,
    quantize: Annotated[
        str, typer.Option(help="Tune it as a network of integers: int8, power2; or none.")
    ] = "none",
    calibration: Calibration = None,
    random_calibration: RandomCalibration = False,
    ranges: RangeMethod = None,
    weights: Weights = None,
    weight_bits: WeightBits = None,
    activations: Activations = None,
    global_scale: GlobalScale = None,
    bias_correction: BiasCorrection = None,
    skip: Skip = None,
    accuracy_drop: AccuracyDrop = None,
    publish: PublishWhen = "always",
    campaign: Campaign = "",
    no_prefect: NoPrefect = False,
    json: Json = False,
) -> None:
    """Tune a network: a verified bundle and a report.

    Candidates are measured, the best compiled, verified, and compared with others.
    """
    del layout_solver  # refused
    request = TuneRequest(
        model=model,
        out=str(out),
        records=str(records or records_root()),
        work=str(cache_root()),
        device=farm_device(named(device, parse_parameters(device_param or ())), scheduler, certs),
        trials=trials,
        minutes=_minutes(trials, minutes),
        tuner=tuner,
        allocator=allocator,
        patience=patience,
        seed=seed,
        shapes=sorted_shapes(parse_shapes(shape)),
        layout=parse_layout(layout),
        max_error=max_error,
        quantize=settings_of(
            quantize,
            ranges=ranges,
            weights=weights,
            weight_bits=weight_bits,
            activations=activations,
            global_scale=global_scale,
            bias_correction=bias_correction,
            skip=skip,
        ),
        calibration=calibration_of(calibration, random=random_calibration),
        accuracy_drop=accuracy_drop,
        publish=_publish(publish),
        campaign=campaign,
    )
    carry_out(request, no_prefect=no_prefect, json=json)


def carry_out(request: TuneRequest, *, no_prefect: bool, json: bool) -> None:
    """The run of the request, from its start or from where it stopped, and its end on stdout."""
    check_model(request.model)
    _check(request)
    if request.calibration == calibration_of(None, random=True):
        say("retune: ranges of random samples are true of nothing real; use them for timing only")
    with progress_on_stderr(), ctrl_c_ends_measuring():
        result = _run(request, no_prefect)
    if json:
        print_json(result_data(result))
    else:
        print_result(result)


def print_result(result: TuneResult) -> None:
    """What a person wants to know at the end of a run."""
    print_table(task_rows(result), f"tasks of {result.model} on {model_of(result.target)}")
    statuses = ", ".join(f"{count} {status}" for status, count in result.statuses)
    measured = f"{counted(result.trials, 'trial')} in {result.seconds:.0f} s: {statuses}"
    print_line(f"measured  {measured if statuses else 'nothing'}; {result.reason}")
    for number, line in enumerate(latency_lines(result)):
        print_line(f"{'latency' if number == 0 else '':9} {line}")
    if not result.latency:
        print_line(f"latency   none: {model_of(result.target)} is not here to be timed")
    verified = result.verified
    print_line(
        f"deviation at most {verified.max_abs:.2e}, {verified.max_rel:.1e} of the output's range, "
        f"from {verified.oracle} ({counted(verified.samples, 'sample')})"
    )
    if verified.by_parts:
        print_line("          part by part, as results of host steps jump at rounding")
    print_line(
        f"layers    {result.max_error:g} of a layer's range allowed, {result.largest_error} used"
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
    print_line(f"records   {result.records}")


def _run(request: TuneRequest, no_prefect: bool) -> TuneResult:
    if no_prefect or find_spec("prefect") is None:
        if not no_prefect:
            say("retune: prefect is not installed; running without a flow")
        from retune.pipeline.calling import InProcess
        from retune.pipeline.chain import run_chain

        return run_chain(request, InProcess())
    from retune.pipeline.network import stage_import
    from retune.prefect.launch import run_flow

    # A server takes seconds to start, and a model that cannot be used should be answered at
    # once. The flow finds the output of the stage, and the network in this process's memory.
    stage_import(request)
    return run_flow(lambda: _in_flow(request))


def _in_flow(request: TuneRequest) -> TuneResult:
    from flows.tune_network import parameters_of, tune_network

    return cast(TuneResult, tune_network(**parameters_of(request)))


def _check(request: TuneRequest) -> None:
    """Before a server is started for it. Raises: InputError."""
    from retune.pipeline.request import check_request

    check_request(request)


def _publish(value: str) -> Publish:
    match value:
        case "always" | "faster":
            return value
        case _:
            raise InputError(f"--publish {value}: expected always or faster, got {value!r}")


def _minutes(trials: int | None, minutes: float | None) -> float | None:
    if trials is not None and minutes is not None:
        raise InputError("--trials and --minutes: expected one of them, got both; leave one out")
    return DEFAULT_MINUTES if trials is None and minutes is None else minutes
