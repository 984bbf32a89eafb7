"""A tuning run's request, declared once: TuneRequest.

Its fields are the options of `retune tune`, the parameters of the flow, the keys of a nightly file
and the arguments of `retune.tune_network`, with types, limits, defaults and help texts. Read
`TuneRequest`, and `options` for those who make a surface of it. Importing this file costs nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from retune.core.config import cache_root, records_root
from retune.core.errors import InputError
from retune.core.layouts import LAYOUTS, SOLVER_REMOVED, Layout
from retune.core.names import model_name
from retune.core.quantities import counted, minutes_text
from retune.core.ranges import Stated, parse_stated
from retune.core.schema import Above0, AtLeast0, Count, Meta, Positive, bare_type
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.search.defaults import (
    DEFAULT_MAX_ERROR,
    DEFAULT_TASK_SCHEDULER,
    DEFAULT_TUNER,
    LEAST_GAIN,
    QUICK_MINUTES,
    Effort,
    TaskSchedulerName,
    TunerName,
)

T = TypeVar("T")
S = TypeVar("S")

Shapes = tuple[tuple[str, tuple[Stated, ...]], ...]
"""Bindings of inputs and symbols to shapes, or of inputs to values, sorted by name; see
`core.ranges` for open ones."""
ShapesGiven = Mapping[str, Sequence[Stated] | Stated] | Shapes
Samples = Positive | str
"""A number of random samples, or the path of files with given ones."""
PeerName = Literal["onnxruntime", "openvino"]
Publish = Literal["always", "faster"]
PrecisionName = Literal["float32", "tf32", "bfloat16", "float16", "mixed"]
DEFAULT_MAX_DEVIATION = 0.01
FULL_PRECISION: PrecisionName = "float32"
MIXED: PrecisionName = "mixed"
"""Each layer has the fastest type that leaves outputs as near as `max_deviation` asks."""
RANDOM = "random"
"""Calibration samples that no file has."""
SCHEMES: Mapping[str, QuantizeSettings | None] = {
    "none": None, "int8": QuantizeSettings(), "power2": POWER2,
}  # fmt: skip
"""Settings of quantization that have a name."""

Deadline = Annotated[float, Meta(gt=0, le=600)]
"""Seconds. A board of a farm waits no longer, either."""

DEFAULT_MINUTES = 3.0
"""Measuring time where neither trials nor minutes are given."""

RENAMED: Mapping[str, str] = {"allocator": "task_scheduler"}
"""Earlier name of a field -> its name. Stored requests with the earlier one stay readable."""

REMOVED: Mapping[str, str] = {"layout_solver": SOLVER_REMOVED}
"""Field of earlier versions -> what to do without it."""
EARLIER = (*RENAMED, *REMOVED)

Group = Literal[
    "", "Search", "Measurement", "Inputs and samples", "Accuracy", "Quantization", "Publishing",
    "Folders", "Device limits and farm",
]  # fmt: skip
"""What options are shown under, in this order; those without a group come first."""

_HELP, _USUAL, _CONVERTER, _GROUP = "help", "usual", "converter", "group"


@overload
def option(text: str, *, converter: Callable[[S], T], kw_only: bool = ...) -> T: ...
@overload
def option(
    text: str,
    *,
    converter: Callable[[S], T],
    default: S,
    usual: str = ...,
    group: Group = "Search",
) -> T: ...
@overload
def option(text: str, *, default: T, usual: str = ..., group: Group = "Search") -> T: ...
def option(
    text: str,
    *,
    converter: Callable[[Any], object] | None = None,
    usual: str = "",
    group: Group = "Search",
    **given: Any,
) -> Any:
    """A field of a request: its help begins with what it sets. Choices follow from a Literal.

    `converter` makes the value of what callers may write. `usual` says what holds where a default
    of None or '' stays.
    """
    about = {_HELP: text, _USUAL: usual, _CONVERTER: converter, _GROUP: group}
    return field(metadata=about, **given)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(option, field))
def request(kind: type[T]) -> type[T]:
    """The class as a frozen dataclass whose constructor takes what converters take."""
    return dataclass(frozen=True, slots=True, kw_only=True)(kind)


def _text(value: str | Path) -> str:
    return str(value)


def _records(value: str | Path | None) -> str:
    return str(value or records_root())


def _work(value: str | Path | None) -> str:
    return str(value or cache_root())


def _shapes(value: ShapesGiven | None) -> Shapes:
    return _stated("shapes", value)


def _values(value: ShapesGiven | None) -> Shapes:
    return _stated("values", value)


def _states(value: Sequence[str] | str | None) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else (value or ())
    return tuple(sorted(texts))


def _stated(what: Literal["shapes", "values"], value: ShapesGiven | None) -> Shapes:
    """The numbers of each name; a text may list several, as the command line writes them."""
    value = value or ()
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple(sorted((name, _numbers(what, stated)) for name, stated in pairs))


def _numbers(
    what: Literal["shapes", "values"], stated: Sequence[Stated] | Stated
) -> tuple[Stated, ...]:
    every = [stated] if isinstance(stated, int) else stated
    texts = every.split(",") if isinstance(every, str) else every
    negative = what == "values"
    try:
        return tuple(parse_stated(e, negative=negative) if isinstance(e, str) else e for e in texts)
    except ValueError as error:
        raise InputError(f"{what}: expected {error}; got {stated!r}") from None


def _samples(value: int | str | Path) -> int | str:
    """Digits are a number of random samples; anything else is a path."""
    text = str(value)
    return int(text) if text.isdecimal() else text


def _layout(value: str) -> Layout:
    """The layout in the spelling of LAYOUTS; `check_request` refuses unknown ones."""
    for known in LAYOUTS:
        if known.upper() == value.upper():
            return known
    return cast("Layout", value)


def quantize_settings(
    value: QuantizeSettings | Mapping[str, Any] | str | None,
) -> QuantizeSettings | None:
    """The settings that a scheme's name, or a table of a scheme and settings, asks for.

    Raises: InputError.
    """
    if isinstance(value, str):
        if value not in SCHEMES:
            raise InputError(f"quantize: expected one of {', '.join(SCHEMES)}, got {value!r}")
        return SCHEMES[value]
    return _scheme_with(value) if isinstance(value, Mapping) else value


def _scheme_with(table: Mapping[str, Any]) -> QuantizeSettings:
    """The settings of a scheme (`int8` unless it is named), with those of a table instead.

    Raises: InputError naming the key.
    """
    from retune.core.schema import did_you_mean, from_plain

    hints = get_type_hints(QuantizeSettings)
    for name in table:
        if name not in hints:
            raise InputError(
                f"quantize: expected keys among {', '.join(hints)}, got {name!r}"
                f"{did_you_mean(name, list(hints))}"
            )
    given = {
        name: from_plain(hints[name], value, where=f"quantize: {name}")
        for name, value in table.items()
    }
    start = SCHEMES[given.get("scheme", "int8")]
    assert start is not None, "`none` is not a scheme of settings"
    try:
        return replace(start, **given)
    except InputError as error:
        raise InputError(f"quantize: {error}") from None


@request
class TuneRequest:
    """The user's request. Every field is part of the run's identity."""

    model: str = option(
        "Model: an ONNX file, zoo:NAME or light:NAME", converter=_text, kw_only=False
    )
    out: str = option(
        "Output folder, for the bundle (module) and the report (report.html)",
        converter=_text,
        kw_only=False,
    )
    records: str = option(
        "Record store, a folder",
        converter=_records,
        usual="the one that RETUNE_RECORDS names",
        default=None,
        group="Folders",
    )
    work: str = option(
        "Work folder, for outputs of stages",
        converter=_work,
        usual="the one that RETUNE_CACHE names",
        default=None,
        group="Folders",
    )
    device: str = option(
        "Device: one of `retune devices`, or farm:KEY for boards of a farm",
        default="pocl",
        group="",
    )
    effort: Effort | None = option(
        "Search effort. none: nothing is measured; quick: at most 20 s of measuring; full: until "
        "less than 1 % of the network's time is expected to be saved; exhaustive: the whole "
        "budget",
        usual="exhaustive if `trials` or `minutes` are given, otherwise full",
        default=None,
        group="",
    )
    trials: Count | None = option(
        "Number of measurements, over all tasks; 0 compiles with existing records",
        usual="no limit but `minutes`",
        default=None,
    )
    minutes: Above0 | None = option(
        "Measuring time, in minutes",
        usual=f"{DEFAULT_MINUTES:g}, or no limit if `trials` are given",
        default=None,
        group="",
    )
    tuner: TunerName = option("Tuner that proposes candidates", default=DEFAULT_TUNER)
    task_scheduler: TaskSchedulerName = option(
        "Task scheduling: how the next task to measure is chosen", default=DEFAULT_TASK_SCHEDULER
    )
    patience: Count = option(
        "Early stopping: trials without a gain after which a task ends; 0: never", default=0
    )
    trials_per_task: Positive | None = option(
        "Number of measurements of a task at most",
        usual="no limit but `trials` and `minutes`",
        default=None,
        group="Search",
    )
    repeats: Annotated[int, Meta(ge=1, le=1000)] | None = option(
        "Repeats of a measurement",
        usual="5, and 3 on a GPU",
        default=None,
        group="Measurement",
    )
    min_repeat_ms: Annotated[float, Meta(gt=0, le=60_000)] | None = option(
        "Least duration of a repeat, in milliseconds: calls are added until it lasts so long",
        usual="5, and 1 on a GPU",
        default=None,
        group="Measurement",
    )
    cooldown: Annotated[float, Meta(ge=0, le=60)] | None = option(
        "Pause before each repeat, in seconds",
        usual="none",
        default=None,
        group="Measurement",
    )
    build_deadline: Deadline | None = option(
        "Deadline of building a candidate, in seconds",
        usual="30",
        default=None,
        group="Measurement",
    )
    run_deadline: Deadline | None = option(
        "Deadline of a launch, in seconds, added to the time of its arithmetic",
        usual="10",
        default=None,
        group="Measurement",
    )
    seed: Count = option("Random seed: the same one proposes the same candidates", default=0)
    shapes: Shapes = option(
        "Input shapes that the model leaves open, by input or symbol; the bundle serves all of a "
        "range such as 1..32",
        converter=_shapes,
        default=None,
        group="",
    )
    values: Shapes = option(
        "Values of integer inputs, by input: where a slice ends, the extents of a resized "
        "image, a sampling rate; the bundle serves all of a range such as 1..64",
        converter=_values,
        default=None,
        group="Inputs and samples",
    )
    states: tuple[str, ...] = option(
        "States: inputs that are outputs of the call before, as INPUT=OUTPUT or past.*=present.*; "
        "names that usual exporters give are recognised; none turns that off",
        converter=_states,
        default=None,
        group="Inputs and samples",
    )
    layout: Layout = option(
        "Activation layout of the network; auto: the fastest by measurement for each activation",
        converter=_layout,
        default="NHWC",
    )
    max_error: AtLeast0 = option(
        "Largest error of a layer, as a part of its output's range; 0: only direct convolutions",
        default=DEFAULT_MAX_ERROR,
        group="Accuracy",
    )
    samples: Samples = option(
        "Samples on which the bundle is compared with the oracle: a number of random ones, an .npz "
        "file with an array for each input, or a folder of them",
        converter=_samples,
        default=2,
        group="Inputs and samples",
    )
    publish: Publish = option(
        "Publishing: replace the published bundle always, or only if the new one is faster",
        default="always",
        group="Publishing",
    )
    keep: Count = option(
        "Number of versions kept beside the published one and its predecessor",
        default=10,
        group="Publishing",
    )
    fail_if_slower_than: PeerName | None = option(
        "Peer that the bundle has to be as fast as: the run fails after publishing if it is slower",
        usual="none",
        default=None,
        group="Publishing",
    )
    precision: PrecisionName = option(
        "Precision of a network of float32: the type of what lies between kernels, and of what "
        "products multiply; sums stay in float32. mixed: 16 bits but for layers that need more; "
        "tf32: operands of products are rounded to 10 bits, where the device has instructions for "
        "that",
        default=FULL_PRECISION,
        group="Accuracy",
    )
    max_deviation: AtLeast0 = option(
        "Largest deviation from float32 that mixed precision may cause, as a part of an output's "
        "range",
        default=DEFAULT_MAX_DEVIATION,
        group="Accuracy",
    )
    quantize: QuantizeSettings | None = option(
        f"Quantization scheme: {', '.join(SCHEMES)}",
        converter=quantize_settings,
        usual="none",
        default=None,
        group="Quantization",
    )
    pack_start: str = option(
        "Graph packing for an accelerator: the op after which it begins",
        usual="max_pool2d",
        default="",
        group="Quantization",
    )
    pack_stop: str = option(
        "Graph packing for an accelerator: the op before which it ends",
        usual="global_avg_pool",
        default="",
        group="Quantization",
    )
    calibration: str = option(
        "Calibration samples: an .npz file, a folder of them, or random, which is for timing only",
        converter=_text,
        default="",
        group="Quantization",
    )
    accuracy_drop: Annotated[float, Meta(ge=0, le=100)] | None = option(
        "Accuracy drop allowed, in points of agreement: the noisiest layers stay in floats until "
        "it is met",
        default=None,
        group="Quantization",
    )
    campaign: str = option(
        "Campaign name: under a new name, a request that is done already is searched again",
        default="",
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            if (convert := each.metadata.get(_CONVERTER)) is not None:
                object.__setattr__(self, each.name, convert(getattr(self, each.name)))
        for name, value in _budget(self.effort, self.trials, self.minutes).items():
            object.__setattr__(self, name, value)

    @property
    def name(self) -> str:
        """The network's name: that of its file, or of the built-in model."""
        return model_name(self.model)

    @property
    def least_gain(self) -> float:
        """Part of the network's time: the search ends where it is expected to save less; 0: it
        goes on."""
        return LEAST_GAIN if self.effort in ("quick", "full") else 0.0

    @property
    def bounds(self) -> str:
        """The limits of its search, as a text for users who wait."""
        if self.trials == 0:
            return "nothing"
        most = [] if self.trials is None else [counted(self.trials, "candidate")]
        most += [] if self.minutes is None else [minutes_text(self.minutes)]
        text = f"at most {' and '.join(most)}"
        if self.least_gain:
            text += f", until less than {self.least_gain:.0%} is expected to be gained"
        return text

    @property
    def lowered(self) -> bool:
        """Whether a network of float32 is computed in a smaller type."""
        return self.precision != FULL_PRECISION

    @property
    def module(self) -> Path:
        """The path of the bundle."""
        return Path(self.out) / "module"

    @property
    def report(self) -> Path:
        """The path of the report."""
        return Path(self.out) / "report.html"


