"""Requests with ranges: what is tuned, and the programs that cover every size."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.core.dims import Condition, Dim, Size, SizeValues, assuming, dim_of, holding
from retune.core.errors import InputError, ModelError
from retune.core.ranges import Extents, tuned_sizes
from retune.frontend.onnx.inputs import OpenInputs
from retune.graph.quantize.settings import QuantizeSettings
from retune.ir.expr import as_expr
from retune.pipeline.manifest import Selection, SizeSelection
from retune.pipeline.network import stage_import
from retune.pipeline.programs import choices_apart
from retune.pipeline.quantization import sampled_network
from retune.pipeline.request import TuneRequest
from retune.pipeline.sizes import (
    covering,
    fixed_inputs,
    fixed_request,
    opened,
    parts,
    regions,
    sizes,
    tuned_requests,
)
from tests.support.sized_networks import model_of
from tests.unit.graph.test_sizes import STATED

BATCH, LENGTH = Size("batch", 1, 32), Size("length", 1, 100)


def _request(work: Path, **shapes: str) -> TuneRequest:
    return TuneRequest(model="zoo:mlp", out=str(work / "out"), work=work, shapes=shapes, minutes=9)


def _dim(size: Size) -> Dim:
    dim = dim_of(size)
    assert isinstance(dim, Dim)
    return dim


def test_a_range_is_tuned_at_some_sizes(tmp_path: Path) -> None:
    """By requests of fixed shapes, which share the budget."""
    request = _request(tmp_path, data="1:2,8:1")
    assert sizes(_request(tmp_path, data="1..32,784"))
    assert not sizes(_request(tmp_path, data="4,784"))
    request = _request(tmp_path, data="1..32,784")
    assert sizes(request) == (Size("batch", 1, 32),)
    found = tuned_requests(request)
    assert [str(each) for each, _ in found] == ["batch=1", "batch=5", "batch=32"]
    assert [dict(fixed.shapes)["data"] for _, fixed in found] == [(1, 784), (5, 784), (32, 784)]
    assert [fixed.minutes for _, fixed in found] == [3.0, 3.0, 3.0]


def test_one_recipe_quantizes_a_network_for_all_sizes_of_a_range(tmp_path: Path) -> None:
    """Means over extents that differ stay in floats at each; samples have sizes of their own."""
    text = (
        "(float[n, 3, h, w] x) => (float[n, 3, 1, 1] y, float[n, 3, h, 1] z)"
        " { r = Relu(x) y = GlobalAveragePool(r) a = Constant <value_ints = [3]> ()"
        " z = ReduceMean(r, a) }"
    )
    path = tmp_path / "net.onnx"
    onnx.save(model_of(text), path)
    request = TuneRequest(
        model=path,
        out="",
        work=tmp_path,
        shapes={"n": "1..8", "h": "8..64", "w": 16},
        quantize=QuantizeSettings(),
        calibration="random",
    )
    for _, fixed in tuned_requests(request):
        assert fixed.quantize == QuantizeSettings(skip=("y",))
    for _, fixed in tuned_requests(replace(request, shapes={"n": "1..8", "h": 8, "w": 16})):
        assert fixed.quantize == QuantizeSettings()
    np.savez(tmp_path / "data.npz", x=np.zeros((6, 3, 40, 24), np.float32))
    own = fixed_request(request, {"n": 4, "h": 8})
    own = replace(own, calibration=str(tmp_path / "data.npz"))
    graph = sampled_network(own, stage_import(own))
    assert graph.types["x"].shape == (2, 3, 40, 24)


def test_ranges_of_values_are_tuned_too(tmp_path: Path) -> None:
    """By requests of fixed values; what has none is the request of fixed shapes that it was."""
    net, path = model_of(STATED["ends"][0]), tmp_path / "net.onnx"
    onnx.save(net, path)
    request = TuneRequest(
        model=path, out="", work=tmp_path, shapes={"n": 4}, values={"s": "3..4"}, trials=8
    )
    found = tuned_requests(request)
    assert [str(each) for each, _ in found] == ["s=3", "s=4"]
    assert [fixed.values for _, fixed in found] == [(("s", (3,)),), (("s", (4,)),)]
    assert fixed_inputs(found[0][1]) == OpenInputs({"n": (4,)}, {"s": (3,)})
    with pytest.raises(InputError, match=r"s=0\.\.99999999: expected at most 16777216 comb"):
        tuned_requests(replace(request, values={"s": "0..99999999"}))
    with pytest.raises(InputError, match=r"s=3\.\.4: expected single numbers here"):
        fixed_inputs(request)


def test_contradictory_ranges_are_refused(tmp_path: Path) -> None:
    """With the one to write."""
    with pytest.raises(InputError, match=r"shapes: expected .* such as 1\.\.32"):
        _request(tmp_path, data="8..1,784")
    with pytest.raises(ModelError, match="zoo:mlp has one input"):
        opened(_request(tmp_path, data="1..2,784", batch="1..4,9"))


def test_programs_have_no_condition_that_others_imply() -> None:
    """Neither a weaker one of a size, nor one that two others make up."""

    def trace(
        at: SizeValues, number: int, region: Sequence[Condition]
    ) -> tuple[str, Sequence[Condition]]:
        with assuming(at, region) as assumed:
            for least in (3, 5, 9):
                _ = batch >= least
            _ = batch + length >= 20
        return "", assumed.conditions

    every = Size("batch", 2, 32), Size("length", 7, 100)
    batch, length = map(dim_of, every)
    tuned = tuned_sizes([Extents.of("batch", ["1..32"])])
    found = covering(every, [replace(tuned[-1], values=(("batch", 32), ("length", 9)))], trace)
    assert [str(c) for c in found[0].conditions] == ["batch >= 9", "batch + length >= 20"]


def test_every_size_has_a_program() -> None:
    """The first one whose conditions it meets; it was traced for sizes of the same region."""
    extents = [Extents.of("batch", ["1..32"]), Extents.of("length", ["1..100"])]
    every, tuned = (BATCH, LENGTH), tuned_sizes(extents)
    asked: list[tuple[SizeValues, int]] = []

    def trace(
        at: SizeValues, number: int, region: Sequence[Condition]
    ) -> tuple[int, Sequence[Condition]]:
        asked.append((at, number))
        assert all(condition.at(at) for condition in region)
        alone = Condition("eq", _dim(BATCH) - 1, holds=at["batch"] == 1)  # type: ignore[arg-type]
        return number, [alone]

    found = covering(every, tuned, trace)
    for values in holding((), every):
        first = next(t for t in found if all(c.at(values) for c in t.conditions))
        assert (values["batch"] == 1) == (first.at["batch"] == 1)
    assert {t.program for t in found} == {0, 1, 2}
    assert len(asked) == len(found) <= 10


def test_programs_for_single_sizes_are_refused() -> None:
    """Where nearly every size would need its own."""
    tuned = tuned_sizes([Extents.of("batch", ["1..32"])])

    def trace(
        at: SizeValues, number: int, region: Sequence[Condition]
    ) -> tuple[int, Sequence[Condition]]:
        del region
        same = _dim(BATCH) - at["batch"]
        assert isinstance(same, Dim)
        return number, [Condition("eq", same, holds=True)]

    with pytest.raises(InputError, match=r"batch=1\.\.32: expected .* more than 16 programs"):
        covering((BATCH,), tuned, trace)


def test_one_is_a_region_by_itself() -> None:
    """Its programs have no loop over it; other borders lie between the sizes that are tuned."""
    tuned = tuned_sizes([Extents.of("batch", ["1..32"])])
    assert [list(map(str, each)) for each in regions((BATCH,), tuned)] == [
        ["batch < 2"], ["batch < 13", "batch >= 2"], ["batch >= 13"],
    ]  # fmt: skip
    with assuming({"batch": 1}, regions((BATCH,), tuned)[0]) as assumed:
        assert dim_of(BATCH) == 1
        assert str(as_expr(dim_of(BATCH) * 7)) == "7"
    assert list(map(str, assumed.conditions)) == ["batch < 2"]


def test_wide_regions_are_cut_between_vectors() -> None:
    """Once, along their widest size; each part is traced as near as can be to what is tuned."""
    size = Size("n", 1, 400)
    cut = parts((), (BATCH, size))
    assert [list(map(str, each)) for each in cut] == [["n < 32"], ["n >= 32"]]
    assert parts((), (Size("n", 8, 128, 8),)) == [()]
    tuned = tuned_sizes([Extents.of("n", [1, 400])])[1:]
    found = covering((size,), tuned, lambda at, number, region: (number, region))
    assert [(dict(each.at), each.program) for each in found] == [({"n": 31}, 0), ({"n": 400}, 0)]
    assert [list(map(str, each.conditions)) for each in found] == [["n < 32"], ["n >= 32"]]


def test_equal_choices_share_a_program() -> None:
    """Except for sizes of one: loops of a single iteration are gone there."""

    def chosen(batch: int, target: str = "cpu") -> SizeSelection:
        selection = Selection(target=target)
        values = (("batch", batch),)
        return SizeSelection(values=values, weight=0.2, model_key="net", selection=selection)

    found = choices_apart((chosen(1), chosen(5), chosen(12, "tuned"), chosen(32)))
    assert found == (chosen(1), chosen(12, "tuned"), chosen(32))
