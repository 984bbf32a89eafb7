"""Deviations are measured against the reference's range, and nothing odd passes."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from retune.bundle.runtime.module import Module, random_inputs
from retune.bundle.verify.by_parts import Parts, PartValue
from retune.bundle.verify.compare import Verification, compare, verify
from retune.bundle.verify.examination import Verdict
from retune.bundle.verify.reach import Reach
from retune.bundle.verify.rounding import OutputRounding
from retune.core.dtypes import TensorType
from retune.core.errors import InputError

Arrays = Mapping[str, np.ndarray]


def feeds(seed: int) -> Arrays:
    return random_inputs({"x": TensorType((16,))}, seed)


def test_equal_outputs_pass() -> None:
    outcome = verify(_double, _double, feeds, samples=2)
    assert (outcome.passed, outcome.samples, outcome.max_abs) == (True, 2, 0.0)
    assert [entry.name for entry in outcome.outputs] == ["y", "z"]


def test_each_sample_is_another_one_and_both_sides_get_the_same() -> None:
    seen: list[np.ndarray] = []

    def module(inputs: Arrays) -> Arrays:
        seen.append(inputs["x"])
        return _double(inputs)

    def reference(inputs: Arrays) -> Arrays:
        seen.append(inputs["x"])
        return _double(inputs)

    verify(module, reference, feeds, samples=2, seed=7)
    assert np.array_equal(seen[0], seen[1])
    assert np.array_equal(seen[2], seen[3])
    assert not np.array_equal(seen[0], seen[2])


def test_the_worst_output_decides() -> None:
    def module(inputs: Arrays) -> Arrays:
        return {**_double(inputs), "z": inputs["x"] + np.float32(0.01)}

    outcome = verify(module, _double, feeds, tolerance=1e-4)
    assert not outcome.passed
    assert outcome.outputs[0].max_abs == 0
    assert outcome.max_abs == pytest.approx(0.01, rel=1e-3)
    assert outcome.max_rel_range == outcome.outputs[1].max_rel_range
    assert verify(module, _double, feeds, tolerance=0.1).passed


def test_the_deviation_is_relative_to_the_range() -> None:
    found = compare("y", _f32(0, 10.5, 20), _f32(0, 10, 20))
    assert (found.max_abs, found.max_rel_range, found.reference_range) == (0.5, 0.025, 20)


@pytest.mark.parametrize(
    ("got", "expected", "relative"),
    [
        ((4.0, 5.0), (4.0, 4.0), 0.25),  # no range: the magnitude
        ((0.0, 0.5), (0.0, 0.0), 0.5),  # no magnitude either: as it is
        ((1.0,), (1.0,), 0.0),
        ((inf, 1.0, 2.0), (inf, 1.0, 2.0), 0.0),
        ((nan, 1.0), (nan, 1.0), 0.0),
        ((), (), 0.0),
    ],
)
def test_references_without_a_range(
    got: tuple[float, ...], expected: tuple[float, ...], relative: float
) -> None:
    assert compare("y", _f32(*got), _f32(*expected)).max_rel_range == relative


@pytest.mark.parametrize(
    ("got", "problem"),
    [
        (None, "missing"),
        (np.zeros((2, 1), np.float32), r"expected shape (2,); got (2, 1)"),
        (np.zeros(2), "expected float32; got float64"),
        (np.array([nan, 1], np.float32), "infinite or NaN where the reference is finite"),
    ],
)
def test_what_cannot_be_compared_says_why(got: np.ndarray | None, problem: str) -> None:
    found = compare("y", got, _f32(0, 1))
    assert (found.problem, found.max_rel_range) == (problem, inf)


def test_a_lost_infinity_is_found() -> None:
    assert compare("y", _f32(1e30, 1), _f32(inf, 1)).problem == "infinite or NaN values differ"


def test_whole_numbers_are_compared_without_overflow() -> None:
    low, high = np.array([0, 0], np.uint8), np.array([255, 0], np.uint8)
    assert compare("y", low, high).max_abs == compare("y", high, low).max_abs == 255


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_integers_and_truth_values_have_to_be_equal(dtype: str) -> None:
    expected = np.array([0, 1, 1, 0]).astype(dtype)
    assert compare("y", expected.copy(), expected).max_rel_range == 0
    found = compare("y", np.array([0, 1, 0, 0]).astype(dtype), expected)
    assert found.max_rel_range == inf
    assert found.problem == "1 of 4 values differ, which have to be equal"


def test_shapes_that_depend_on_the_data_are_compared() -> None:
    found = compare("y", np.zeros((3, 4), np.int64), np.zeros((2, 4), np.int64))
    assert found.problem == "expected shape (2, 4); got (3, 4)"
    none = np.zeros((0, 4), np.int64)
    assert compare("y", none, none).max_rel_range == 0


@pytest.mark.parametrize("right", [True, False])
def test_parts_take_the_place_of_outputs_that_do_not_agree(right: bool) -> None:
    def jumps(inputs: Arrays) -> Arrays:
        return {**_double(inputs), "z": np.flip(inputs["x"])}

    def parts(inputs: Arrays, made: Arrays) -> list[PartValue]:
        asked.append(inputs["x"])
        np.testing.assert_array_equal(made["z"], jumps(inputs)["z"])
        x = inputs["x"]
        return [PartValue(name="inside", got=x, expected=x if right else -x)]

    asked: list[np.ndarray] = []
    outcome = verify(jumps, _double, feeds, samples=2, parts=Parts(parts))
    assert (outcome.passed, outcome.by_parts, len(asked)) == (right, True, 2)
    assert [entry.name for entry in outcome.outputs] == ["inside"]


@pytest.mark.parametrize(("farthest", "right"), [(0.5e-4, True), (2e-4, False)])
def test_a_part_may_decide_a_comparison_of_what_is_as_near_as_floats_deviate(
    farthest: float, right: bool
) -> None:
    margin = _f32(-0.4, -farthest, farthest, 0.6, np.inf)
    kept = PartValue(name="kept", got=margin > -3e-4, expected=margin > 3e-4, margin=margin)
    exact = replace(kept, margin=None)
    outcome = verify(lambda _: {}, _double, feeds, samples=1, parts=Parts(lambda *_: [kept]))
    assert outcome.by_parts and outcome.passed == right
    wrong = verify(lambda _: {}, _double, feeds, samples=1, parts=Parts(lambda *_: [exact]))
    assert not wrong.passed
    assert (
        wrong.decision
        == "above the allowed 1e-04 (kept: 2 of 5 values differ, which have to be equal)"
    )


@pytest.mark.parametrize("right", [True, False])
def test_confirming_parts_have_to_agree_where_rounding_excuses_the_outputs(right: bool) -> None:
    def near(inputs: Arrays) -> Arrays:
        return {**_double(inputs), "z": inputs["x"] + np.float32(0.01)}

    def rounding(inputs: Arrays) -> dict[str, OutputRounding]:
        runs = np.stack([inputs["x"], inputs["x"] + np.float32(0.01)])
        return {"z": OutputRounding(numpy=runs, oracle=runs)}

    def parts(inputs: Arrays, _: Arrays) -> list[PartValue]:
        x = inputs["x"]
        return [PartValue(name="inside", got=x, expected=x if right else -x)]

    confirming = Parts(parts, "confirming")
    outcome = verify(near, _double, feeds, samples=1, rounding=rounding, parts=confirming)
    assert (outcome.passed, outcome.by_parts) == (right, not right)
    assert [entry.name for entry in outcome.outputs] == (["y", "z"] if right else ["inside"])
    assert not verify(near, _double, feeds, samples=1, parts=confirming).passed


@pytest.mark.parametrize("right", [True, False])
def test_deciding_parts_are_all_that_is_compared(right: bool) -> None:
    def parts(inputs: Arrays, made: Arrays) -> list[PartValue]:
        x = inputs["x"]
        np.testing.assert_array_equal(made["z"], _double(inputs)["z"])
        return [PartValue(name="inside", got=x, expected=x if right else -x)]

    def unasked(_: Arrays) -> Arrays:
        pytest.fail("the whole network was computed as well")

    outcome = verify(_double, unasked, feeds, samples=2, parts=Parts(parts, "deciding"))
    assert (outcome.passed, outcome.by_parts, outcome.samples) == (right, True, 2)
    assert [entry.name for entry in outcome.outputs] == ["inside"]


def test_parts_are_not_asked_where_the_outputs_agree() -> None:
    outcome = verify(_double, _double, feeds, parts=Parts(lambda *_: pytest.fail("asked")))
    assert outcome.passed and not outcome.by_parts


def test_neighbours_of_float16_are_the_same_number_rounded() -> None:
    expected = np.array([0.1, 1, 1000, -3], np.float16)
    upwards = np.nextafter(expected, np.float16(np.inf))
    assert compare("y", upwards, expected).max_abs == 0
    farther = np.nextafter(upwards, np.float16(np.inf))
    assert compare("y", farther, expected).max_abs == 1.0
    assert compare("y", _f32(1.0009765625), _f32(1.0)).max_abs > 0


def test_a_reference_without_outputs_never_passes() -> None:
    assert not verify(_double, lambda _: {}, feeds).passed


def test_no_samples_are_refused() -> None:
    with pytest.raises(InputError, match="at least one sample; got 0"):
        verify(_double, _double, feeds, samples=0)


def _double(inputs: Arrays) -> Arrays:
    return {"y": 2 * inputs["x"], "z": inputs["x"]}


def _f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_samples_get_wider_until_they_reach_all_parts() -> None:
    seen: list[float] = []

    def module(inputs: Arrays) -> Arrays:
        seen.append(float(np.abs(inputs["x"]).max()))
        return _double(inputs)

    def unseen() -> list[str]:
        return [] if max(seen) > 2 else ["detections"]

    found = verify(module, _double, feeds, samples=2, unseen=unseen)
    assert (found.samples, found.unseen, found.notes) == (3, (), ())
    never = verify(module, _double, feeds, samples=2, unseen=lambda: ["detections"])
    assert never.passed and never.samples == 4 and never.unseen == ("detections",)
    assert "host step detections saw no rows in any sample" in never.notes[0]
    assert "--samples data.npz" in never.notes[0]


class Variants:
    """A module of one host step for small inputs, and of two others for large ones."""

    def __init__(self) -> None:
        names = ("suppress", "gather", "select")
        steps = [SimpleNamespace(label=n, opened=SimpleNamespace(title=n)) for n in names]
        self.plan = SimpleNamespace(hosts=steps)

    def observe(self, inputs: Arrays) -> tuple[Arrays, list[SimpleNamespace]]:
        few, *many = self.plan.hosts
        x = inputs["x"]
        made = (x,) if x.size < 4 else (x[:0],)
        return {"y": x}, [
            SimpleNamespace(step=step, outputs=made) for step in ([few] if x.size < 4 else many)
        ]


def test_each_variant_has_host_steps_of_its_own() -> None:
    reach = Reach(cast("Module", Variants()))
    reach({"x": _f32(1, 2)})
    assert reach.unseen() == [], "the others did not run"
    reach({"x": _f32(1, 2, 3, 4)})
    assert reach.unseen() == ["gather (gather)", "select (select)"]


def test_a_verdict_says_which_calls_were_not_compared():
    found = Verification(
        samples=1, max_abs=0.0, max_rel_range=0.0, outputs=(), tolerance=1e-4, used=0.0
    )
    verdict = Verdict(oracle="numpy", version="1", found=found, note="of one size")
    (note,) = verdict.without_calls("boards of a farm answer single calls").notes
    assert note == (
        "of one size; calls of a session, one after the other, were not compared: boards of a farm "
        "answer single calls"
    )
