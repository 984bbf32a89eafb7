"""Names of models, folders and artifacts, and how one follows from another."""

import re
from pathlib import Path

from retune.core.errors import InputError

BUILT_IN = ("zoo:", "light:")
"""Prefixes of model names that are not files."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def is_built_in(model: str) -> bool:
    """True if the model is built by this program, and false if it is a file."""
    return model.startswith(BUILT_IN)


def model_name(model: str) -> str:
    """The name of a built-in model, or of a file without its folder and ending."""
    return model.partition(":")[2] if is_built_in(model) else Path(model).stem


def check_model_file(model: str) -> None:
    """Raises: InputError if `model` is a path at which there is no file."""
    if is_built_in(model) or Path(model).is_file():
        return
    got = "a folder" if model and Path(model).is_dir() else "no file"
    raise InputError(
        f"{model or repr(model)}: expected an ONNX file, zoo:NAME or light:NAME, got {got}"
    )


def how_to_install(extra: str) -> str:
    """What to do where an optional part of retune (an extra of pyproject.toml) is missing.

    It installs from the source: in the package index, `retune` is an unrelated project.
    """
    return f"type in the folder of retune's source: pip install '.[{extra}]'"


def slug(*words: str) -> str:
    """The words as a key of a Prefect artifact: lower-case letters, digits and dashes."""
    return "-".join(re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") for word in words)


def check_name(name: str) -> None:
    """Raises: InputError if it cannot be the name of a folder on every system."""
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise InputError(
            f"expected letters, digits, dots, dashes and underscores, a letter or digit first, "
            f"got {name!r}"
        )
