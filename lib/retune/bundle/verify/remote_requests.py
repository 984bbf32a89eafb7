"""Requests to a board about bundles, and its answers, as JSON.

The bundles themselves travel as blobs: zips, known by their content, so that a board gets each of
them once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from retune.bundle.plan import Form
from retune.bundle.runtime.module import LaunchProfile
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.device.measure.vitals import Vitals
from retune.device.remote.wire import group_of, grouped

BUNDLE = "bundle"
"""Kind of these jobs."""

_INPUT, _OUTPUT = "input/", "output/"


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBundle:
    """A bundle, and what it is called in the answer."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleJob:
    """Something to do with bundles. Inputs of a run, and its outputs, are arrays beside it."""

    deed: Literal["run", "compare", "profile", "form"]
    bundles: tuple[SentBundle, ...]
    """Of a comparison several."""
    baseline: str | None = None
    options: BenchOptions = BenchOptions()
    repeat: int = 10
    """Of a profile."""
    calibration: str = ""
    """Name of the calibration kernel in a comparison; empty: it does not take part."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Those of the inputs in a comparison; without any, the largest ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleAnswer:
    """What came of it, and how the board was afterwards."""

    vitals: Vitals
    benchmark: Benchmark | None = None
    profile: tuple[LaunchProfile, ...] = ()
    form: Form | None = None


def input_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs of a run as a job has them."""
    return grouped(arrays, _INPUT)


def output_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a run as an answer has them."""
    return grouped(arrays, _OUTPUT)


def inputs_in(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `input_arrays` was given; copies, which may be written to."""
    return {name: array.copy() for name, array in group_of(arrays, _INPUT).items()}


def outputs_in(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `output_arrays` was given; copies, which may be written to."""
    return {name: array.copy() for name, array in group_of(arrays, _OUTPUT).items()}
