"""`retune quantize`: what a network loses by computing with integers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.commands.farm import Certs, Scheduler, farm_device
from retune.cli.console import print_json, print_line, print_table, rounded, say
from retune.cli.options import (
    Json,
    Model,
    ShapeList,
    check_model,
    parse_shapes,
    sorted_shapes,
)
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
from retune.core.files import check_file
from retune.core.quantities import counted
from retune.core.replacing import replacing

if TYPE_CHECKING:
    from retune.pipeline.manifest import OutputQuality, QuantizeManifest

_SHOWN = (
    "scheme", "weight_bits", "samples", "random", "left", "layers", "calibration", "held_out",
)  # fmt: skip


def quantize(
    model: Model,
    scheme: Annotated[str, typer.Option(help="int8, or power2: shifts alone rescale.")] = "int8",
    device: Annotated[str, typer.Option(help="The device that it is for.")] = "pocl",
    scheduler: Scheduler = "",
    certs: Certs = None,
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
    out: Annotated[Path | None, typer.Option(help="File for the recipe: its ranges.")] = None,
    qdq: Annotated[
        Path | None, typer.Option(help="ONNX file for other programs: floats and their codes.")
    ] = None,
    shape: ShapeList = None,
    json: Json = False,
) -> None:
    """Say what a network loses by computing with integers.

    It is quantized on samples; layers and the whole are compared with the float network.
    """
    check_model(model)
    settings = settings_of(
        scheme,
        option="--scheme",
        ranges=ranges,
        weights=weights,
        weight_bits=weight_bits,
        activations=activations,
        global_scale=global_scale,
        bias_correction=bias_correction,
        skip=skip,
    )
    if settings is None:
        raise InputError("--scheme none: expected int8 or power2, got 'none'")
    from retune.pipeline.manifest import TuneRequest
    from retune.pipeline.network import stage_import
    from retune.pipeline.quantization import check_quantization, stage_quantize, write_qdq

    request = TuneRequest(
        model=model,
        out="",
        records=str(records_root()),
        work=str(cache_root()),
        device=farm_device(device, scheduler, certs),
        shapes=sorted_shapes(parse_shapes(shape)),
        quantize=settings,
        calibration=calibration_of(calibration, random=random_calibration),
        accuracy_drop=accuracy_drop,
    )
    check_quantization(request)
    for what, path in (("--out", out), ("--qdq", qdq)):
        if path is not None:
            check_file(what, path)
    if random_calibration:
        say("retune: ranges of random samples are true of nothing real; use them for timing only")
    network = stage_import(request)
    made = stage_quantize(request, network)
    if out is not None:
        with replacing(out) as stream:
            stream.write(made.file(made.recipe).read_bytes())
    if qdq is not None:
        write_qdq(network, made, qdq)
    if json:
        print_json(quality_data(made))
    else:
        print_quality(made)


def quality_data(made: "QuantizeManifest") -> dict[str, Any]:
    """The report as plain data."""
    from dataclasses import asdict

    known = asdict(made)
    return {name: known[name] for name in _SHOWN}


def print_quality(made: "QuantizeManifest") -> None:
    """The report as tables."""
    layers = [
        {
            "layer": row.layer,
            "op": row.op,
            "signal to noise, dB": row.decibels,
            "saturated, %": 100 * row.saturation,
        }
        for row in made.layers
    ]
    weights = f"{made.weight_bits} bits of weights"
    print_table(rounded(layers), f"layers of {made.scheme}, {weights}, on samples held out")
    rows = [_row("calibration", row) for row in made.calibration]
    rows += [_row("held out", row) for row in made.held_out]
    print_table(
        rounded(rows), f"agreement with the float network, {counted(made.samples, 'sample')}"
    )
    for layer in made.left:
        print_line(f"left in floats: {layer}")


def _row(samples: str, row: "OutputQuality") -> dict[str, Any]:
    return {
        "samples": samples,
        "output": row.output,
        "cosine": f"{row.cosine:.5f}",
        "same top-1, %": None if row.top1 is None else 100 * row.top1,
    }
