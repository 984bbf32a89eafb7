"""Reading the configuration of nights: `load_config`. `examples/nightly.toml` shows every key.

A file is checked whole when it is loaded, models and devices included, so that a mistake is known
before night.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from datetime import time
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.files import check_folder
from retune.core.layouts import LAYOUTS
from retune.device.simulated.board import SIMULATED
from retune.frontend.models import check_model
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.nightly.settings import (
    EVENTS,
    VARIABLE,
    WEBHOOK_TIMEOUT_S,
    DeviceConfig,
    Event,
    ModelConfig,
    NightlyConfig,
    NotifyConfig,
    RetrainConfig,
    SearchOptions,
    WebhookConfig,
    check_name,
    slug,
)
from retune.nightly.tables import Table, is_number, read_toml
from retune.nightly.window import Window, daily, firing_times, parse_window
from retune.pipeline.manifest import Shapes
from retune.pipeline.quantization import RANDOM, check_settings
from retune.search.allocate import ALLOCATORS
from retune.search.tuners import TUNERS

T = TypeVar("T")

DeviceCheck = Callable[[str], object]
"""Raises InputError, which says what devices there are, if there is none of that name."""

DEFAULT_MINUTES = 60.0
_DEFAULT_START = time(22)
_SCHEMES: Mapping[str, QuantizeSettings | None] = {
    "none": None, "int8": QuantizeSettings(), "power2": POWER2,
}  # fmt: skip
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key")


def check_device(name: str) -> None:
    """Raises: InputError naming the devices that exist. Loads OpenCL."""
    from retune.device.opening import spec_of

    spec_of(name)


_OPTION_KEYS = tuple(each.name for each in fields(SearchOptions))
_KEYS = (
    *("out", "records", "work", "minutes", "window", "cron", "keep", *_OPTION_KEYS),
    *("model", "device", "retrain", "notify"),
)
_MODEL_KEYS = (
    *("model", "name", "runs_per_day", "shapes", "devices", "minutes", *_OPTION_KEYS),
)  # fmt: skip


def load_config(path: Path, device_check: DeviceCheck = check_device) -> NightlyConfig:
    """The configuration in a TOML file; relative paths in it are relative to its folder.

    `device_check` is asked for each device. What the environment has to say is checked later, by
    `retune.nightly.notify.check_environment`: the file may be looked at where nothing is run.

    Raises: InputError naming file, table, key, what was expected, and what was found.
    """
    top = read_toml(path, _KEYS)
    folder = path.absolute().parent
    defaults = _read_options(top, SearchOptions(), folder)
    devices = _read_devices(top, folder, device_check)
    models = _read_models(top, folder, devices, defaults)
    window = _read_window(top)
    config = NightlyConfig(
        file=path,
        out=_read_folder(top, "out", folder),
        records=_read_folder(top, "records", folder) if "records" in top else records_root(),
        work=_read_folder(top, "work", folder) if "work" in top else cache_root(),
        minutes=top.number("minutes", DEFAULT_MINUTES),
        window=window,
        cron=_read_cron(top, window),
        keep=top.count("keep", 10),
        models=models,
        devices=devices,
        retrain=_read_retrain(top),
        notify=_read_notify(top),
    )
    _check_minutes(config)
    return config


def _read_folder(top: Table, key: str, folder: Path) -> Path:
    """A folder that could be written to just now."""
    path = (folder / top.text(key)).resolve()
    _within(top.where, lambda: check_folder(f"{key}:", path))
    return path


def _read_options(table: Table, defaults: SearchOptions, folder: Path) -> SearchOptions:
    """The options of the whole file or of one model; what is missing is as in `defaults`."""
    return SearchOptions(
        tuner=table.choice("tuner", tuple(TUNERS), defaults.tuner),
        allocator=table.choice("allocator", tuple(ALLOCATORS), defaults.allocator),
        patience=table.count("patience", defaults.patience),
        seed=table.count("seed", defaults.seed),
        max_error=table.number("max_error", defaults.max_error, least=0),
        layout=table.choice("layout", LAYOUTS, defaults.layout),
        samples=table.count("samples", defaults.samples, least=1),
        quantize=_read_quantize(table, defaults.quantize),
        calibration=_read_calibration(table, defaults.calibration, folder),
        accuracy_drop=table.number("accuracy_drop", least=0)
        if "accuracy_drop" in table
        else defaults.accuracy_drop,
    )


def _read_quantize(table: Table, default: QuantizeSettings | None) -> QuantizeSettings | None:
    if "quantize" not in table:
        return default
    return _SCHEMES[table.choice("quantize", tuple(_SCHEMES), "none")]


def _read_calibration(table: Table, default: str, folder: Path) -> str:
    """A file or folder of samples, relative to the configuration, or the word for random ones."""
    given = table.text("calibration", default)
    return given if given in (default, RANDOM) else str((folder / given).resolve())


def _device_of(table: Table, folder: Path) -> str:
    """The device's own name; the file of a simulated one is relative to the configuration."""
    given = table.text("device", table.text("name"))
    path = given.removeprefix(SIMULATED)
    return f"{SIMULATED}{folder / path}" if path != given else given


