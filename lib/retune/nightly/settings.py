"""What a night may be told: plain data. `retune.nightly.config` reads it from a file.

Read NightlyConfig. Its values are checked where they are read.
"""

import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from retune.core.errors import InputError
from retune.graph.quantize.settings import QuantizeSettings
from retune.nightly.window import Window
from retune.pipeline.manifest import Shapes, TuneRequest
from retune.search.defaults import DEFAULT_ALLOCATOR, DEFAULT_MAX_ERROR, DEFAULT_TUNER

Event = Literal["failure", "promotion", "always"]
"""What somebody wants to hear of; `always` is every night."""
EVENTS: tuple[Event, ...] = ("failure", "promotion", "always")

WEBHOOK_TIMEOUT_S = 10.0

VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a text: `${NAME}`."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How a network is tuned: fields of TuneRequest."""

    tuner: str = DEFAULT_TUNER
    allocator: str = DEFAULT_ALLOCATOR
    patience: int = 0
    seed: int = 0
    max_error: float = DEFAULT_MAX_ERROR
    layout: str = "NHWC"
    samples: int = 2
    quantize: QuantizeSettings | None = None
    calibration: str = ""
    accuracy_drop: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A network of the fleet."""

    name: str
    """Of its folder; no other network has it."""
    model: str
    """A path, `zoo:NAME` or `light:NAME`."""
    devices: tuple[str, ...]
    runs_per_day: float = 1.0
    """How often it runs, on each device: what a microsecond of it is worth."""
    shapes: Shapes = ()
    least_minutes: float = 0.0
    """A night, on each device."""
    most_minutes: float | None = None
    options: SearchOptions = SearchOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """A device that networks are tuned for."""

    name: str
    """Of its folders and records of nights."""
    device: str
    """A device of `retune devices`, or what else `retune tune --device` takes."""
    most_minutes: float | None = None
    """Of measuring on it a night, over all networks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrainConfig:
    """When the cost model is trained again."""

    every: int = 1
    """Nights; 0: never."""
    minimum_records: int = 1000
    """Fewer new records than this since the last training do not make a better model."""

    def due(self, nights: int, records: int) -> bool:
        """After so many nights and new records since the last training, this night included."""
        return 0 < self.every <= nights and records >= self.minimum_records


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig:
    """An address that gets a POST request. `${NAME}` stands for a variable of the environment."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = WEBHOOK_TIMEOUT_S

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables that address and headers need, each once."""
        texts = (self.url, *(value for _, value in self.headers))
        return tuple(dict.fromkeys(name for text in texts for name in VARIABLE.findall(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class NotifyConfig:
    """Who is told of a night, and when."""

    on: tuple[Event, ...] = ("failure", "promotion")
    webhook: WebhookConfig | None = None
    command: tuple[str, ...] = ()
    """A program and its arguments; it reads the text."""
    email_block: str = ""
    """Name of a Prefect block that sends e-mail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NightlyConfig:
    """A checked configuration. Its paths are absolute, or relative to the folder of the process."""

    file: Path
    out: Path
    records: Path
    work: Path
    minutes: float
    """Of measuring a night, over all networks and devices."""
    window: Window | None
    """Nothing is begun outside. None: at any time."""
    cron: str
    """When a night is started, by the clock of `timezone`."""
    keep: int
    """Versions of a bundle beside the current one and the one before it."""
    models: tuple[ModelConfig, ...]
    devices: tuple[DeviceConfig, ...]
    retrain: RetrainConfig = RetrainConfig()
    notify: NotifyConfig = NotifyConfig()

    @property
    def timezone(self) -> str:
        """Of the window and of `cron`."""
        return self.window.timezone if self.window else "UTC"

    @property
    def pairs(self) -> tuple[tuple[ModelConfig, DeviceConfig], ...]:
        """Every network with each of its devices, in the file's order."""
        devices = {device.name: device for device in self.devices}
        return tuple((model, devices[name]) for model in self.models for name in model.devices)

    def folder(self, model: ModelConfig, device: str) -> Path:
        """Where the bundles of a network for a device lie."""
        return self.out / model.name / device

    def request(
        self, model: ModelConfig, device: DeviceConfig, *, minutes: float, campaign: str
    ) -> TuneRequest:
        """What a night asks for: a bundle that is published if it is the faster one."""
        return TuneRequest(
            model=model.model,
            out=str(self.folder(model, device.name)),
            records=str(self.records),
            work=str(self.work),
            device=device.device,
            minutes=minutes,
            publish="faster",
            keep=self.keep,
            shapes=model.shapes,
            campaign=campaign,
            **{each.name: getattr(model.options, each.name) for each in fields(SearchOptions)},
        )


def slug(name: str) -> str:
    """The name as keys of Prefect's artifacts have to be: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def check_name(name: str) -> None:
    """Raises: InputError if it cannot be the name of a folder on every system."""
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"expected letters, digits, dots, dashes and underscores, a letter or digit first, "
            f"got {name!r}"
        )
