"""Plans for different sizes become the variants of one plan, which shares what is alike."""

from dataclasses import replace

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.joining import join_programs
from retune.bundle.plan import NetworkPlan
from retune.core.dims import Condition, Dim, Size, assuming, dim_of
from retune.core.dtypes import TensorType
from retune.core.target import GENERIC_CPU
from retune.graph.graph import Graph, GraphBuilder
from retune.search.extract import extract

BATCH = Size("batch", 1, 8)
_FEW = Condition("lt", dim_of(BATCH) - 3, holds=True)  # type: ignore[arg-type]


def _graph() -> Graph:
    build = GraphBuilder("net")
    build.input("x", TensorType((dim_of(BATCH), 16)))
    build.constant("w", np.arange(128, dtype=np.float32).reshape(8, 16))
    made = build.add("dense", ["x", "w"])
    return build.finish([build.add("softmax", [made], {"axis": 1})])


def _plan(batch: int, beside: dict[str, str]) -> NetworkPlan:
    with assuming({"batch": batch}):
        plan = build_plan(extract(_graph()), {}, GENERIC_CPU, model_key="", notes={}, beside=beside)
    beside.update((kernel.name, kernel.text) for kernel in plan.kernels)
    return plan


def test_what_is_alike_is_there_once() -> None:
    """Inputs, outputs, sizes, weights and kernels of one text; the rest is each variant's own."""
    texts: dict[str, str] = {}
    few, many = _plan(2, texts), _plan(8, texts)
    plan = join_programs([(few, [_FEW]), (many, [])])
    verify_plan(plan)
    assert [str(each) for each in plan.variants] == ["batch < 3", "all sizes"]
    assert plan.variants[1].first == len(few.launches)
    assert len(plan.launches) == len(few.launches) + len(many.launches)
    names = [kernel.name for kernel in plan.kernels]
    assert len(names) == len({*names})
    assert {k.text for k in plan.kernels} == {k.text for p in (few, many) for k in p.kernels}
    contents = {array.tobytes() for array in plan.weights.values()}
    assert len(contents) == len(plan.weights)
    assert isinstance(plan.buffer("x").shape[0], Dim)


def test_one_program_for_all_sizes_is_the_plan() -> None:
    """Without variants."""
    plan = _plan(8, {})
    assert join_programs([(plan, [])]) is plan


def test_kernels_of_one_name_have_one_text() -> None:
    """Else which of them runs would be chance."""
    plan = _plan(8, {})
    first, *rest = plan.kernels
    other = replace(plan, kernels=(replace(first, text=f"{first.text}//"), *rest))
    with pytest.raises(ValueError, match="expected one text"):
        join_programs([(plan, [_FEW]), (other, [])])
