"""Requests with ranges, from the file to the bundle: right at every size, and refused beyond."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from retune.bundle.format import read_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify import examiner_child
from retune.bundle.verify.examination import Comparison, Original, Verdict, Verify
from retune.bundle.verify.peers import open_peer
from retune.core.errors import InputError
from retune.device.opening import open_device
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.delivery import stage_compile
from retune.pipeline.manifest import ONE_SIZE, Selection
from retune.pipeline.network import stage_extract, stage_import
from retune.pipeline.programs import stage_compile_programs
from retune.pipeline.request import TuneRequest
from retune.pipeline.sizes import tuned_requests, usual_request

LARGEST = 6


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution with an open batch, pooled, flattened and classified."""
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)
        for name, shape in (("w", (16, 3, 3, 3)), ("b", (16,)), ("c", (5, 16)))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "c"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["z"]),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 3, 12, 12]), ("z", ["n", 5]))
    ]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], stored)
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.fixture
def request_(model: Path, tmp_path: Path) -> TuneRequest:
    return TuneRequest(
        model=model,
        out=str(tmp_path / "out"),
        records=tmp_path / "records",
        work=tmp_path / "work",
        shapes={"n": f"1..{LARGEST}"},
        trials=0,
    )


def _bundle(request: TuneRequest) -> Path:
    """Of default schedules."""
    chosen = tuple(Selection(sizes=sizes, target="") for sizes, _ in tuned_requests(request))
    network = stage_import(usual_request(request))
    made = stage_compile_programs(request, network, chosen, "untuned")
    return made.file(made.module)


def test_a_bundle_serves_every_size_of_its_range(request_: TuneRequest, model: Path) -> None:
    """As onnxruntime does; others are refused with the range."""
    module = Module.load(_bundle(request_), "pocl")
    for count in (*range(1, LARGEST + 1), 3):
        feeds = module.random_inputs(sizes={"n": count})
        assert feeds["x"].shape == (count, 3, 12, 12)
        expected = open_peer("onnxruntime", model, shapes={"x": feeds["x"].shape})(feeds)
        np.testing.assert_allclose(module.run(feeds)["z"], expected["z"], rtol=1e-4, atol=1e-6)
    with pytest.raises(InputError, match="expected n from 1 to 6; got 7"):
        module.run({"x": np.zeros((LARGEST + 1, 3, 12, 12), np.float32)})


def test_all_sizes_are_compared_with_one_oracle(
    request_: TuneRequest, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is opened once, and takes inputs of any size."""
    asked: list[object] = []
    opened = examiner_child.oracle_of
    monkeypatch.setattr(examiner_child, "oracle_of", lambda *a: asked.append(a) or opened(*a))
    bundle, worker = _bundle(request_), examiner_child.OracleWorker(open_device("pocl"))
    for count in (1, 4, LARGEST):
        comparison = Comparison(
            network=Original(onnx=model, shapes={"x": (count, 3, 12, 12)}),
            samples=2,
            tolerance=1e-4,
            sizes={"n": count},
        )
        reply = worker.handle(Verify(bundle=bundle, comparison=comparison))
        assert isinstance(reply, Verdict), reply
        assert reply.found.passed and reply.found.samples == 2
    assert len(asked) == 1


def test_one_has_the_program_of_a_fixed_shape(request_: TuneRequest) -> None:
    """The same kernels: nothing is slower for serving other sizes as well."""
    (_, alone), *_ = tuned_requests(request_)
    network = stage_import(alone)
    tasks = stage_extract(alone, network)
    made = stage_compile(alone, network, tasks, Selection(target=""), "untuned")
    fixed, plan = read_bundle(made.file(made.module)), read_bundle(_bundle(request_))
    launches = plan.at({"n": 1}).launches
    assert [launch.kernel for launch in launches] == [step.kernel for step in fixed.launches]
    texts = {kernel.name: _without_weights(kernel.text) for kernel in plan.kernels}
    assert all(texts[k.name] == _without_weights(k.text) for k in fixed.kernels)


def _without_weights(text: str) -> list[str]:
    """Lines of code that read no weights: these lie in panels that all sizes share."""
    return [line for line in text.splitlines() if line[:2] != "//" and "weight" not in line]


@pytest.mark.slow
@pytest.mark.process
def test_a_run_with_a_range_publishes_one_bundle(request_: TuneRequest) -> None:
    """It is verified at several sizes and timed at those that it is tuned for."""
    result = run_chain(request_, InProcess())
    assert result.verified.passed
    assert {"n=1", f"n={LARGEST}"} <= {*result.verified.sizes}
    assert [each.sizes for each in result.sizes] == ["n=1", f"n={LARGEST}"]
    assert all([row.name for row in each.rows][:2] == ["tuned", ONE_SIZE] for each in result.sizes)
    assert ONE_SIZE not in {row.name for row in result.latency}
    assert any(sentence.startswith("Over 2 sizes, ") for sentence in result.conclusion)
    module = Module.load(result.module, "pocl")
    for count in (1, 4):
        assert module.run(module.random_inputs(sizes={"n": count}))["z"].shape == (count, 5)