def _budget(
    effort: Effort | None, trials: int | None, minutes: float | None
) -> Mapping[str, Effort | int | float | None]:
    """The effort, the trials and the minutes of a request that states these; None: not stated."""
    if effort is None:
        effort = "full" if trials is None and minutes is None else "exhaustive"
    if effort == "none" and trials is None:
        trials = 0
    if effort == "quick":
        minutes = QUICK_MINUTES if minutes is None else min(minutes, QUICK_MINUTES)
    elif trials is None and minutes is None:
        minutes = DEFAULT_MINUTES
    return {"effort": effort, "trials": trials, "minutes": minutes}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A field of TuneRequest, for those who make an option, a parameter or a key of it."""

    name: str
    help: str
    """One sentence, with the choices; a second one may say what its default means."""
    hint: Any
    """Type with its limits, as the field has it."""
    given: Any
    """Type of what callers may give, which the field's converter takes."""
    choices: tuple[str, ...]
    default: Any
    """`...` where a value is required."""
    group: Group

    @property
    def kind(self) -> Any:
        """The type below limits and beside None."""
        return bare_type(self.hint)


def options() -> dict[str, Option]:
    """The fields of a request by name, in the order in which they are declared."""
    hints = get_type_hints(TuneRequest, include_extras=True)
    return {each.name: _option(each, hints[each.name]) for each in fields(TuneRequest)}


