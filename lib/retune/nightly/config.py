"""The configuration of nights: `load_config` reads it. `examples/nightly.toml` shows every key.

Each class is a table of the file, and the file is checked whole when it is loaded. Whether models
and devices are there is another question, since that may differ from night to night: see
`member_faults`. Keys for how networks are tuned are the fields of a request, for the whole file or
for one model; those for how candidates are measured may also be a device's.
"""

import math
import re
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass, replace
from datetime import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast
from zoneinfo import ZoneInfo

from retune.core.config import cache_root, records_root
from retune.core.errors import InputError, RetuneError, reason_of, sentence
from retune.core.files import check_folder
from retune.core.names import check_name, is_built_in, model_name, slug
from retune.core.schema import (
    Above0,
    AtLeast0,
    Count,
    Meta,
    Positive,
    Text,
    did_you_mean,
    read_toml,
)
from retune.device.simulated.accelerator import config_file
from retune.device.simulated.board import SIMULATED
from retune.frontend.models import check_model
from retune.nightly.window import TimeWindow, daily, firing_times, parse_window
from retune.pipeline.quantization import check_settings
from retune.pipeline.request import (
    RANDOM,
    SCHEMES,
    TuneRequest,
    check_samples,
    options,
    quantize_settings,
    refuse_earlier,
)

T = TypeVar("T")

DeviceCheck = Callable[[str], object]
"""Raises InputError, which says what devices there are, if there is none of that name."""

Event = Literal["failure", "promotion", "regression", "hardware", "idle", "always"]
"""What somebody wants to hear of: something failed, a bundle was promoted, a night in which nothing
was tuned, every night."""

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a text: `${NAME}`."""

OWN_KEYS = ("model", "out", "records", "work", "device", "minutes", "shapes", "values")
"""Fields of a request that are keys of one of the tables, declared there."""
DECIDED = ("publish", "campaign")
"""Fields of a request that are not keys: a night publishes what is faster, and is a campaign of its
own."""
OPTION_KEYS = tuple(name for name in options() if name not in (*OWN_KEYS, *DECIDED))
"""Fields of a request that are keys of the whole file and of a model."""
MEASURING_KEYS = (
    "trials_per_task", "repeats", "min_repeat_ms", "cooldown", "build_deadline", "run_deadline",
)  # fmt: skip
"""Those of them that are keys of a device, too, and count there before all others: a weak board
takes longer, whatever it is asked for."""

_DEFAULT_START = time(22)
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SECRET_HEADERS = ("authorization", "proxy-authorization", "cookie", "x-api-key")


def _with_options(*names: str) -> Callable[[type[T]], type[T]]:
    """Decorates a table: these options of a request are keys too, None where they are left out."""

    def decorate(kind: type[T]) -> type[T]:
        forms: dict[str, Any] = {"quantize": Literal[tuple(SCHEMES)] | dict[str, Any]}  # pyrefly: ignore[invalid-literal]
        known = options()
        keys = [(n, forms.get(n, known[n].hint) | None, field(default=None)) for n in names]
        made = make_dataclass(kind.__name__, keys, bases=(kind,), frozen=True, kw_only=True)
        made.__doc__ = kind.__doc__
        return cast("type[T]", made)

    return decorate


def _given(table: object) -> dict[str, Any]:
    """The options that a table has."""
    found = {name: getattr(table, name, None) for name in OPTION_KEYS}
    return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class MinuteBounds:
    """The least and the most minutes of a night."""

    least: AtLeast0 = 0.0
    most: Above0 | None = None


@_with_options(*OPTION_KEYS)
@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A network of the fleet."""

    model: Text
    """A path, `zoo:NAME` or `light:NAME`."""
    name: str = ""
    """Of its folder; no other network has it. By default the model's or file's own."""
    devices: Annotated[tuple[Text, ...], Meta(min_length=1)] | None = None
    """Names of devices; by default all."""
    runs_per_day: Above0 = 1.0
    """How often it runs, on each device: what a microsecond of it is worth."""
    shapes: dict[str, tuple[Positive | Text, ...] | Positive | Text] = field(default_factory=dict)
    values: dict[str, tuple[int | Text, ...] | int | Text] = field(default_factory=dict)
    minutes: Above0 | MinuteBounds | None = None
    """A night, on each device; a number is exactly so many."""

    @property
    def bounds(self) -> MinuteBounds:
        """The least and the most minutes of a night, on each device."""
        match self.minutes:
            case None:
                return MinuteBounds()
            case MinuteBounds():
                return self.minutes
            case fixed:
                return MinuteBounds(least=fixed, most=fixed)


