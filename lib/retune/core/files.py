"""Whether a place can be written to: found out before the work whose result it shall hold."""

import os
import tempfile
from pathlib import Path

from retune.core.errors import InputError


def check_folder(what: str, folder: Path) -> None:
    """Holds after the call: `folder` is one that can be written to, or could be made just now.

    Nothing is made or left behind. `what` is how the user named it, such as an option.
    Raises: InputError.
    """
    whole = folder.absolute()
    nearest = next(place for place in (whole, *whole.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        kind = "a file" if nearest.is_file() else "something else"
        raise InputError(f"{what} {folder}: expected a folder, got {kind} at {nearest}")
    try:
        with tempfile.TemporaryDirectory(prefix=".retune-", dir=nearest):
            pass
    except OSError as error:
        raise InputError(
            f"{what} {folder}: expected a folder that can be written to; {nearest} refuses it "
            f"({error.strerror}): name another one"
        ) from None


def check_file(what: str, path: Path) -> None:
    """Holds after the call: a file at `path` could be written just now; see `check_folder`."""
    if path.is_dir():
        raise InputError(f"{what} {path}: expected the name of a file, got a folder")
    check_folder(what, path.parent)
