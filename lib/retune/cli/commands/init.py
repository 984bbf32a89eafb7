"""`retune init`: a nightly file to begin with."""

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

from retune.cli.console import print_json, print_line
from retune.cli.options import (
    MODEL_HELP,
    NIGHTLY_FILE,
    Json,
    device_names,
    parse_shapes,
)
from retune.core.errors import InputError, ShapesMissing
from retune.core.files import check_file
from retune.core.names import check_model_file, is_built_in
from retune.core.replacing import replacing

_FILE = """\
# Networks that `retune nightly` tunes, and the devices that it tunes them for. Relative paths start
# at this file. Every other key, with its default: {every_key}
out = "artifacts/fleet"      # bundles: OUT/NETWORK/DEVICE/module
minutes = {minutes:g}                 # measuring time of a night on each device
window = {{ start = {start}, end = {end}, timezone = {timezone} }}
"""
_MODEL = """
[[model]]
model = {model}{shapes}
runs_per_day = 1             # more minutes go where more runs gain
"""
_SHAPES = """
# Of inputs whose dimensions the file leaves open; "1..8" is a range:
shapes = {{ {shapes} }}"""
_DEVICE = """
[[device]]
name = {device}
"""
_EVERY_KEY = "examples/nightly.toml"


def init(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    config: Annotated[Path, typer.Option(help="File to write.")] = NIGHTLY_FILE,
    device: Annotated[
        list[str] | None,
        typer.Option(
            help="Device: one of `retune devices`. Repeatable. Default: pocl.",
            autocompletion=device_names,
        ),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=1, help="Measuring time of a night on each device, in minutes.")
    ] = 60,
    start: Annotated[str, typer.Option(help="Time at which the window opens.")] = "22:00",
    end: Annotated[str, typer.Option(help="Time at which the window closes.")] = "06:00",
    timezone: Annotated[str, typer.Option(help="Time zone of the window.")] = "UTC",
    json: Json = False,
) -> None:
    """Write a configuration file for nightly tuning.

    The file is checked as `retune nightly` checks it. A file that exists is not replaced.
    """
    for model in models:
        check_model_file(model)
    check_file("--config", config)
    if config.exists():
        raise InputError(f"--config {config}: expected a new file, got one that exists; edit it")
    text = _FILE.format(
        every_key=_EVERY_KEY,
        minutes=minutes,
        start=_quoted(start),
        end=_quoted(end),
        timezone=_quoted(timezone),
    )
    text += "".join(
        _MODEL.format(model=_quoted(_stated(model, config)), shapes=_shapes(model))
        for model in models
    )
    devices = device or ["pocl"]
    text += "".join(_DEVICE.format(device=_quoted(name)) for name in devices)
    _write_checked(config, text)
    if json:
        print_json({"config": config, "models": models, "devices": devices})
        return
    print_line(f"{config}: {', '.join(models)} on {', '.join(devices)}")
    named = f"--config {shlex.quote(str(config))}"
    print_line(f"plan      retune nightly plan {named}")
    print_line(f"now       retune nightly run {named} --now")
    print_line(f"nightly   retune nightly serve {named}")


def _write_checked(config: Path, text: str) -> None:
    """The file holds the text. Raises: InputError if it is not a configuration; nothing is left."""
    from retune.nightly.config import load_config

    with replacing(config) as stream:
        stream.write(text.encode())
    try:
        load_config(config)
    except InputError:
        config.unlink()
        raise


def _shapes(model: str) -> str:
    """The line that binds what the model leaves open; empty if that is nothing."""
    from retune.frontend.models import check_bound

    try:
        check_bound(model)
    except ShapesMissing as error:
        shapes = parse_shapes(error.options[1::2])
        listed = (f"{_quoted(name)} = {list(shape)}" for name, shape in shapes.items())
        return _SHAPES.format(shapes=", ".join(listed))
    return ""


def _stated(model: str, config: Path) -> str:
    """The model as the file names it: a path from the file's folder."""
    if is_built_in(model):
        return model
    return os.path.relpath(model, config.absolute().parent)


def _quoted(text: str) -> str:
    """A string of TOML."""
    import json

    return json.dumps(text, ensure_ascii=False)
