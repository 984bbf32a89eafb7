"""Tests of the ONNX suite that have to fail: a pattern of names, and the reason.

An excluded test that passes fails the suite, and so does one that fails without a clear message,
unless another value is meant.
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
    differs: bool = False
    """True: the network runs, and gives another value than the test states."""


EXCLUDED: tuple[Exclusion, ...] = (
    Exclusion(
        r"FLOAT8|FLOAT4|float4|e8m0|e4m3|e5m2|e2m1",
        "the graph holds no float8 or float4 values",
    ),
    Exclusion(r"_string|strnorm|regex_full_match", "the graph holds no strings"),
    Exclusion(
        r"identity_(opt|sequence)|if_(opt|seq)|loop1[36]_seq|optional_get_element_(opt|seq)"
        r"|optional_has_element_(opt|tensor|empty_opt)|split_to_sequence|sequence_(insert|map)",
        "inputs and outputs of a network are tensors: no sequences, no optionals",
    ),
    Exclusion(r"bernoulli|training_dropout(?!_zero_ratio)", "chance is refused with a message"),
    Exclusion(
        r"resize_downsample_scales_(linear|cubic)_align_corners",
        "corners are those of the result, as in onnxruntime and PyTorch, not of a fraction",
        differs=True,
    ),
    Exclusion(r"image_decoder", "reading image files takes Pillow, which is no part of this"),
    Exclusion(
        r"maxunpool_export_with_output_shape",
        "its indices are those of a smaller image than output_shape states (onnx/onnx#2398)",
        differs=True,
    ),
)


def exclusion_of(name: str) -> Exclusion | None:
    """The first entry of the table that names the test; None if the test has to pass."""
    return next((entry for entry in EXCLUDED if re.search(entry.pattern, name)), None)
