"""Tests of the ONNX suite that are not run: a pattern of names, the reason, and the ways to run."""

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Tests whose name matches `pattern` are not run, or not by the executors in `only`."""

    pattern: str
    reason: str
    only: tuple[str, ...] = ()


EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion(
        r"FLOAT8|FLOAT4|BFLOAT16|bfloat16|INT2|INT4|e8m0",
        "the graph holds no float8, float4, bfloat16, int2 or int4 values",
    ),
    Exclusion(r"_uint(16|32|64)$", "the graph holds no unsigned integers wider than 8 bits"),
    Exclusion(r"_string", "the graph holds no strings"),
    Exclusion(
        r"identity_(opt|sequence)", "the graph holds tensors only: no sequences, no optionals"
    ),
    Exclusion(
        r"center_crop_pad_.*expanded",
        "the pads are computed from an input at run time; shapes are fixed at import",
    ),
    Exclusion(
        r"(edge|reflect|wrap)_pad", "padding modes other than constant are refused with a message"
    ),
    Exclusion(r"maxpool_with_argmax", "the output Indices of MaxPool is refused with a message"),
    Exclusion(r"reduce_(max|min)_empty_set", "a maximum over no elements has no kernel"),
    Exclusion(r"training_(dropout|mode)", "training mode is refused with a message"),
)


def reason_to_exclude(name: str, executor: str = "") -> str:
    """Why the test is not run by the executor; '' if it is."""
    return next(
        (
            entry.reason
            for entry in EXCLUDED
            if re.search(entry.pattern, name) and (not entry.only or executor in entry.only)
        ),
        "",
    )
