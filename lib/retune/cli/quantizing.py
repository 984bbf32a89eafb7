"""Options of quantization, which `tune` and `quantize` share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from retune.core.errors import InputError
from retune.graph.quantize.settings import POWER2, QuantizeSettings

SCHEMES = ("none", "int8", "power2")

Calibration = Annotated[
    Path | None,
    typer.Option(help="Samples of the inputs: an .npz file, or a folder of them."),
]
RandomCalibration = Annotated[
    bool,
    typer.Option("--random-calibration", help="Random samples: for timing, not for use."),
]
AccuracyDrop = Annotated[
    float | None,
    typer.Option(help="Points of agreement that may be lost; noisy layers then stay in floats."),
]
RangeMethod = Annotated[
    str | None,
    typer.Option(
        "--ranges",
        help="Ranges of activations: minmax, percentile, kl, mse, global_scale.",
        show_default="minmax",
    ),
]
Weights = Annotated[
    str | None, typer.Option(help="A scale for each channel, or tensor.", show_default="channel")
]
WeightBits = Annotated[
    int | None, typer.Option(help="7 or 8.", show_default="what the device is faster with")
]
Activations = Annotated[
    str | None,
    typer.Option(
        help="uint8 with a zero point, or int8.",
        show_default="uint8, or what the device multiplies",
    ),
]
GlobalScale = Annotated[
    float | None,
    typer.Option(
        help="Largest magnitude of every activation, for global_scale.",
        show_default="8",
    ),
]
BiasCorrection = Annotated[
    bool | None,
    typer.Option(
        "--bias-correction/--no-bias-correction",
        help="Biases make up for the mean error of each channel.",
        show_default="on",
    ),
]
Skip = Annotated[
    list[str] | None,
    typer.Option(help="What stays in floats: an output's name, an op, or #N for the N-th conv."),
]


def settings_of(
    scheme: str,
    *,
    option: str = "--quantize",
    ranges: str | None = None,
    weights: str | None = None,
    activations: str | None = None,
    weight_bits: int | None = None,
    global_scale: float | None = None,
    bias_correction: bool | None = None,
    skip: list[str] | None = None,
) -> QuantizeSettings | None:
    """What the options ask for; None for `none`. `option`: the scheme's. Raises: InputError."""
    if scheme not in SCHEMES:
        raise InputError(f"{option} {scheme}: expected {', '.join(SCHEMES)}, got {scheme!r}")
    given: dict[str, Any] = {
        "method": ranges,
        "weights": weights,
        "activations": activations,
        "weight_bits": weight_bits,
        "global_scale": global_scale,
        "bias_correction": bias_correction,
    }
    given = {name: value for name, value in given.items() if value is not None}
    names = skip or []
    if scheme == "none":
        if given or names:
            raise InputError(
                f"--quantize none: expected no options of quantization, got "
                f"{', '.join([*given, *names])}; leave them out, or ask for int8 or power2"
            )
        return None
    start = POWER2 if scheme == "power2" else QuantizeSettings()
    method = ranges or start.method
    if global_scale is not None and method != "global_scale":
        raise InputError(f"--global-scale: expected --ranges global_scale beside it, got {method}")
    numbers = tuple(_number(name) for name in names if name.startswith("#"))
    given["skip_conv_layers"] = numbers
    given["skip"] = tuple(name for name in names if not name.startswith("#"))
    own = ("scheme", "method", "weights", "activations", "pools_of_codes")
    kept = {name: getattr(start, name) for name in own}
    return QuantizeSettings(**(kept | given))


def calibration_of(path: Path | None, *, random: bool) -> str:
    """What the request has for samples. Raises: InputError where both are asked for."""
    if random and path is not None:
        raise InputError(
            "--calibration and --random-calibration: expected one of them, got both; leave one out"
        )
    return "random" if random else str(path) if path else ""


def _number(name: str) -> int:
    if not name[1:].isdigit():
        raise InputError(f"--skip {name}: expected # and a number from 0, such as #0")
    return int(name[1:])
