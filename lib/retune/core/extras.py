"""Packages of the installation's extras, and the error where one is missing.

The installation without extras runs bundles. Whatever needs more is loaded when it is used, within
`explained` where it begins.
"""

from collections.abc import Generator
from contextlib import contextmanager

from retune.core.errors import InputError
from retune.core.names import how_to_install

_TUNE = ("jinja2", "onnx", "pandas", "pyarrow", "rich", "scipy", "typer", "xgboost", "ml_dtypes")
EXTRAS = {
    **dict.fromkeys(_TUNE, "tune"),
    **dict.fromkeys(("cronsim", "prefect", "fastapi", "sqlalchemy"), "nightly"),
    "onnxruntime": "peers",
    "distributed": "farm",
    "cryptography": "sign",
    "tokenizers": "language",
}
"""Package, by the name under which it is imported -> the extra that has it."""


class MissingExtra(InputError, ImportError):
    """A package is not installed that an extra has."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtra | None:
    """What to say instead; None for a module that no extra has."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    return MissingExtra(f"this needs {package}, which is not installed; {how_to_install(extra)}")


@contextmanager
def explained() -> Generator[None]:
    """Raises: MissingExtra where a module of the context is one that an extra has."""
    try:
        yield
    except ModuleNotFoundError as error:
        if found := missing_extra(error):
            raise found from error
        raise