def _read_devices(top: Table, folder: Path, device_check: DeviceCheck) -> tuple[DeviceConfig, ...]:
    tables = top.tables("device", ("name", "device", "minutes"))
    for table in tables:
        _within(f"{table.where}: name", partial(check_name, table.text("name")))
        key = "device" if "device" in table else "name"
        _within(f"{table.where}: {key}", partial(device_check, _device_of(table, folder)))
    _check_distinct((table, table.text("name")) for table in tables)
    return tuple(
        DeviceConfig(
            name=table.text("name"),
            device=_device_of(table, folder),
            most_minutes=table.number("minutes") if "minutes" in table else None,
        )
        for table in tables
    )


def _read_models(
    top: Table, folder: Path, devices: tuple[DeviceConfig, ...], defaults: SearchOptions
) -> tuple[ModelConfig, ...]:
    tables = top.tables("model", _MODEL_KEYS)
    names = tuple(device.name for device in devices)
    models = tuple(_read_model(table, folder, names, defaults) for table in tables)
    _check_distinct((table, model.name) for table, model in zip(tables, models, strict=True))
    return models


def _read_model(
    table: Table, folder: Path, devices: tuple[str, ...], defaults: SearchOptions
) -> ModelConfig:
    given = table.text("model")
    named = given.startswith(("zoo:", "light:"))
    model = given if named else str((folder / given).resolve())
    name = table.text("name", given.partition(":")[2] if named else Path(given).stem)
    _within(f"{table.where}: name", lambda: check_name(name))
    shapes = _read_shapes(table)
    _within(f"{table.where}: model", lambda: check_model(model, dict(shapes)))
    chosen = table.texts("devices", devices)
    for device in chosen:
        if device not in devices:
            expected = f"names of [[device]] tables, which are {', '.join(devices)}"
            raise table.wrong("devices", expected, device, devices)
    if len(set(chosen)) < len(chosen):
        raise table.wrong("devices", "each device once", list(chosen))
    least, most = _read_minutes(table)
    options = _read_options(table, defaults, folder)
    if options.quantize is None:  # what is said for all networks is not for those of floats
        stated = {"calibration", "accuracy_drop"} & {*table}
        kept = {} if stated else {"calibration": "", "accuracy_drop": None}
        options = replace(options, **kept)
    _within(table.where, lambda: check_settings(**_quantization(options)))
    return ModelConfig(
        name=name,
        model=model,
        devices=chosen,
        runs_per_day=table.number("runs_per_day", 1.0),
        shapes=shapes,
        least_minutes=least,
        most_minutes=most,
        options=options,
    )


def _quantization(options: SearchOptions) -> dict[str, Any]:
    names = ("quantize", "calibration", "accuracy_drop")
    return {name: getattr(options, name) for name in names}


def _read_shapes(table: Table) -> Shapes:
    """`{ data = [1, 3, 224, 224], batch = 1 }`"""
    shapes: dict[str, tuple[int, ...]] = {}
    inner = table.table("shapes", None)
    for name in inner:
        value = inner[name]
        extents = cast(list[object], value) if isinstance(value, list) else [value]
        sizes = tuple(extent for extent in extents if type(extent) is int and extent > 0)
        if len(sizes) != len(extents):
            raise inner.wrong(name, "a shape such as [1, 3, 224, 224], or one extent", value)
        shapes[name] = sizes
    return tuple(sorted(shapes.items()))


def _read_minutes(table: Table) -> tuple[float, float | None]:
    """`minutes = 5`, or `minutes = { least = 2, most = 20 }`: the least and the most."""
    if "minutes" not in table:
        return 0.0, None
    if is_number(table["minutes"]):
        fixed = table.number("minutes")
        return fixed, fixed
    inner = table.table("minutes", ("least", "most"))
    least = inner.number("least", 0.0, least=0)
    most = inner.number("most") if "most" in inner else None
    if most is not None and most < least:
        raise inner.wrong("most", f"at least as many as `least`, which is {least:g}", most)
    return least, most


def _read_window(top: Table) -> Window | None:
    if "window" not in top:
        return None
    table = top.table("window", ("start", "end", "timezone"))
    start, end, zone = table.clock("start"), table.clock("end"), table.text("timezone", "UTC")
    return _within(table.where, lambda: parse_window(start, end, zone))


