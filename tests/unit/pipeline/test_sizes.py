"""Requests with ranges: what is tuned, and the programs that cover every size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from retune.core.dims import (
    Condition,
    Dim,
    Size,
    SizeValues,
    assuming,
    condition_of,
    dim_of,
)
from retune.core.errors import InputError, ModelError
from retune.core.ranges import Extents, TunedSizes, tuned_sizes
from retune.core.results import Regret
from retune.core.target import GENERIC_CPU
from retune.frontend.onnx.inputs import OpenInputs
from retune.graph.quantize.settings import QuantizeSettings
from retune.ir.expr import as_expr
from retune.pipeline.manifest import Selection
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
from retune.schedule.space import Candidate
from retune.search.regret import SizeTimes
from retune.search.task import expression_task
from retune.targets.cost.estimate import estimate
from tests.support.size_values import holding
from tests.support.sized_networks import UNESTIMATED, model_of
from tests.support.sizes import tokens
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
        at: SizeValues, number: int, region: Sequence[Condition], _: object
    ) -> tuple[str, Sequence[Condition]]:
        with assuming(at, region) as assumed:
            for least in (3, 5, 9):
                _ = batch >= least
            _ = batch + length >= 20
        return "", assumed.conditions

    every = Size("batch", 2, 32), Size("length", 7, 100)
    batch, length = map(dim_of, every)
    tuned = tuned_sizes([Extents.of("batch", ["1..32"])])
    found = covering(
        every,
        [replace(tuned[-1], values=(("batch", 32), ("length", 9)))],
        trace,
        lambda *_: UNESTIMATED,
    )
    assert [str(c) for c in found[0].conditions] == ["batch >= 9", "batch + length >= 20"]


def test_every_size_has_a_program() -> None:
    """The first one whose conditions it meets; it was traced for sizes of the same region."""
    extents = [Extents.of("batch", ["1..32"]), Extents.of("length", ["1..100"])]
    every, tuned = (BATCH, LENGTH), tuned_sizes(extents)
    asked: list[tuple[SizeValues, int]] = []

    def trace(
        at: SizeValues, number: int, region: Sequence[Condition], _: object
    ) -> tuple[int, Sequence[Condition]]:
        asked.append((at, number))
        assert all(condition.at(at) for condition in region)
        alone = Condition("eq", _dim(BATCH) - 1, holds=at["batch"] == 1)  # type: ignore[arg-type]
        return number, [alone]

    found = covering(every, tuned, trace, lambda *_: UNESTIMATED)
    for values in holding((), every):
        first = next(t for t in found if all(c.at(values) for c in t.conditions))
        assert (values["batch"] == 1) == (first.at["batch"] == 1)
    assert {t.program for t in found} == {0, 1, 2}
    assert len(asked) == len(found) <= 10


def test_programs_for_single_sizes_are_refused() -> None:
    """Where nearly every size would need its own."""
    tuned = tuned_sizes([Extents.of("batch", ["1..32"])])

    def trace(
        at: SizeValues, number: int, region: Sequence[Condition], _: object
    ) -> tuple[int, Sequence[Condition]]:
        del region
        same = _dim(BATCH) - at["batch"]
        assert isinstance(same, Dim)
        return number, [Condition("eq", same, holds=True)]

    with pytest.raises(InputError, match=r"batch=1\.\.32: expected .* more than 16 programs"):
        covering((BATCH,), tuned, trace, lambda *_: UNESTIMATED)


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


def _times(values: Sequence[SizeValues], rows: Callable[[SizeValues], int]) -> SizeTimes:
    """A network of one task, whose candidates have tiles of 1, 8 and 32 rows."""
    took = [[(c + 4) * -(-rows(v) // c) for c in (1, 8, 32)] for v in values]
    return SizeTimes(values, [np.array(took, np.float64)])


def test_regret_is_that_of_one_choice_for_all_sizes_of_a_region() -> None:
    times = _times([{"n": n} for n in (1, 8, 64)], lambda values: values["n"])  # 5, 12, 72 at best
    whole = times.regret(())
    assert (whole.worst, whole.sizes) == (2.4, 3)
    assert whole.mean == pytest.approx((12 / 5 * 96 / 72) ** (1 / 3))
    beyond = dim_of(Size("n", 1, 64)) - 8
    assert isinstance(beyond, Dim)
    few, many = (condition_of("lt", beyond, holds=holds) for holds in (True, False))
    assert times.regret([many]).worst == pytest.approx(96 / 72)
    assert times.regret([few, many]).sizes == 0
    assert SizeTimes([{"n": 1}], []).regret(()) == Regret()


def test_a_region_is_cut_where_one_program_would_be_regretted() -> None:
    """As long as it is worthwhile; each part is traced as near as can be to what is tuned."""
    size = Size("n", 1, 400)
    values = [{"n": n} for n in (*range(1, 9), 100, 200, 300, 400)]
    times = _times(values, lambda values: values["n"])
    far = _times(values[-4:], lambda values: values["n"])
    assert parts((), (size,), far) == [()]  # the largest tile is the best one
    tuned = tuned_sizes([Extents.of("n", [1, 400])])[1:]
    found = covering(
        (size,), tuned, lambda at, number, region, _: (number, region), lambda *_: times
    )
    assert [list(map(str, each.conditions)) for each in found] == [
        ["n < 4"], ["n >= 4", "n < 16"], ["n >= 16"],
    ]  # fmt: skip
    assert [dict(each.at) for each in found] == [{"n": 3}, {"n": 15}, {"n": 400}]
    assert [each.regret.sizes for each in found] == [3, 5, 4]
    assert times.regret(()).worst > max(each.regret.worst for each in found)
    assert {each.program for each in found} == {0}


def test_a_region_may_be_cut_by_a_product_of_sizes() -> None:
    """Rows of a dense layer are the tokens of all texts; no size alone says how many."""
    every = Size("batch", 1, 8), Size("length", 1, 64)
    values = [{"batch": b, "length": n} for b in (1, 2, 4, 8) for n in (1, 2, 4, 8, 32, 64)]
    times = _times(values, lambda values: values["batch"] * values["length"])
    tuned = [TunedSizes((("batch", 8), ("length", 64)), 1.0)]
    found = covering(every, tuned, lambda at, number, region, _: (at, region), lambda *_: times)
    assert [list(map(str, each.conditions)) for each in found] == [
        ["batch*length < 4"], ["batch*length >= 4", "batch*length < 32"], ["batch*length >= 32"],
    ]  # fmt: skip
    for each in found:
        assert all(condition.at(each.at) for condition in each.conditions)
        assert each.regret == Regret(mean=1.0, worst=1.0, sizes=each.regret.sizes)


def test_a_program_has_the_schedules_whose_regret_is_stated() -> None:
    """Where its region is not cut."""
    size = Size("tokens", 96, 128)
    task = expression_task(tokens(2, dim_of(size), 64, 48))
    made: list[SizeTimes] = []

    def times(at: SizeValues, _: int, region: Sequence[Condition]) -> SizeTimes:
        with assuming(at, region):
            made.append(SizeTimes.of([task], [size], GENERIC_CPU))
        return made[0]

    def trace(
        at: SizeValues, _: int, region: Sequence[Condition], defaults: Mapping[str, Candidate]
    ) -> tuple[list[float], Sequence[Condition]]:
        with assuming(at, region):
            candidate, space = defaults[task.at(at).key], task.space(GENERIC_CPU)
            sketch = space.sketch(candidate.sketch)
            row = sketch.row(dict(candidate.decisions))[None]
            took = list[float]()
            for values in made[0].values:
                with assuming(values):
                    took.append(float(estimate(sketch, row, GENERIC_CPU)[0]))
        return took, region

    (found,) = covering((size,), tuned_sizes([Extents.of("tokens", ["96..128"])])[1:], trace, times)
    ratios = found.program / made[0].tasks[0].min(axis=1)
    assert len(ratios) > 10
    assert found.regret.worst == pytest.approx(ratios.max())
    assert found.regret.mean == pytest.approx(np.exp(np.log(ratios).mean()))


def test_sizes_of_regions_before_are_not_regretted() -> None:
    """No program but theirs runs there."""
    extents = Extents.of("n", ["1..64"])
    times = _times([{"n": n} for n in (1, 2, 32, 64)], lambda values: values["n"])
    found = covering((extents.size,), tuned_sizes([extents]), lambda *_: (0, []), lambda *_: times)
    assert [each.regret.sizes for each in found] == [1, 1, 2]


def test_equal_choices_share_a_program() -> None:
    """Except for sizes of one: loops of a single iteration are gone there."""

    def chosen(batch: int, target: str = "cpu") -> Selection:
        sizes = TunedSizes((("batch", batch),), 0.2)
        return Selection(sizes=sizes, model_key=f"net of {batch}", target=target)

    found = choices_apart((chosen(1), chosen(5), chosen(12, "tuned"), chosen(32)))
    assert found == (chosen(1), chosen(12, "tuned"), chosen(32))
