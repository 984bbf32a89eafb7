"""Element types that tests add to the table and take out again."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from retune.core.dtypes import DTYPES, ENTRIES, FLOAT32, NUMPY_DTYPES, DType, define

E5M2FNUZ: dict[str, Any] = {
    "name": "float8_e5m2fnuz", "kind": "float", "bits": 8, "exponent": 5, "specials": "fnuz",
    "compute": FLOAT32, "tolerance": 0.25,
}  # fmt: skip
"""ONNX and safetensors have it."""
E3M4: dict[str, Any] = {
    "name": "float8_e3m4", "kind": "float", "bits": 8, "exponent": 3, "compute": FLOAT32,
    "tolerance": 0.0625,
}  # fmt: skip
"""They have not."""


@contextmanager
def new_type(entry: dict[str, Any]) -> Generator[DType]:
    """The table with one more entry, for as long as the context lasts."""
    made = define(**entry)
    try:
        yield made
    finally:
        del ENTRIES[made]
        DTYPES.remove(made)
        NUMPY_DTYPES.remove(made)
