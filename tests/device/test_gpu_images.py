"""Kernels that read constants through images, on PoCL: right alone, in a network, and in C."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.export.program import export_c
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.verify.compare import verify
from retune.bundle.verify.peers import open_peer
from retune.codegen.lower import lower
from retune.core.errors import DeviceError
from retune.core.target import GENERIC_GPU
from retune.device.measure.workload import Workload, packed_weights
from retune.device.opencl.jobs import build_jobs
from retune.device.opencl.pool import ConstantPool
from retune.device.opencl.runtime import Device, LaunchFailed
from retune.device.opening import open_device
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.targets.devices import target_of
from retune.targets.gpu.space import gpu_space
from tests.device import c_programs
from tests.support.dags import conv2d, dense, depthwise
from tests.support.device_networks import Net
from tests.support.oracle import assert_sketches_agree, inputs_for, reference

pytestmark = pytest.mark.device

PROFILE = "profile:mali-g76@pocl"
READS = replace(GENERIC_GPU, image_width=16_384, image_height=16_384, image_reads=1)
SHAPES: dict[str, Dag] = {
    "window": conv2d(1, 8, 7, 32, 16, residual=True),
    "many rows": conv2d(1, 4, 4, 64, 128),
    "1x1": conv2d(1, 5, 7, 16, 64, 1, pad=0),
    "depthwise": depthwise(1, 7, 11, 36),
    "dense": dense(16, 31, 36),
}


@pytest.fixture(scope="module")
def pocl() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("name", SHAPES)
def test_every_sketch(name: str, pocl: Device):
    dag = merge_axes(SHAPES[name])
    found = [s for s in gpu_space(from_dag(dag), READS).sketches if s.name.endswith(".image")]
    assert found
    for sketch in found:
        program = sketch.instantiate(sketch.sample(1, np.random.default_rng(1))[0])
        assert "read_imagef(" in lower(program, target_of(pocl.spec)).text
    assert_sketches_agree(pocl, dag, found)


def test_a_candidate_is_measured_with_its_images(pocl: Device):
    """As the measuring child does it: compiled, warmed up, bound and run."""
    dag = merge_axes(SHAPES["1x1"])
    sketch = gpu_space(from_dag(dag), READS).sketch("gpu.v4.direct.image")
    (row,) = sketch.sample(1, np.random.default_rng(2))
    source = lower(sketch.instantiate(row), target_of(pocl.spec))
    arrays = inputs_for(dag)
    workload = Workload(key="task", inputs=arrays, outputs=reference(dag, arrays))
    (built,) = build_jobs(pocl, [source], ConstantPool(pocl))
    built.warm()
    others = [spec for spec in source.buffers if spec.role != "weight"]
    buffers = {
        spec.name: pocl.upload(arrays.get(spec.name, np.zeros(spec.elements, np.float32)))
        for spec in others
    }
    assert built.bind(buffers, {**arrays, **packed_weights(workload, source)}).time() > 0
    (output,) = dag.outputs
    kind = next(spec for spec in dag.outputs)
    found = np.empty(kind.shape, np.float32)
    pocl.read_into(buffers[output.name], found)
    np.testing.assert_allclose(found, workload.outputs[output.name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("array", "row", "sentence"),
    [
        (np.zeros(24, np.float32), 4, "image: expected rows of 4 texels of 4 float32, got 24"),
        (np.zeros(0, np.float32), 4, "expected rows of 4 texels"),
        (np.zeros(32, np.float64), 4, "got 32 of float64"),
        (np.zeros(1 << 18, np.float32), 1 << 16, "image of 1048576 bytes in rows of 65536 texels"),
    ],
)
def test_what_is_no_image_there_is_one_sentence(
    array: np.ndarray, row: int, sentence: str, pocl: Device
):
    with pytest.raises((DeviceError, LaunchFailed), match=sentence):
        pocl.upload(array, row)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convolutions of three kinds, and a residual sum."""
    net = Net("texels")
    x = net.input(1, 8, 9, 11)
    first = net("Relu", net.conv(x, 8, 16))
    second = net("Relu", net.conv(first, 16, 16, group=16))
    third = net.conv(second, 16, 16, (1, 1))
    path = tmp_path_factory.mktemp("net") / "texels.onnx"
    onnx.save(net.model(net("Add", first, third)), path)
    return path


@pytest.fixture(scope="module")
def plan(file: Path) -> NetworkPlan:
    network = import_network(str(file), cache=file.parent).network
    return build_plan(network, {}, open_device(PROFILE).spec, model_key="0", notes={})


def test_a_network_under_a_profile_that_reads_images(plan: NetworkPlan, file: Path, tmp_path: Path):
    """In memory, as a bundle, and as a C program: onnxruntime's results, and each other's bits."""
    images = [entry for entry in plan.buffers if entry.image]
    assert len(images) >= 2, "those of both convolutions that add up channels"
    device = open_device(PROFILE)
    module = Module(plan, device)
    outcome = verify(module, open_peer("onnxruntime", file), module.random_inputs)
    assert outcome.passed, outcome
    feeds = module.random_inputs()
    expected = module.run(feeds)
    read = read_bundle(write_bundle(plan, tmp_path / "module"))
    assert read.buffers == plan.buffers
    folder = export_c(plan, tmp_path / "c")
    c_programs.build(folder)
    for found in (
        Module(read, device).run(feeds),
        c_programs.outputs_of(folder, feeds, [*expected]),
    ):
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    weights = folder / "weights.bin"
    whole = weights.read_bytes()
    for data, got in ((whole[:-4], "less"), (whole + b"x", "more"), (whole[:8], "less")):
        weights.write_bytes(data)
        said = c_programs.run(folder).stderr
        assert f"bytes and images, got {got}; export the bundle again" in said, said
