"""Kernels that reach all of their buffers from one address."""

from dataclasses import replace

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.runtime.module import Module
from retune.codegen.lower import lower
from retune.codegen.target import GPU, ONE_BASE
from retune.core.target import GENERIC_GPU
from retune.device.opencl import probe_child
from retune.device.opencl.runtime import Device, LaunchFailed, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.passes.pipeline import optimise
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag
from retune.search.extract import extract
from retune.targets.gpu.space import gpu_space
from tests.support.dags import conv2d, dense, elementwise, transpose
from tests.support.device_networks import Net
from tests.support.oracle import assert_device_agrees
from tests.support.tests_fixtures import Golden

pytestmark = pytest.mark.device

BASED = replace(GPU, offers=(ONE_BASE,))


@pytest.fixture(scope="module")
def pointers() -> Device:
    """PoCL, whose memory has addresses, as that of a GPU."""
    opened = open_device("pocl")
    opened.spec = replace(opened.spec, device_class="gpu", instructions=(ONE_BASE,))
    return opened


def test_the_text(golden: Golden):
    """A tile of several items, and an element-wise kernel of single ones."""
    texts = [lower(_gpu_program(dag), BASED).text for dag in (dense(8, 16, 32), elementwise(3, 5))]
    assert "\n\n".join(texts) == golden


def _gpu_program(dag: Dag) -> Program:
    sketch = gpu_space(from_dag(dag), GENERIC_GPU).sketches[0]
    return sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])


@pytest.mark.parametrize(
    "dag",
    [dense(8, 16, 32), conv2d(1, 6, 6, 8, 16, pad=1), elementwise(3, 5)],
    ids=["dense", "convolution", "element-wise"],
)
def test_kernels_compute_the_same(pointers: Device, dag: Dag):
    program = _gpu_program(dag)
    assert "uchar* base" in lower(program, BASED).text
    assert_device_agrees(pointers, dag, program)


def test_kernels_of_few_buffers_are_given_each():
    assert "base" not in lower(_gpu_program(transpose(3, 4, 5)), BASED).text


def test_a_network(pointers: Device):
    n = Net("based")
    x = n("Relu", n.conv(n.input(1, 8, 12, 12), 8, 16))
    y = n("Concat", n.conv(x, 16, 8), x, axis=1)
    graph = import_model(n.model(n("Softmax", n("GlobalAveragePool", y), axis=1)))
    network = extract(optimise(graph, "NHWC"), max_error=0.0)
    plan = build_plan(network, {}, pointers.spec, model_key="", notes={})
    assert "uchar* base" in plan.text
    inputs = random_inputs(graph)
    found, expected = Module(plan, pointers).run(inputs), run_graph(graph, inputs)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_memory_without_addresses_is_refused_in_words(pointers: Device):
    source = lower(_gpu_program(dense(8, 16, 32)), BASED)
    plain = open_device("pocl")
    program = plain.build(source.text)
    launch = source.launches[0]
    buffers = [plain.allocate(1 << 14) for _ in launch.args]
    with pytest.raises(LaunchFailed, match="reaches its 4 buffers from one address"):
        plain.prepare(program, launch.kernel, buffers, launch.global_size, launch.local_size)


def test_a_device_is_asked_by_trying(pointers: Device, monkeypatch: pytest.MonkeyPatch):
    assert probe_child.has_one_base(pointers)
    monkeypatch.setattr(probe_child, "BASED_PROGRAM", probe_child.BASED_PROGRAM.replace("-", "+"))
    assert not probe_child.has_one_base(pointers)
    assert ONE_BASE not in open_device("pocl").spec.instructions
