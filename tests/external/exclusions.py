"""Tests of the ONNX suite that have to fail: a pattern of names, and the reason.

An excluded test that passes fails the suite, and so does one that fails without a clear message.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Tests whose name matches `pattern` end with one clear error, on a device if `device`."""

    pattern: str
    reason: str
    device: bool = False
    """True: the numpy meaning passes, the device refuses the network."""


EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion(
        r"FLOAT8|FLOAT4|BFLOAT16|bfloat16|INT2|INT4|e8m0|e4m3|e5m2|e2m1|linear_u?int[24]",
        "the graph holds no float8, float4, bfloat16, int2 or int4 values",
    ),
    Exclusion(r"_string", "the graph holds no strings"),
    Exclusion(
        r"identity_(opt|sequence)", "the graph holds tensors only: no sequences, no optionals"
    ),
    Exclusion(
        r"center_crop_pad_.*expanded",
        "the pads are computed from an input at run time; shapes are fixed at import",
    ),
    Exclusion(r"training_dropout(?!_zero_ratio)", "dropping at random is refused with a message"),
)


def exclusion_of(name: str) -> Exclusion | None:
    """The first entry of the table that names the test; None if the test has to pass."""
    return next((entry for entry in EXCLUDED if re.search(entry.pattern, name)), None)
