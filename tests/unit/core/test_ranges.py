"""What users state of open extents: texts, sizes, and the values to tune for."""

import pytest

from retune.core.dims import Size, at
from retune.core.ranges import Extents, TunedSizes, parse_stated, tuned_sizes


@pytest.mark.parametrize(
    ("text", "stated"), [("8", 8), (" 8 ", 8), ("1..32", "1..32"), ("8..64:8", "8..64:8")]
)
def test_extents_are_numbers_or_texts(text: str, stated: int | str) -> None:
    """One extent is a number."""
    assert parse_stated(text) == stated


@pytest.mark.parametrize("text", ["x", "-1", "4..2", "1..8:0", "1...8", "1:x", "", "1:8:2", "1:0"])
def test_other_texts_are_refused(text: str) -> None:
    """With what was expected."""
    with pytest.raises(ValueError, match=r"such as (1\.\.32|8\.\.512:8|1:8)$"):
        parse_stated(text)


@pytest.mark.parametrize(
    ("stated", "size", "tuned"),
    [
        (["1..4"], Size("n", 1, 4), {1: 0.5, 4: 0.5}),
        (["1..32"], Size("n", 1, 32), {1: 1 / 3, 5: 1 / 3, 32: 1 / 3}),
        (["8..60:8"], Size("n", 8, 56, 8), {8: 0.5, 56: 0.5}),
        (["7..7"], Size("n", 7, 7), {7: 1.0}),
        (["1:8", "8:1", "32:1"], Size("n", 1, 32), {1: 0.8, 8: 0.1, 32: 0.1}),
        ([4, 8, 16], Size("n", 4, 16, 4), {4: 1 / 3, 8: 1 / 3, 16: 1 / 3}),
        ([1, 4, 16], Size("n", 1, 16), {1: 1 / 3, 4: 1 / 3, 16: 1 / 3}),
        (["0..8"], Size("n", 0, 8), {0: 0.5, 8: 0.5}),
        ([1, "16..64"], Size("n", 1, 64), {1: 0.5, 16: 0.25, 64: 0.25}),
        (["1:3", "4..8:2"], Size("n", 1, 8), {1: 0.75, 4: 0.125, 8: 0.125}),
        (["16..64:16", 96], Size("n", 16, 96, 16), {16: 0.25, 64: 0.25, 96: 0.5}),
    ],
)
def test_ranges_say_what_to_tune_for(
    stated: list[int | str], size: Size, tuned: dict[int, float]
) -> None:
    """The ends, and the middle of wide ranges; or the extents that are listed."""
    found = Extents.of("n", stated)
    assert found.size == size
    assert dict(found.tuned) == pytest.approx(tuned)


@pytest.mark.parametrize(
    ("stated", "size", "tuned"),
    [
        (["-6..-1"], Size("minus_n", 1, 6), [1, 6]),
        (["-32..-1:4"], Size("minus_n", 4, 32, 4), [4, 32]),
        (["-4..0"], Size("minus_n", 0, 4), [0, 4]),
        ([-1, -4], Size("minus_n", 1, 4), [1, 4]),
        (["-8:1", "-2:3"], Size("minus_n", 2, 8, 2), [2, 8]),
    ],
)
def test_negative_values_are_a_size_with_a_sign(
    stated: list[int | str], size: Size, tuned: list[int]
) -> None:
    """Sizes count from 0 on."""
    found = Extents.of("n", stated)
    assert (found.size, [value for value, _ in found.tuned]) == (size, tuned)
    assert at(found.dim, {"minus_n": 4}) == -4


def test_values_lie_on_one_side_of_zero() -> None:
    assert parse_stated("-5", negative=True) == -5
    with pytest.raises(ValueError, match=r"one side of 0, such as -6\.\.-1"):
        Extents.of("n", [str(parse_stated("-2..5", negative=True))])


def test_sizes_are_combined() -> None:
    """All of two by two; of more, from the least of each to the greatest."""
    batch, length = Extents.of("batch", ["1:3", "8:1"]), Extents.of("length", ["16..128"])
    assert tuned_sizes([batch, length])[0] == TunedSizes((("batch", 1), ("length", 16)), 0.375)
    assert len(tuned_sizes([batch, length])) == 4
    wide = Extents.of("length", ["1..256"])
    several = tuned_sizes([batch, wide])
    assert [str(each) for each in several] == [
        "batch=1, length=1", "batch=1, length=16", "batch=8, length=256",
    ]  # fmt: skip
    assert sum(each.weight for each in several) == pytest.approx(1.0)
    assert tuned_sizes([]) == ()