def _option(each: Field[Any], hint: Any) -> Option:
    kind = bare_type(hint)
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    text, convert = each.metadata[_HELP], each.metadata[_CONVERTER]
    usual = f" Default: {each.metadata[_USUAL]}." if each.metadata[_USUAL] else ""
    return Option(
        name=each.name,
        help=(f"{text} ({', '.join(choices)})." if choices else f"{text}.") + usual,
        hint=hint,
        given=get_type_hints(convert)["value"] if convert else hint,
        choices=choices,
        default=... if each.default is MISSING else each.default,
        group="" if each.default is MISSING else each.metadata[_GROUP],
    )


def renamed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a stored request, by the names that its fields have now."""
    return {RENAMED.get(name, name): value for name, value in values.items()}


def refuse_earlier(values: Mapping[str, Any], written: Callable[[str], str] = str) -> None:
    """Raises: InputError for an option of earlier versions. `written` spells names of options."""
    for old, value in values.items():
        if value is None:
            continue
        if old in RENAMED:
            new = written(RENAMED[old])
            raise InputError(
                f"{written(old)} {value}: expected the new name of this option; write {new} {value}"
            )
        if old in REMOVED:
            raise InputError(f"{written(old)} {value}: {REMOVED[old]}")


def model_file(request: TuneRequest) -> Path:
    """The ONNX file of the request's model, which oracle and peers read; a built-in one is built.

    Raises: LookupFailed for an unknown name, ModelError for a shape that does not fit.
    """
    from retune.frontend.models import resolve_model

    folder = Path(request.work) / "models"
    return resolve_model(request.model, folder, dict(request.shapes)).resolve()


def check_values(request: TuneRequest) -> None:
    """Each value is of its field's type and within its limits. Raises: InputError."""
    from retune.core.schema import from_plain

    for name, each in options().items():
        if each.kind is not QuantizeSettings:
            from_plain(each.hint, getattr(request, name), where=name)