def _read_cron(top: Table, window: Window | None) -> str:
    """When nights are started: by default when the window opens. Always while it is open."""
    expression = top.text("cron", daily(window.start if window else _DEFAULT_START))
    times = _within(top.where, lambda: firing_times(expression))
    for clock in times:
        if window is not None and not window.shows(clock):
            expected = (
                f"times within the window from {window.start:%H:%M} to {window.end:%H:%M}, as "
                "nothing is begun outside"
            )
            raise top.wrong("cron", expected, f"{expression} ({clock:%H:%M})")
    return expression


def _read_retrain(top: Table) -> RetrainConfig:
    table = top.table("retrain", ("every", "minimum_records"))
    default = RetrainConfig()
    return RetrainConfig(
        every=table.count("every", default.every),
        minimum_records=table.count("minimum_records", default.minimum_records),
    )


def _read_notify(top: Table) -> NotifyConfig:
    if "notify" not in top:
        return NotifyConfig()
    table = top.table("notify", ("on", "webhook", "command", "email_block"))
    on = table.texts("on", NotifyConfig().on)
    for event in on:
        if event not in EVENTS:
            raise table.wrong("on", f"events among {', '.join(EVENTS)}", event, EVENTS)
    block = table.text("email_block", "")
    if block != slug(block):
        expected = "the name of a Prefect block: lower-case letters, digits and dashes"
        raise table.wrong("email_block", expected, block)
    config = NotifyConfig(
        on=cast(tuple[Event, ...], on),
        webhook=_read_webhook(table) if "webhook" in table else None,
        command=table.texts("command", ()),
        email_block=block,
    )
    if not (config.webhook or config.command or config.email_block):
        raise InputError(f"{table.where}: expected webhook, command or email_block, got none")
    return config


def _read_webhook(notify: Table) -> WebhookConfig:
    """Address and headers are never shown: somebody may have written a secret there."""
    table = notify.table("webhook", ("url", "headers", "timeout_s"))
    url = table.text("url")
    if not url.startswith(("https://", "http://", "${")):
        expected = "an address that begins with https:// or http://"
        raise InputError(f"{table.where}: url: expected {expected}, got another text")
    _check_variables(f"{table.where}: url", url)
    headers = table.table("headers", None)
    pairs: list[tuple[str, str]] = []
    for name in headers:
        value = headers[name]
        where = f"{headers.where}: {name}"
        if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise InputError(f"{where}: expected the name of a header and one line of text")
        _check_variables(where, value)
        if name.lower() in _SECRET_HEADERS and not VARIABLE.search(value):
            raise InputError(
                f"{where}: expected a variable of the environment such as "
                '"Bearer ${NIGHTLY_TOKEN}", got a text; this file is no place for secrets'
            )
        pairs.append((name, value))
    timeout_s = table.number("timeout_s", WEBHOOK_TIMEOUT_S)
    return WebhookConfig(url=url, headers=tuple(pairs), timeout_s=timeout_s)


def _check_variables(where: str, text: str) -> None:
    if "${" in VARIABLE.sub("", text):
        raise InputError(f"{where}: expected variables written as ${{NAME}}, got another `${{`")


def _check_minutes(config: NightlyConfig) -> None:
    """The minutes that are promised to networks and devices can all be had in one night."""
    least = sum(model.least_minutes for model, _ in config.pairs)
    if least > config.minutes:
        raise InputError(
            f"{config.file}: minutes: expected at least {least:g}, which [[model]] tables ask for "
            f"on all their devices, got {config.minutes:g}"
        )
    night = config.window.minutes if config.window else math.inf
    if config.minutes > night * len(config.devices):
        raise InputError(
            f"{config.file}: minutes: expected at most {night:g} for each of "
            f"{len(config.devices)} devices, as the window is no longer, got {config.minutes:g}"
        )
    for device in config.devices:
        asked = sum(model.least_minutes for model, on in config.pairs if on == device)
        most = min(night, device.most_minutes or night)
        if asked > most:
            raise InputError(
                f"{config.file}: [[device]] {device.name}: minutes: expected at least {asked:g}, "
                f"which [[model]] tables ask for on it, got {most:g}"
            )


def _check_distinct(named: Iterable[tuple[Table, str]]) -> None:
    """No two names are the same, nor become the same key of an artifact."""
    seen: dict[str, str] = {}
    for table, name in named:
        if slug(name) in seen:
            raise table.wrong("name", f"another name than {seen[slug(name)]!r} above it", name)
        seen[slug(name)] = name


def _within(where: str, check: Callable[[], T]) -> T:
    """What `check` returns; its InputError says where in the file the mistake is."""
    try:
        return check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
