"""What an exported program consists of; `tests/device/test_export_c.py` builds and runs some."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.bundle.export.header import header_text
from retune.bundle.export.program import export_c
from retune.bundle.memory import plan_memory
from retune.bundle.plan import NetworkPlan, PlanHost
from retune.bundle.runtime.placement import WEIGHTS, lay_out
from retune.bundle.runtime.rows import step_rows
from retune.core.dtypes import BFLOAT16
from retune.core.errors import InputError
from tests.support.tests_fixtures import Golden


def _header(plan: NetworkPlan) -> str:
    memory = plan_memory(plan)
    placement = lay_out(plan, memory)
    return header_text(plan, placement, step_rows(plan, placement), memory.peak_bytes, 100)


def test_the_header(plan: NetworkPlan, golden: Golden) -> None:
    assert _header(plan) == golden


def test_the_same_plan_gives_the_same_files(plan: NetworkPlan, tmp_path: Path) -> None:
    first, second = (export_c(plan, tmp_path / name) for name in "ab")
    names = {"Makefile", "kernels.cl", "network.c", "network.h", "weights.bin"}
    assert {part.name for part in first.iterdir()} == names
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_weights_lie_as_on_the_device(plan: NetworkPlan, tmp_path: Path) -> None:
    placement = lay_out(plan, plan_memory(plan))
    data = (export_c(plan, tmp_path / "c") / "weights.bin").read_bytes()
    assert len(data) == placement.base_bytes[WEIGHTS]
    at = placement.memory["bias"].offset
    np.testing.assert_array_equal(np.frombuffer(data[at : at + 128], "<f4"), plan.weights["bias"])


def test_weights_may_be_of_bfloat16(plan: NetworkPlan, tmp_path: Path) -> None:
    stored = {name: array.astype(BFLOAT16.numpy) for name, array in plan.weights.items()}
    data = (export_c(replace(plan, weights=stored), tmp_path / "c") / "weights.bin").read_bytes()
    at = lay_out(plan, plan_memory(plan)).memory["bias"].offset
    assert data[at : at + 64] == stored["bias"].tobytes()


def test_names_are_text_and_nothing_else(plan: NetworkPlan) -> None:
    """Names are the model's: they end neither a comment nor a literal."""
    text = _header(replace(plan, name='a*/ int x; /* "b\\ ??/ \n', model_key="*/ evil"))
    assert "a* / int x; / *" in text and "model   * / evil" in text
    assert '#define NETWORK_NAME "a*/ int x; /* \\042b\\134 \\077\\077/ \\012"' in text


def test_host_steps_cannot_be_exported(plan: NetworkPlan, tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, [1, "n"])
    graph = onnx.helper.make_graph([onnx.helper.make_node("NonZero", ["x"], ["y"])], "g", [x], [y])
    model = onnx.helper.make_model(graph).SerializeToString()
    host = PlanHost(label="nms_1", model=model, inputs=("sum",), outputs=("",), after=4)
    with pytest.raises(InputError, match=r"expected kernels alone, .*: nms_1 \(NonZero\); run"):
        export_c(replace(plan, hosts=(host,)), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_program_is_replaced_and_nothing_else(plan: NetworkPlan, tmp_path: Path) -> None:
    folder = export_c(plan, tmp_path / "c")
    export_c(replace(plan, name="other"), folder)
    assert '"other"' in (folder / "network.h").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("keep")
    with pytest.raises(InputError, match="expected a new folder or an exported program"):
        export_c(plan, tmp_path / "mine")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "keep"
