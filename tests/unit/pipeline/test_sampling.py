"""Samples that users give: read, checked, stored with the bundle, and used by every comparison."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from retune.bundle.format import pack_zip, program_key, read_bundle, write_bundle
from retune.bundle.runtime.module import sample_inputs
from retune.bundle.verify.compare import sampling
from retune.bundle.verify.reach import untaken_branches
from retune.core.errors import InputError, RecordError, VerifyError
from retune.frontend.onnx.importer import import_model
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.network import stage_import
from retune.pipeline.quantization import check_settings
from retune.pipeline.request import TuneRequest, check_samples
from retune.pipeline.sampling import given_content, given_samples, stage_samples
from tests.support.bundle_fixtures import make_plan
from tests.support.networks import model, node


@pytest.fixture
def request_(tmp_path: Path) -> TuneRequest:
    """Rows of a table, less a scalar, beside a cache that is empty."""
    kinds = {"x": (TensorProto.FLOAT, [1, 3]), "i": (TensorProto.INT64, [2]),
             "s": (TensorProto.FLOAT, []), "past": (TensorProto.FLOAT, [0, 3])}  # fmt: skip
    graph = helper.make_graph(
        [node("Concat", ["past", "x"], ["all"], axis=0), node("Sub", ["all", "s"], ["less"]),
         node("Cast", ["i"], ["f"], to=TensorProto.FLOAT)],
        "net",
        [helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items()],
        [helper.make_tensor_value_info("less", TensorProto.FLOAT, [1, 3]),
         helper.make_tensor_value_info("f", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, tmp_path / "net.onnx")
    folders = {name: str(tmp_path / name) for name in ("out", "records", "work")}
    return TuneRequest(str(tmp_path / "net.onnx"), samples=tmp_path / "in.npz", **folders)


def arrays(**changed: object) -> dict[str, np.ndarray]:
    made = {
        "x": np.arange(9, dtype=np.float32).reshape(3, 3),
        "i": np.arange(6),
        "s": np.float32([1, -np.inf, 3]),
        "past": np.zeros((0, 3), np.float32),
        "unused": np.zeros(1),
    }
    return {name: a for name, a in {**made, **changed}.items() if a is not None}  # type: ignore[misc]


def save(request: TuneRequest, **changed: object) -> None:
    assert isinstance(request.samples, str)
    np.savez(request.samples, **arrays(**changed))  # type: ignore[arg-type]


def test_given_samples_lie_along_a_first_axis(request_: TuneRequest):
    save(request_)
    made = stage_samples(request_, stage_import(request_))
    found = given_samples(made)
    assert made.given == 3 and made.oracle == "onnxruntime"
    assert {name: a.shape for name, a in found.items()} == {
        "x": (3, 1, 3), "i": (3, 2), "s": (3,), "past": (3, 0, 3)}  # fmt: skip
    assert found["s"].tolist() == [1, -np.inf, 3] and found["i"][2].tolist() == [4, 5]


def test_one_sample_of_a_scalar_may_be_a_scalar(request_: TuneRequest):
    save(request_, x=np.zeros((1, 3), np.float32), i=np.arange(2), s=np.float32(2))
    assert stage_samples(request_, stage_import(request_)).given == 1


def test_stages_follow_the_content_of_the_file(request_: TuneRequest):
    save(request_)
    first = given_content(request_)
    save(request_, i=np.arange(6) + 1)
    assert given_content(request_) != first
    assert given_content(TuneRequest("m", "o", samples="3")) == ()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x": None}, r"in.npz: samples for .*: expected an array 'x', got i, s, past, unused"),
        ({"x": np.zeros((3, 3))}, r"expected 'x' as float32\[N, 3\], got float64\[3, 3\] for 'x'"),
        ({"x": np.zeros((3, 4), np.float32)}, r"expected 'x' as float32.*, got float32\[3, 4\]"),
        ({"i": np.arange(4)}, r"expected the same number of whole parts .* got 3 of 'x', 4 of 'i'"),
        ({"i": np.arange(5)}, r"expected the same number of whole parts"),
    ],
)  # fmt: skip
def test_what_the_network_does_not_take_is_refused(
    changed: dict[str, object], message: str, request_: TuneRequest
):
    save(request_, **changed)
    with pytest.raises(InputError, match=message):
        stage_samples(request_, stage_import(request_))


def test_a_path_without_a_file_is_refused():
    check_samples(2)
    with pytest.raises(InputError, match=r"samples none.npz: expected a number, an .npz file"):
        check_samples("none.npz")


def test_files_of_another_kind_are_refused_before_anything_is_imported(tmp_path: Path):
    with pytest.raises(InputError, match="got a folder without any"):
        check_samples(str(tmp_path))
    (tmp_path / "a.npz").write_text("not an archive")
    with pytest.raises(InputError, match=r"got a folder in which a\.npz is none"):
        check_samples(str(tmp_path))
    with pytest.raises(InputError, match=r"got another kind of file"):
        check_settings(QuantizeSettings(), str(tmp_path / "a.npz"), None)


@pytest.mark.parametrize(("given", "kept"), [("3", 3), (3, 3), (Path("a.npz"), "a.npz")])
def test_samples_are_a_number_or_a_path(given: object, kept: object):
    assert TuneRequest("m", "o", samples=given).samples == kept  # type: ignore[arg-type]


def test_samples_travel_with_the_bundle(tmp_path: Path):
    plan = make_plan()
    entries = {name: plan.buffer(name) for name in plan.inputs}
    rng = np.random.default_rng(0)
    given = {n: rng.random((2, *e.shape)).astype(e.dtype) for n, e in entries.items()}
    bare = write_bundle(plan, tmp_path / "bare")
    folder = write_bundle(replace(plan, samples=given), tmp_path / "module")
    for path in (folder, pack_zip(folder, tmp_path / "net.zip")):
        again = read_bundle(path)
        for number in range(3):
            feeds = sample_inputs(again, number)
            assert all(np.array_equal(feeds[n], given[n][number % 2]) for n in given)
        assert sampling(again, None, {}).count == 2 and sampling(again, 1, {}).count == 1
        assert sampling(again, None, {n: a[:1] for n, a in given.items()}).count == 1
    assert program_key(folder) == program_key(bare), "it is the same program"
    assert sampling(read_bundle(bare), 5, {}).count == 5
    (folder / "samples.safetensors").write_bytes(b"damaged")
    with pytest.raises(RecordError, match=r"samples.safetensors"):
        read_bundle(folder)


def test_samples_of_another_network_are_not_written(tmp_path: Path):
    plan = make_plan()
    other = {name: np.zeros((2, 1), np.float32) for name in plan.inputs}
    with pytest.raises(VerifyError, match="samples: expected some of each input"):
        write_bundle(replace(plan, samples=other), tmp_path / "module")


@pytest.mark.parametrize(("values", "left"), [((1, 2), 1), ((-3, 2), 0)])
def test_a_branch_that_no_sample_takes_is_named(values: tuple[float, ...], left: int):
    def branch(op: str) -> onnx.GraphProto:
        made = helper.make_tensor_value_info(op, TensorProto.FLOAT, [3])
        return helper.make_graph([node(op, ["x"], [op])], op, [], [made])

    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Greater", ["top", "zero"], ["above"]),
        node("If", ["above"], ["y"], then_branch=branch("Exp"), else_branch=branch("Neg")),
    ]
    zero = np.float32(0).reshape(())
    graph = import_model(model(nodes, {"x": [3]}, weights={"zero": zero}))
    samples = [{"x": np.full(3, value, np.float32)} for value in values]
    assert len(untaken_branches(graph, samples)) == left
