"""The fields of a request as options of a command, with their types, defaults and help texts.

Read `takes_request`. A field that is written in several options, such as a device with its limits
and its farm, is spelled in `_SPELLINGS`.
"""

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from retune.cli.commands.farm import Certs, Scheduler, farm_device
from retune.cli.options import as_path, device_names, parse_shapes, parse_values
from retune.core.errors import InputError
from retune.core.parameters import named, parse_parameters
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.request import (
    EARLIER,
    SCHEMES,
    Group,
    Option,
    TuneRequest,
    check_values,
    options,
    refuse_earlier,
)

Given = Mapping[str, Any]
"""Values of a command's parameters, by their names in Python."""

_HIDDEN = Annotated[str | None, typer.Option(hidden=True)]
"""An option of earlier versions, which is refused."""
_GROUPS = (None, *get_args(Group)[1:])
_FOLDERS = ("out", "records", "work")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spelling:
    """How a field is written: by which parameters beside its own, and what they say together."""

    read: Callable[[Given, str], object]
    """Value of the field; the second argument is the option's own name, such as `--quantize`."""
    kind: Any = str
    others: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Name -> annotation."""
    flag: str = ""
    note: str = ""
    """Text after the field's help."""
    group: Group = ""
    """Of the other parameters, where they are in another group than the field."""


