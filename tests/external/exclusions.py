"""Tests of the ONNX suite that are not run: a pattern of names, and the reason."""

import re

EXCLUDED: tuple[tuple[str, str], ...] = (
    (
        r"FLOAT8|FLOAT4|BFLOAT16|bfloat16|INT2|INT4|e8m0",
        "the graph holds no float8, float4, bfloat16, int2 or int4 values",
    ),
    (r"_uint(16|32|64)$", "the graph holds no unsigned integers wider than 8 bits"),
    (r"_string", "the graph holds no strings"),
    (r"identity_(opt|sequence)", "the graph holds tensors only: no sequences, no optionals"),
    (
        r"center_crop_pad_.*expanded",
        "the pads are computed from an input at run time; shapes are fixed at import",
    ),
    (r"(edge|reflect|wrap)_pad", "padding modes other than constant are refused with a message"),
    (r"maxpool_with_argmax", "the output Indices of MaxPool is refused with a message"),
    (r"reduce_(max|min)_empty_set", "a maximum over no elements has no kernel"),
    (r"training_(dropout|mode)", "training mode is refused with a message"),
)


def reason_to_exclude(name: str) -> str:
    """Why the test is not run; '' if it is."""
    return next((reason for pattern, reason in EXCLUDED if re.search(pattern, name)), "")
