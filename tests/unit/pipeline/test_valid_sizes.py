"""Sizes at which a network has no meaning are refused before anything is searched."""

from pathlib import Path
from typing import Any, cast

import onnx
import pytest
from onnx import TensorProto, helper

from retune.core.errors import ModelError
from retune.pipeline.calling import Caller
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from retune.pipeline.valid_sizes import check_every_size


def _pooled(folder: Path, parts: int) -> Path:
    """So many rows of a part of its length beside each other are added to a row."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["part"], kernel_shape=[parts], strides=[parts]),
        helper.make_node("Concat", ["part"] * parts, ["whole"], axis=2),
        helper.make_node("Add", ["x", "whole"], ["y"], name="join"),
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 3, "n"]) for name in ("x", "y")
    ]
    graph = helper.make_graph(nodes, "pooled", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "pooled.onnx")
    return folder / "pooled.onnx"


def _request(folder: Path, sizes: str, parts: int = 2) -> TuneRequest:
    model = str(_pooled(folder, parts))
    return TuneRequest(model=model, out=str(folder / "out"), work=folder, shapes={"n": sizes})


def test_a_range_with_sizes_that_do_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"at n=9: .*'join'.*; give steps of 2: 6..9:2 for n"):
        check_every_size(_request(tmp_path, "5,8,9"))


@pytest.mark.parametrize("sizes", ["4..8:2", "6,8"])
def test_steps_at_which_all_fits_are_accepted(tmp_path: Path, sizes: str) -> None:
    check_every_size(_request(tmp_path, sizes))


def test_sizes_that_fit_nowhere_have_no_steps(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"at n=9: .*; give steps of 2: 6..9:2 for n"):
        check_every_size(_request(tmp_path, "5..9:2"))
    with pytest.raises(ModelError, match=r"at n=9: .*; give single extents, or a narrower range"):
        check_every_size(_request(tmp_path, "9..9"))


def test_steps_are_within_the_range(tmp_path: Path) -> None:
    """No multiple of 4 is."""
    with pytest.raises(ModelError, match=r"at n=7: .*; give single extents, or a narrower range"):
        check_every_size(_request(tmp_path, "5..7", parts=4))


def test_a_run_begins_with_it(tmp_path: Path) -> None:
    """No stage is called."""
    with pytest.raises(ModelError, match="give steps of 2"):
        run_chain(_request(tmp_path, "4..8"), cast(Caller, cast(Any, None)))