@_with_options(*MEASURING_KEYS)
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """A device that networks are tuned for."""

    name: Text
    """Of its folders and records of nights."""
    device: str = ""
    """What `retune tune --device` takes; by default the name."""
    minutes: Above0 | None = None
    """Of measuring on it a night, over all networks; by default those of the whole file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainConfig:
    """When the cost model is trained again."""

    every: Count = 1
    """Nights; 0: never."""
    minimum_records: Count = 1000
    """Fewer new records than this since the last training do not make a better model."""

    def due(self, nights: int, records: int) -> bool:
        """After so many nights and new records since the last training, this night included."""
        return 0 < self.every <= nights and records >= self.minimum_records


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """An address that gets a POST request. `${NAME}` stands for a variable of the environment."""

    url: Text
    headers: dict[str, Any] = field(default_factory=dict)
    timeout_s: Above0 = 10.0

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that address and headers need, each once."""
        texts = (self.url, *self.headers.values())
        return tuple(dict.fromkeys(name for text in texts for name in VARIABLE.findall(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """Who is told of a night, and when."""

    on: Annotated[tuple[Event, ...], Meta(min_length=1)] = (
        "failure", "promotion", "regression", "hardware", "idle",
    )  # fmt: skip
    webhook: WebhookConfig | None = None
    command: tuple[Text, ...] = ()
    """A program and its arguments; it reads the text, and runs in the folder of the file."""
    email_block: str = ""
    """Name of a Prefect block that sends e-mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """The hours of a night: texts such as `22:00`, or times as TOML writes them."""

    start: Any
    end: Any
    timezone: Text = "UTC"


@_with_options(*OPTION_KEYS)
@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyConfig:
    """A checked configuration. Its paths are absolute."""

    file: str = field(default="", metadata={"stated": False})
    """Where it was read from: not a key of the file."""
    name: str = ""
    """Of the fleet, on pages and on a Prefect server; by default the file's own."""
    out: Text
    records: str = ""
    work: str = ""
    minutes: Above0 = 60.0
    """Of measuring a night on each device, over all of its networks: each gets a share."""
    window: WindowConfig | None = None
    """Nothing is begun outside. None: at any time."""
    cron: str = ""
    """When a night is started, by the clock of `timezone`; by default when the window opens."""
    model: tuple[ModelConfig, ...] = ()
    device: tuple[DeviceConfig, ...] = ()
    retrain: RetrainConfig = RetrainConfig()
    notify: NotifyConfig | None = None

    @property
    def hours(self) -> TimeWindow | None:
        """The window, by its clock. Raises: InputError saying what of it is wrong."""
        window = self.window
        return parse_window(window.start, window.end, window.timezone) if window else None

    @property
    def schedule(self) -> str:
        """The cron expression that starts nights."""
        return self.cron or daily(self.hours.start if self.hours else _DEFAULT_START)

    @property
    def timezone(self) -> str:
        """Of the window and of the schedule."""
        return self.window.timezone if self.window else "UTC"

    @property
    def zone(self) -> ZoneInfo:
        """The same, for moments."""
        return ZoneInfo(self.timezone)

    @property
    def pairs(self) -> tuple[tuple[ModelConfig, DeviceConfig], ...]:
        """Every network with each of its devices, in the file's order."""
        devices = {device.name: device for device in self.device}
        return tuple(
            (model, devices[name]) for model in self.model for name in model.devices or devices
        )

    def pair(self, key: tuple[str, str]) -> tuple[ModelConfig, DeviceConfig]:
        """The network and the device of these names. Raises: StopIteration if there are none."""
        return next(pair for pair in self.pairs if (pair[0].name, pair[1].name) == key)

    def request(
        self, model: ModelConfig, device: DeviceConfig, *, minutes: float, campaign: str
    ) -> TuneRequest:
        """What a night asks for: a bundle that is published if it is the faster one.

        What the file says of quantized networks is not for those that stay in floats.
        """
        of_all, own = _given(self), _given(model)
        if (of_all | own).get("quantize", "none") == "none":
            of_all = {n: v for n, v in of_all.items() if n not in ("calibration", "accuracy_drop")}
        return TuneRequest(
            model=model.model,
            out=Path(self.out) / model.name / device.name,
            records=self.records,
            work=self.work,
            device=device.device,
            minutes=minutes,
            publish="faster",
            shapes=model.shapes,
            values=model.values,
            campaign=campaign,
            **(of_all | own | _given(device)),
        )


def check_device(name: str) -> None:
    """Raises: InputError naming the devices that exist. Loads OpenCL."""
    from retune.device.opening import spec_of

    spec_of(name)


def load_config(path: Path) -> NightlyConfig:
    """The configuration in a TOML file; relative paths in it are relative to its folder, and so are
    default ones.

    Models, devices and the environment are not looked at, see `member_faults` and
    `retune.nightly.notify.check_environment`: the file may be read where nothing is run.

    Raises: InputError naming file, table, key, what was expected, and what was found.
    """
    try:
        read = read_toml(NightlyConfig, path)
    except InputError:
        _refuse_earlier(path)
        raise
    try:
        return _checked(read, path)
    except (OSError, ValueError) as error:
        why = reason_of(error)
        raise InputError(f"{path}: expected names that the file system takes, got {why}") from None


def _checked(read: NightlyConfig, path: Path) -> NightlyConfig:
    """The configuration as `load_config` gives it. Raises: OSError, ValueError for a path that the
    file system does not take."""
    where, folder = str(path), path.absolute().parent
    for key in ("model", "device"):
        if not getattr(read, key):
            expected = f"at least one table that begins with [[{key}]]"
            raise InputError(f"{where}: {key}: expected {expected}, got none")
    config = replace(
        _placed(read, folder),
        file=where,
        name=read.name or path.stem,
        out=str((folder / read.out).resolve()),
        records=str((folder / read.records if read.records else records_root(folder)).resolve()),
        work=str((folder / read.work if read.work else cache_root(folder)).resolve()),
        model=tuple(_model(_placed(model, folder), folder) for model in read.model),
        device=tuple(_device(device, folder) for device in read.device),
    )
    for key in ("out", "records", "work"):
        if getattr(read, key):
            _within(where, partial(check_folder, f"{key}:", Path(getattr(config, key))))
    _within(f"{where}: name", partial(check_name, config.name))
    _within(where, partial(quantize_settings, getattr(config, "quantize", None)))
    _check_devices(config)
    _check_models(config)
    _check_hours(config)
    _check_minutes(config)
    _check_notify(config)
    return config


def member_faults(
    config: NightlyConfig, device_check: DeviceCheck = check_device
) -> dict[tuple[str, str], str]:
    """Names of networks and devices -> why that member cannot be tuned now.

    The model or the device is not there, or is none. `device_check` is asked for each device.
    """
    devices = {d.name: _fault(partial(device_check, d.device)) for d in config.device}
    found: dict[tuple[str, str], str] = {}
    for model in config.model:
        fault = _fault(partial(_check_files, config, model))
        for device in model.devices or devices:
            if why := fault or devices[device]:
                found[model.name, device] = why
    return found


def _asked(config: NightlyConfig, model: ModelConfig) -> TuneRequest:
    """What a night asks for the model, on any device."""
    return config.request(model, config.device[0], minutes=1.0, campaign="")


def _check_files(config: NightlyConfig, model: ModelConfig) -> None:
    """Raises: RetuneError if the model is not there, or its samples are not."""
    asked = _asked(config, model)
    check_model(model.model, dict(asked.shapes))
    check_settings(asked.quantize, asked.calibration, asked.accuracy_drop)
    check_samples(asked.samples)


def _fault(check: Callable[[], object]) -> str:
    try:
        check()
    except RetuneError as error:
        return sentence(error)
    return ""


def _refuse_earlier(path: Path) -> None:
    """Raises: InputError if a key of earlier versions is the mistake."""
    with suppress(OSError, ValueError, RecursionError):
        top = tomllib.loads(path.read_text(encoding="utf-8"))
        models = top.get("model")
        tables = models if isinstance(models, list) else []
        for table in (top, *cast("list[Any]", tables)):
            if isinstance(table, dict):
                _within(str(path), partial(refuse_earlier, cast("dict[str, Any]", table)))


def _placed(table: T, folder: Path) -> T:
    """The table with samples that are relative to the configuration's folder."""
    given = _given(table)
    paths = {name: given.get(name) for name in ("calibration", "samples")}
    changed: Any = {
        name: str((folder / path).resolve())
        for name, path in paths.items()
        if isinstance(path, str) and path != RANDOM and not path.isdecimal()
    }
    return replace(cast("Any", table), **changed) if changed else table


def _model(model: ModelConfig, folder: Path) -> ModelConfig:
    name = model.name or model_name(model.model)
    path = model.model if is_built_in(model.model) else str((folder / model.model).resolve())
    return replace(model, model=path, name=name)


def _device(device: DeviceConfig, folder: Path) -> DeviceConfig:
    """With its own name; the file of a simulated one is relative to the configuration."""
    given = device.device or device.name
    file = given.removeprefix(SIMULATED) if given.startswith(SIMULATED) else config_file(given)
    return replace(device, device=given.removesuffix(file) + str(folder / file) if file else given)


def _check_devices(config: NightlyConfig) -> None:
    for number, device in enumerate(config.device, 1):
        _within(f"{config.file}: device {number}: name", partial(check_name, device.name))
    _check_distinct(config.file, "device", (device.name for device in config.device))


def _check_models(config: NightlyConfig) -> None:
    names = [device.name for device in config.device]
    for number, model in enumerate(config.model, 1):
        where = f"{config.file}: model {number}"
        _within(f"{where}: name", partial(check_name, model.name))
        chosen = model.devices or ()
        for device in chosen:
            if device not in names:
                raise InputError(
                    f"{where}: devices: expected names of [[device]] tables, which are "
                    f"{', '.join(names)}, got {device!r}{did_you_mean(device, names)}"
                )
        if len(set(chosen)) < len(chosen):
            got = ", ".join(chosen)
            raise InputError(f"{where}: devices: expected each device once, got {got}")
        if (most := model.bounds.most) is not None and most < model.bounds.least:
            raise InputError(
                f"{where}: minutes: most: expected at least as many as `least`, which is "
                f"{model.bounds.least:g}, got {most:g}"
            )
        _within(where, partial(quantize_settings, getattr(model, "quantize", None)))
        asked = _asked(config, model)
        samples = asked.calibration
        if samples in ("", RANDOM) or Path(samples).exists():
            drop = asked.accuracy_drop
            _within(where, partial(check_settings, asked.quantize, samples, drop))
    _check_distinct(config.file, "model", (model.name for model in config.model))


def _check_hours(config: NightlyConfig) -> None:
    """Nights start while the window is open, as nothing is begun outside."""
    hours = _within(f"{config.file}: window", lambda: config.hours)
    expression = config.schedule
    for clock in _within(config.file, partial(firing_times, expression)):
        if hours is not None and not hours.shows(clock):
            raise InputError(
                f"{config.file}: cron: expected times within the window from {hours.start:%H:%M} "
                f"to {hours.end:%H:%M}, as nothing is begun outside, got {expression!r} "
                f"({clock:%H:%M})"
            )


def _check_notify(config: NightlyConfig) -> None:
    notify, where = config.notify, f"{config.file}: notify"
    if notify is None:
        return
    block = notify.email_block
    if block != slug(block):
        raise InputError(
            f"{where}: email_block: expected the name of a Prefect block: lower-case letters, "
            f"digits and dashes, got {block!r}"
        )
    if notify.webhook is not None:
        _check_webhook(notify.webhook, f"{where}: webhook")
    if not (notify.webhook or notify.command or block):
        raise InputError(f"{where}: expected webhook, command or email_block, got none")


def _check_webhook(webhook: WebhookConfig, where: str) -> None:
    """Address and headers are never shown: somebody may have written a secret there."""
    if not webhook.url.startswith(("https://", "http://", "${")):
        expected = "an address that begins with https:// or http://"
        raise InputError(f"{where}: url: expected {expected}, got another text")
    _check_variables(f"{where}: url", webhook.url)
    for name, value in webhook.headers.items():
        header = f"{where}: headers: {name}"
        if not _TOKEN.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise InputError(f"{header}: expected the name of a header and one line of text")
        _check_variables(header, value)
        if name.lower() in _SECRET_HEADERS and not VARIABLE.search(value):
            raise InputError(
                f"{header}: expected a variable of the environment such as "
                '"Bearer ${NIGHTLY_TOKEN}", got a text; do not store secrets in this file'
            )


def _check_variables(where: str, text: str) -> None:
    if "${" in VARIABLE.sub("", text):
        raise InputError(f"{where}: expected variables written as ${{NAME}}, got another `${{`")


def _check_minutes(config: NightlyConfig) -> None:
    """What is promised to each device and its networks can be had in one window."""
    window = config.hours.minutes if config.hours else math.inf
    tables = [("", config.minutes)] + [
        (f"device {number}: ", device.minutes or config.minutes)
        for number, device in enumerate(config.device, 1)
    ]
    for table, minutes in tables:
        if minutes > window:
            raise InputError(
                f"{config.file}: {table}minutes: expected at most {window:g}, which are those of "
                f"the window, as they are each device's own, got {minutes:g}"
            )
    for (table, minutes), device in zip(tables[1:], config.device, strict=True):
        asked = sum(model.bounds.least for model, on in config.pairs if on == device)
        if asked > minutes:
            raise InputError(
                f"{config.file}: {table}minutes: expected at least {asked:g}, "
                f"which [[model]] tables ask for on {device.name}, got {minutes:g}"
            )


def _check_distinct(file: str, key: str, names: Iterable[str]) -> None:
    """No two names are the same, nor become the same key of an artifact."""
    seen: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        if slug(name) in seen:
            other = seen[slug(name)]
            raise InputError(
                f"{file}: {key} {number}: name: expected another name than {other!r} above it, "
                f"got {name!r}"
            )
        seen[slug(name)] = name


def _within(where: str, check: Callable[[], T]) -> T:
    """What `check` returns; its InputError says where in the file the mistake is."""
    try:
        return check()
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
