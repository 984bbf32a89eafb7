"""`retune quantize`: what a network loses by computing with integers."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.console import print_json, print_line, print_table, rounded, say
from retune.cli.options import Json
from retune.cli.request import takes_request
from retune.core.dims import values_text
from retune.core.errors import InputError
from retune.core.files import check_file
from retune.core.names import check_model_file
from retune.core.quantities import counted
from retune.core.replacing import replacing
from retune.pipeline.request import RANDOM, TuneRequest

if TYPE_CHECKING:
    from retune.core.results import OutputQuality
    from retune.pipeline.manifest import QuantizeManifest

QUALITY = (
    "scheme", "weight_bits", "samples", "random", "left", "layers", "calibration", "held_out",
)  # fmt: skip


@takes_request(
    *("model", "device", "quantize", "calibration", "accuracy_drop", "shapes", "values", "states"),
    flags={"quantize": "--scheme"},
    quantize="int8",
)
def quantize(
    request: TuneRequest,
    out: Annotated[Path | None, typer.Option(help="Recipe file, for the ranges.")] = None,
    qdq: Annotated[
        Path | None,
        typer.Option(help="ONNX file for other programs, with quantize and dequantize nodes."),
    ] = None,
    json: Json = False,
) -> None:
    """Report the accuracy loss of quantization.

    The network is quantized on samples; layers and the whole are compared with the float network.
    """
    check_model_file(request.model)
    if request.quantize is None:
        raise InputError("--scheme none: expected int8 or power2, got 'none'")
    from retune.pipeline.network import stage_import
    from retune.pipeline.quantization import check_quantization, stage_quantize, write_qdq
    from retune.pipeline.sizes import usual_request, usual_values

    check_quantization(request)
    for what, path in (("--out", out), ("--qdq", qdq)):
        if path is not None:
            check_file(what, path)
    if request.calibration == RANDOM:
        say("retune: ranges of random samples are true of nothing real; use them for timing only")
    if values := usual_values(request):
        sizes = values_text(values)
        say(f"retune: quantized at {sizes}, which occurs most")
        request = usual_request(request)
    network = stage_import(request)
    made = stage_quantize(request, network)
    if out is not None:
        with replacing(out) as stream:
            stream.write(made.file(made.recipe).read_bytes())
    if qdq is not None:
        write_qdq(request, network, made, qdq)
    if json:
        print_json(quality_data(made))
    else:
        print_quality(made)


def quality_data(made: "QuantizeManifest") -> dict[str, Any]:
    """The report as plain data."""
    return {name: getattr(made, name) for name in QUALITY}


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
