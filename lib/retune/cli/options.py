"""Options that several commands share, and the words of their errors."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.core.config import records_root
from retune.core.dims import is_fixed
from retune.core.errors import InputError
from retune.core.ranges import Stated, parse_stated

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.records.store import RecordStore

MODEL_HELP = "Model: an ONNX file, zoo:NAME or light:NAME."
NIGHTLY_FILE = Path("nightly.toml")
"""What `retune init` writes, and the commands about nights read."""
MOST_DAYS = 36_500
"""That somebody may ask for: a century, as dates have a first year."""
Module = Annotated[
    Path,
    typer.Argument(metavar="BUNDLE", help="Bundle: a folder, such as OUT/module, or a zip file."),
]


def as_path(text: str) -> Path:
    """The path. Raises: InputError for none, as of a variable of the shell that is not set."""
    if not text:
        raise InputError("expected the name of a folder, got ''; `.` is the one you are in")
    return Path(text)


def device_names(incomplete: str) -> list[str]:
    """What a shell completes of a device's name: those of `retune devices`, and of profiles."""
    from retune.device.opening import known_names

    return [name for name in known_names() if name.startswith(incomplete)]


Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust",
        help="Public key whose owner must have signed the bundle. Repeatable. Default: none.",
    ),
]
Digest = Annotated[
    str, typer.Option(help="Digest that the bundle must have. Default: any.", show_default=False)
]
RunsOn = Annotated[
    str | None,
    typer.Option(
        help="Device that runs it. Default: the one that it was tuned for.",
        autocompletion=device_names,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print each measurement, with the reason where it failed."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print warnings and the result, no progress.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Records = Annotated[
    Path | None,
    typer.Option(
        help="Record store, a folder.",
        parser=as_path,
        metavar="PATH",
        show_default="artifacts/records",
    ),
]


Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size",
        help="Size of the inputs, of a bundle for ranges: batch=8. Repeatable. Default: the "
        "largest ones.",
    ),
]


def sizes_of(plan: "NetworkPlan", given: Sequence[str] | None) -> dict[str, int]:
    """The sizes that the options state, and the largest ones where they state none.

    Raises: InputError for a size that the bundle has not, or is not for.
    """
    ranges = {each.size.name: each.size for each in plan.sizes if not each.counted}
    values = {name: value for name, value in plan.largest.items() if name in ranges}
    if given and not ranges:
        raise InputError(f"--size {given[0]}: the bundle is for fixed shapes; leave --size out")
    stated = ", ".join(map(str, ranges.values()))
    for text in given or ():
        name, _, value = text.partition("=")
        size = ranges.get(name.strip())
        if size is None or not value.strip().isdecimal() or int(value) not in size.values:
            raise InputError(f"--size {text}: expected a size of the bundle ({stated})")
        values[size.name] = int(value)
    if values:
        plan.variant_at(values)
    return values


def stated_shapes(plan: "NetworkPlan") -> dict[str, tuple[Stated, ...]]:
    """The shapes of the inputs as --shape states them, with ranges for sizes."""
    ranges = {each.size.name: each.size for each in plan.sizes}

    def stated(extent: int) -> Stated:
        size = None if is_fixed(extent) else ranges.get(str(extent))
        return extent if size is None else str(size).partition("=")[2]

    return {name: tuple(map(stated, shape)) for name, shape in plan.input_shapes.items()}


def parse_shapes(given: Sequence[str] | None) -> dict[str, tuple[Stated, ...]]:
    """Input or symbol -> shape, whose extents may be ranges, see `core.ranges`.

    Raises: InputError with an example of what was meant.
    """
    return _parse_stated(given, _SHAPE)


def parse_values(given: Sequence[str] | None) -> dict[str, tuple[Stated, ...]]:
    """Input -> what its elements are, or ranges of them, see `core.ranges`.

    Raises: InputError with an example of what was meant.
    """
    return _parse_stated(given, _VALUE)


@dataclass(frozen=True, slots=True)
class _OptionForm:
    """How one of the two options is written."""

    option: str
    what: str
    example: str
    negative: bool


_SHAPE = _OptionForm("--shape", "shape", "data=1,3,224,224", negative=False)
_VALUE = _OptionForm("--value", "range", "end=1..64", negative=True)


def _parse_stated(given: Sequence[str] | None, form: _OptionForm) -> dict[str, tuple[Stated, ...]]:
    found: dict[str, tuple[Stated, ...]] = {}
    for text in given or ():
        name, separator, numbers = text.rpartition("=")
        if not separator or not name.strip():
            raise _bad(form, text, f"a name and a {form.what} with '=' between them")
        if name.strip() in found:
            expected = f"one {form.what} for each input, and {name.strip()!r} has two"
            raise _bad(form, text, expected)
        found[name.strip()] = _parse_numbers(form, text, numbers)
    return found


@contextmanager
def opened_bundle(
    module: Path, keys: Sequence[Path] | None, digest: str
) -> "Generator[tuple[Path, NetworkPlan]]":
    """The bundle that --trust and --digest admit, as a folder and as a plan, for the context.

    Raises: InputError if there is none, or another one.
    """
    check_module(module)
    from retune.bundle.format import read_bundle
    from retune.bundle.trust import Trust, admitted

    trust = Trust(digest=digest.strip().lower(), keys=tuple(keys or ()))
    with admitted(module, trust) as bundle:
        yield bundle, read_bundle(bundle)


def check_module(module: Path) -> None:
    """Raises: InputError if there is no bundle."""
    if module.is_symlink() and not module.exists():
        raise InputError(
            f"{module}: expected a bundle, got a link to {module.readlink()}, which is not there; "
            "OUT/module is a link to the current version: copy it by `cp -rL`"
        )
    if not module.is_file() and not (module / "module.json").is_file():
        inner = module / "module"
        found = (inner / "module.json").is_file()
        advice = f"name {inner}" if found else "`retune tune MODEL --out DIR` makes DIR/module"
        raise InputError(
            f"{module}: expected a bundle (a folder with module.json, or a zip of it), got "
            f"{'a folder around one' if found else 'none'}; {advice}"
        )


def record_store(records: Path | None) -> "RecordStore":
    """The store at the folder, or in the default folder. Raises: InputError if there is none."""
    root = records or records_root()
    if not root.is_dir():
        raise InputError(
            f"--records {root}: expected a record store, got no folder; `retune tune` makes one"
        )
    from retune.records.store import RecordStore

    return RecordStore(root)


def _parse_numbers(form: _OptionForm, text: str, numbers: str) -> tuple[Stated, ...]:
    if form is _SHAPE and not numbers.strip():  # a scalar input
        return ()
    try:
        return tuple(parse_stated(e, negative=form.negative) for e in numbers.split(","))
    except ValueError as error:
        raise _bad(form, text, f"{error}, separated by commas after '='") from None


def _bad(form: _OptionForm, text: str, expected: str) -> InputError:
    return InputError(
        f"{form.option} {text}: expected {expected}; write {form.option} {form.example}"
    )