def check_request(request: TuneRequest) -> None:
    """Its values are within limits, its names known, and its folders can be written to.

    The model and the device are looked up by the first stages. Raises: InputError.
    """
    from retune.bundle.versions import check_publishable
    from retune.core.files import check_file, check_folder
    from retune.device.opening import is_absent
    from retune.pipeline.precision import check_precision
    from retune.pipeline.quantization import check_quantization

    if is_absent(request.device):
        _check_absent(request)
    check_precision(request)
    check_quantization(request)
    check_values(request)
    check_samples(request.samples)
    _check_effort(request)
    _check_peer(request)
    for what, folder in (
        ("out", request.out),
        ("records", request.records),
        ("RETUNE_CACHE", request.work),
    ):
        check_folder(what, Path(folder))
    check_file("out", request.report)
    check_publishable(Path(request.out))


def _check_effort(request: TuneRequest) -> None:
    """Raises: InputError for an effort and a number of trials that contradict each other."""
    if request.effort == "none" and request.trials:
        raise InputError(
            f"effort none: expected no trials beside it, got {request.trials}; leave one of them "
            "out"
        )


def _check_peer(request: TuneRequest) -> None:
    """Raises: InputError for a peer that is not here, or that runs on no board."""
    from retune.bundle.verify.peers import peer_versions
    from retune.device.opening import is_absent, unraced

    peer = request.fail_if_slower_than
    if peer is None:
        return
    where = f"fail_if_slower_than {peer}"
    if not peer_versions([peer]):
        raise InputError(
            f"{where}: expected a peer that is installed, got none; install it with: pip install "
            f"{peer}"
        )
    if is_absent(request.device) or unraced(request.device):
        raise InputError(
            f"{where}: expected a device that peers run on, got {request.device}; leave it out"
        )


def check_samples(samples: int | str) -> None:
    """Raises: InputError for a path at which there are no .npz files."""
    from retune.graph.quantize.samples import check_archives

    if isinstance(samples, str):
        check_archives("samples", Path(samples), also="a number, ")


def _check_absent(request: TuneRequest) -> None:
    """Nothing is measured on a device that is not here. Raises: InputError."""
    if request.trials != 0:
        raise InputError(
            f"device {request.device}: expected --trials 0, as a profile's device is not here to "
            "measure on; that compiles default schedules for it"
        )
    if request.publish != "always":
        raise InputError(
            f"device {request.device}: expected --publish always, as no bundle can be timed there"
        )