def takes_request(
    *names: str, flags: Mapping[str, str] | None = None, **defaults: object
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorates a command whose first parameter is a request: its fields are options instead.

    `names` are the fields that are options, and those of earlier versions that are refused by what
    to do instead; without any, all are. The other fields have their defaults, and a command without
    `out` writes nothing there. `flags` and `defaults` are those that differ from the field's own.
    """
    known = {name: each for name, each in options().items() if not names or name in names}
    flags = flags or {}

    def decorate(body: Callable[..., None]) -> Callable[..., None]:
        declared = list(inspect.signature(body).parameters.values())[1:]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in declared]
        asked = [each for option in known.values() for each in _parameters(option, flags, defaults)]
        asked.sort(key=lambda each: _GROUPS.index(each.annotation.__metadata__[0].rich_help_panel))
        earlier = [name for name in EARLIER if not names or name in names]
        refused = [_parameter(name, _HIDDEN, None) for name in earlier]

        def command(**given: Any) -> None:
            values = {each.name: given.pop(each.name) for each in (*asked, *refused)}
            refuse_earlier({name: values[name] for name in earlier}, _flag)
            body(_request(values, known, flags), **given)

        made: Any = command
        made.__name__, made.__doc__ = body.__name__, body.__doc__
        made.__signature__ = inspect.Signature([*asked, *refused, *own])
        return command

    return decorate


def _request(values: Given, known: Mapping[str, Option], flags: Mapping[str, str]) -> TuneRequest:
    """The request that the options ask for. Raises: InputError."""
    read: dict[str, Any] = {"out": ""}
    for name in known:
        spelled = _SPELLINGS.get(name)
        flag = flags.get(name, _flag(name))
        read[name] = spelled.read(values, flag) if spelled else values[name]
    made = TuneRequest(**read)
    check_values(made)
    return made


def _parameters(
    option: Option, flags: Mapping[str, str], defaults: Mapping[str, object]
) -> list[inspect.Parameter]:
    name, spelled = option.name, _SPELLINGS.get(option.name)
    shown: dict[str, Any] = {"rich_help_panel": option.group or None}
    if option.choices:
        shown["autocompletion"] = lambda: list(option.choices)
    elif name == "device":
        shown["autocompletion"] = device_names
    kind = spelled.kind if spelled else option.kind if option.kind in (int, float) else str
    default = defaults.get(name, option.default)
    if name == "model":
        info: Any = typer.Argument(help=option.help, metavar="MODEL")
    elif name in _FOLDERS:
        kind, info = Path, typer.Option(help=option.help, parser=as_path, metavar="PATH", **shown)
    else:
        flag = (spelled.flag if spelled else None) or flags.get(name)
        text = f"{option.help} {spelled.note}" if spelled else option.help
        info = typer.Option(*([flag] if flag else []), help=text.rstrip(), **shown)
    first = _parameter(name, Annotated[kind | None if default is None else kind, info], default)
    others = spelled.others if spelled else {}
    group = (spelled.group if spelled else None) or option.group
    return [first, *(_parameter(o, _grouped(hint, group), None) for o, hint in others.items())]


def _grouped(hint: Any, group: Group) -> Any:
    """The annotation of an option, shown in that group."""
    info = copy(hint.__metadata__[0])
    info.rich_help_panel = group or None
    return Annotated[hint.__origin__, info]


def _parameter(name: str, hint: Any, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        annotation=hint,
        default=inspect.Parameter.empty if default is ... else default,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _device(given: Given, _flag: str) -> str:
    name = named(given["device"], parse_parameters(given["device_param"] or ()))
    return farm_device(name, given["scheduler"] or "", given["certs"])


_QUANTIZATION: Mapping[str, Any] = {
    "ranges": Annotated[
        str | None,
        typer.Option(
            help="Ranges of activations: minmax, percentile, kl, mse, global_scale.",
            show_default="minmax",
        ),
    ],
    "weights": Annotated[
        str | None,
        typer.Option(help="Granularity of weight scales: channel, tensor.", show_default="channel"),
    ],
    "weight_bits": Annotated[
        int | None,
        typer.Option(help="Bits of weights: 7, 8.", show_default="what is faster on the device"),
    ],
    "activations": Annotated[
        str | None,
        typer.Option(
            help="Type of activations: uint8 with a zero point, or int8.",
            show_default="uint8, or what the device multiplies",
        ),
    ],
    "global_scale": Annotated[
        float | None,
        typer.Option(
            help="Largest magnitude of every activation, for ranges global_scale.",
            show_default="8",
        ),
    ],
    "bias_correction": Annotated[
        bool | None,
        typer.Option(
            "--bias-correction/--no-bias-correction",
            help="Bias correction: biases make up for the mean error of each channel.",
            show_default="on",
        ),
    ],
    "skip": Annotated[
        list[str] | None,
        typer.Option(
            help="Nodes that stay in floats: an output's name, an operator, or #N for convolution "
            "N, counted from 0. Repeatable."
        ),
    ],
}
_FIELDS = {"ranges": "method"}
"""Option -> field of QuantizeSettings, where they differ."""
_OF_SCHEME = ("scheme", "method", "weights", "activations", "pools_of_codes")
"""What a scheme's name says."""


def settings_of(given: Given, flag: str) -> QuantizeSettings | None:
    """What the options of quantization ask for; None for `none`. Raises: InputError."""
    scheme, names = given["quantize"] or "none", given["skip"] or []
    if scheme not in SCHEMES:
        raise InputError(f"{flag} {scheme}: expected {', '.join(SCHEMES)}, got {scheme!r}")
    chosen = {
        _FIELDS.get(name, name): value
        for name in _QUANTIZATION
        if name != "skip" and (value := given[name]) is not None
    }
    start = SCHEMES[scheme]
    if start is None:
        if chosen or names:
            raise InputError(
                f"{flag} none: expected no options of quantization, got "
                f"{', '.join([*chosen, *names])}; leave them out, or ask for int8 or power2"
            )
        return None
    method = chosen.get("method", start.method)
    if "global_scale" in chosen and method != "global_scale":
        raise InputError(f"--global-scale: expected --ranges global_scale beside it, got {method}")
    chosen["skip_conv_layers"] = tuple(_number(name) for name in names if name.startswith("#"))
    chosen["skip"] = tuple(name for name in names if not name.startswith("#"))
    return QuantizeSettings(**{name: getattr(start, name) for name in _OF_SCHEME} | chosen)


def _number(name: str) -> int:
    if not name[1:].isdigit():
        raise InputError(f"--skip {name}: expected # and a number from 0, such as #0")
    return int(name[1:])


_SPELLINGS: Mapping[str, _Spelling] = {
    "shapes": _Spelling(
        read=lambda given, _: parse_shapes(given["shapes"]),
        kind=list[str],
        flag="--shape",
        note="Write name=1,3,224,224. Repeatable.",
    ),
    "values": _Spelling(
        read=lambda given, _: parse_values(given["values"]),
        kind=list[str],
        flag="--value",
        note="Write name=1..64, name=16000, or name=8..128,8..128 for each element. Repeatable.",
    ),
    "states": _Spelling(
        read=lambda given, _: tuple(given["states"] or ()),
        kind=list[str],
        flag="--state",
        note="Repeatable.",
    ),
    "device": _Spelling(
        read=_device,
        group="Device limits and farm",
        others={
            "device_param": Annotated[
                list[str] | None,
                typer.Option(
                    "--device-param",
                    help="Limit in place of the device's: max_local_bytes=32768. Repeatable.",
                ),
            ],
            "scheduler": Scheduler,
            "certs": Certs,
        },
    ),
    "quantize": _Spelling(read=settings_of, others=_QUANTIZATION),
}
