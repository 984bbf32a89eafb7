"""Checks that a file or folder can be written or replaced, before the work that makes it."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from retune.core.errors import InputError


def check_replaces(folder: Path, kind: str, is_one: Callable[[Path], bool]) -> None:
    """Holds after the call: the folder is new, empty, or of the `kind` that `is_one` tells.

    Raises: InputError if something else would be replaced.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())) or is_one(folder):
        return
    raise InputError(
        f"{folder}: expected a new folder or {kind} to replace; got something else, which is left "
        "as it is; name another folder"
    )


def check_folder(what: str, folder: Path) -> None:
    """Holds after the call: `folder` is one that can be written to, or could be made just now.

    Nothing is made or left behind. `what` is how the user named it, such as an option.
    Raises: InputError.
    """
    _check_accepts(f"{what} {folder}", folder)


def check_file(what: str, path: Path) -> None:
    """Holds after the call: a file at `path` could be written just now; see `check_folder`."""
    if path.is_dir():
        raise InputError(f"{what} {path}: expected the name of a file, got a folder")
    _check_accepts(f"{what} {path}", path.parent)


def check_ending(named: str, path: Path, *endings: str) -> None:
    """Holds after the call: the file's name has one of the endings, by which its kind is known.

    `named` is how the user named it. Raises: InputError.
    """
    if not path.name.endswith(endings):
        raise InputError(f"{named}: expected a name that ends with {', '.join(endings)}")


def _check_accepts(named: str, folder: Path) -> None:
    whole = folder.absolute()
    nearest = next(path for path in (whole, *whole.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        kind = "a file" if nearest.is_file() else "something else"
        raise InputError(f"{named}: expected a folder, got {kind} at {nearest}")
    try:
        with tempfile.TemporaryDirectory(prefix=".retune-", dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"{named}: expected a folder that can be written to; {nearest} refuses it "
            f"({error.strerror}): name another one"
        ) from None
