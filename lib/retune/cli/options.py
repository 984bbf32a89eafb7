"""Options that several commands share, and the words of their errors."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.core.config import records_root
from retune.core.errors import InputError
from retune.core.layouts import LAYOUTS, SOLVER_REMOVED

if TYPE_CHECKING:
    from retune.bundle.trust import Trust
    from retune.records.store import RecordStore

MODEL_HELP = "An ONNX file, zoo:NAME or light:NAME."
Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
Module = Annotated[
    Path, typer.Argument(metavar="bundle", help="A bundle's folder, such as OUT/module, or a zip.")
]


def place(text: str) -> Path:
    """The path. Raises: InputError for none, as of a variable of the shell that is not set."""
    if not text:
        raise InputError("expected the name of a folder, got ''; `.` is the one you are in")
    return Path(text)


ShapeList = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Bind an input's shape: name=1,3,224,224. Repeatable."),
]
Layout = Annotated[
    str,
    typer.Option(
        help="Activation layout: NHWC, NCHW, NCHW16c, or auto: those that take the least time."
    ),
]
Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trust", help="Run what the owner of this public key has signed, only. Repeatable."
    ),
]
Digest = Annotated[
    str, typer.Option(help="Run the bundle with this digest only.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print data instead of tables.")]
Records = Annotated[
    Path | None,
    typer.Option(
        help="The record store.", parser=place, metavar="PATH", show_default="artifacts/records"
    ),
]


def parse_shapes(values: Sequence[str] | None) -> dict[str, tuple[int, ...]]:
    """Input name -> shape. Raises: InputError with an example of what was meant."""
    shapes: dict[str, tuple[int, ...]] = {}
    for value in values or ():
        name, separator, numbers = value.rpartition("=")
        if not separator or not name.strip():
            raise _bad_shape(value, "a name and a shape with '=' between them")
        if name.strip() in shapes:
            raise _bad_shape(value, f"one shape for each input, and {name.strip()!r} has two")
        shapes[name.strip()] = _parse_dimensions(value, numbers)
    return shapes


def parse_layout(value: str) -> str:
    """The layout as LAYOUTS spells it. Raises: InputError."""
    for layout in LAYOUTS:
        if layout.upper() == value.upper():
            return layout
    raise InputError(f"--layout {value}: expected {', '.join(LAYOUTS)}; got {value!r}")


def _refuse_solver(value: str) -> None:
    if value:
        raise InputError(f"--layout-solver {value}: {SOLVER_REMOVED}")


LayoutSolver = Annotated[str, typer.Option(hidden=True, callback=_refuse_solver)]
"""An option of earlier versions."""


def check_model(model: str) -> None:
    """Raises: InputError if `model` is a path at which there is no file."""
    if model.startswith(("zoo:", "light:")) or Path(model).is_file():
        return
    kind = "a folder" if model and Path(model).is_dir() else "no file"
    raise InputError(
        f"{model or repr(model)}: expected an ONNX file, zoo:NAME or light:NAME, got {kind}"
    )


def trust_of(keys: Sequence[Path] | None, digest: str) -> "Trust":
    """What --trust and --digest ask of a bundle."""
    from retune.bundle.trust import Trust

    return Trust(digest=digest.strip().lower(), keys=tuple(keys or ()))


def check_module(module: Path) -> None:
    """Raises: InputError if there is no bundle."""
    if not module.is_file() and not (module / "module.json").is_file():
        raise InputError(
            f"{module}: expected a bundle (a folder with module.json, or a zip of it), got none; "
            "`retune tune MODEL --out DIR` makes DIR/module"
        )


def record_store(records: Path | None) -> "RecordStore":
    """The store at the folder, or at the default place. Raises: InputError if there is none."""
    root = records or records_root()
    if not root.is_dir():
        raise InputError(
            f"--records {root}: expected a record store, got no folder; `retune tune` makes one"
        )
    from retune.records.store import RecordStore

    return RecordStore(root)


def sorted_shapes(shapes: Mapping[str, tuple[int, ...]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes as plain data in a fixed order."""
    return tuple(sorted(shapes.items()))


def _parse_dimensions(value: str, numbers: str) -> tuple[int, ...]:
    if not numbers.strip():  # a scalar input
        return ()
    try:
        shape = tuple(int(number) for number in numbers.split(","))
    except ValueError:
        raise _bad_shape(value, "whole numbers separated by commas after '='") from None
    if any(extent < 1 for extent in shape):
        raise _bad_shape(value, "extents of at least 1")
    return shape


def _bad_shape(value: str, expected: str) -> InputError:
    return InputError(f"--shape {value}: expected {expected}; write --shape data=1,3,224,224")
