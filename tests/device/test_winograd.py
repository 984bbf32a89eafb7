"""Winograd kernels on PoCL agree with onnxruntime, in both layouts."""

from pathlib import Path

import numpy as np
import pytest

from retune.bundle.plan import LARGEST_ERROR_NOTE
from retune.bundle.verify.compare import DIRECT_PART, TOLERANCE, verify
from retune.bundle.verify.peers import open_peer
from retune.frontend.onnx.importer import load_file
from retune.graph.passes.pipeline import Layout
from retune.schedule.space import Candidate
from retune.search.task import Task
from retune.targets.cpu.winograd import PREFIX
from tests.external.on_device import compile_graph, pocl
from tests.support.device_networks import write

pytestmark = pytest.mark.device


def a_candidate_of(form: str, task: Task) -> Candidate | None:
    """A random candidate of that form, if the task has that sketch."""
    space = task.space(pocl().spec)
    for number, sketch in enumerate(space.sketches):
        if sketch.name == f"{PREFIX}{form}":
            rows = sketch.sample(1, np.random.default_rng(len(form)))
            return space.candidate(space.population(number, rows), 0)
    return None


FORMS = [
    *(("square_windows", form) for form in ("2", "4", "6", "2.staged", "4.staged")),
    *(("long_windows", form) for form in ("2", "4", "2.staged", "4.staged")),
]
GATE = {("square_windows", "4", "NHWC"), ("square_windows", "6", "NCHW")} | {
    ("long_windows", "4.staged", "NHWC"),
}
"""Those that the quick suite runs; each takes some seconds."""


@pytest.mark.parametrize(
    ("name", "form", "layout"),
    [
        pytest.param(*case, marks=() if case in GATE else pytest.mark.slow)
        for case in ((*form, layout) for form in FORMS for layout in ("NHWC", "NCHW"))
    ],
)
def test_a_network_of_them_agrees_with_onnxruntime(
    name: str, form: str, layout: Layout, tmp_path: Path
):
    path = write(name, tmp_path)
    module = compile_graph(
        load_file(path), layout, max_error=1e-4, choose=lambda task: a_candidate_of(form, task)
    )
    assert float(module.plan.notes[LARGEST_ERROR_NOTE].split(" in ")[0]) > 0
    outcome = verify(
        module,
        open_peer("onnxruntime", path),
        module.random_inputs,
        tolerance=DIRECT_PART * TOLERANCE,
    )
    assert outcome.passed, outcome


def test_a_network_without_an_allowed_error_has_none(tmp_path: Path):
    module = compile_graph(load_file(write("square_windows", tmp_path)), max_error=0.0)
    assert module.plan.notes[LARGEST_ERROR_NOTE] == "0"
