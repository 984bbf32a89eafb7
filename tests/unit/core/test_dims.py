"""Symbolic extents: arithmetic, bounds, and the conditions under which answers hold."""

import operator
import pickle
import random
from collections.abc import Callable
from math import prod

import numpy as np
import pytest

from retune.core.dims import (
    Condition,
    Dim,
    Relation,
    Size,
    always_equal,
    assuming,
    at,
    condition_of,
    dim_of,
    example,
    least,
    most,
    never_above,
    parse_condition,
    parse_dim,
    remembered,
    samples_at_hand,
)
from retune.core.keys import content_key
from tests.support.size_values import holding

N, H = Size("n", 1, 6), Size("h", 3, 9)
n, h = dim_of(N), dim_of(H)
_SIZES = {"n": N, "h": H}
_EVERY = list(holding((), (N, H)))

_OPERATORS: list[Callable[[int, int], int]] = [operator.add, operator.sub, operator.mul]


def _random_dim(rng: random.Random, depth: int) -> int:
    if depth == 0:
        return rng.choice([n, h, rng.randrange(-4, 5)])
    a = _random_dim(rng, depth - 1)
    if rng.random() < 0.4:
        divisor = rng.choice([2, 3, 4, n, h, n * h])
        return a // divisor if rng.random() < 0.6 else a % divisor
    return rng.choice(_OPERATORS)(a, _random_dim(rng, depth - 1))


def test_arithmetic_is_that_of_integers_at_every_size() -> None:
    """Random trees of operations: their values, bounds and texts, against Python's integers."""
    dims = 0
    for seed in range(300):
        dim = _random_dim(random.Random(seed), 3)
        values = []
        for sizes in _EVERY:
            rng = random.Random(seed)
            with_numbers = _evaluated(rng, 3, sizes)
            assert at(dim, sizes) == with_numbers, (seed, str(dim), sizes)
            values.append(with_numbers)
        assert least(dim) <= min(values), (seed, str(dim))
        assert max(values) <= most(dim), (seed, str(dim))
        if isinstance(dim, Dim):
            dims += 1
            text = compile(str(dim), "dim", "eval")
            assert [eval(text, dict(sizes)) for sizes in _EVERY] == values  # noqa: S307
            assert parse_dim(str(dim), _SIZES) == dim
    assert dims > 150


def _evaluated(rng: random.Random, depth: int, sizes: dict[str, int]) -> int:
    """What `_random_dim` makes of the same numbers, with integers in place of sizes."""
    own = (sizes["n"], sizes["h"])
    if depth == 0:
        return rng.choice([*own, rng.randrange(-4, 5)])
    a = _evaluated(rng, depth - 1, sizes)
    if rng.random() < 0.4:
        divisor = rng.choice([2, 3, 4, *own, own[0] * own[1]])
        return a // divisor if rng.random() < 0.6 else a % divisor
    return rng.choice(_OPERATORS)(a, _evaluated(rng, depth - 1, sizes))


def test_equal_polynomials_are_equal_values() -> None:
    """One form, one hash, one key; what is constant is an int."""
    assert (n + 1) * (n - 1) == n * n - 1
    assert hash((n + 1) * h) == hash(h + h * n)
    assert content_key(n * 2 + h) == content_key(h + n + n)
    assert type(n - n + 7) is int
    assert n * h * 49 // (h * 49) == n
    assert prod((n, 3, h)) // (n * h) == 3
    assert always_equal((16 * h * n + 16 * h) // (n * h + h), 16)
    assert always_equal((n * h + 2 * n + h + 2) // (h + 2), n + 1)
    even = dim_of(Size("t", 2, 12, 2))
    assert always_equal((even + 3) // 4, (even // 2 + 1) // 2)
    assert str((3 * n + 5) // (n + 1)) == "((3*n + 5) // (n + 1))"
    assert pickle.loads(pickle.dumps(n * h)) == n * h  # noqa: S301
    assert type(dim_of(Size("one", 4, 4))) is int


def test_rests_and_tiles_have_exact_bounds() -> None:
    """A rest lies below its divisor, and tiles cover what they tile."""
    assert (least(n % 4), most(n % 4)) == (0, 3)
    overlap = (h + 3) // 4 * 4 - h
    assert (least(overlap), most(overlap)) == (0, 3)
    assert str(n % 4) == "n - 4*(n // 4)"


def test_ranges_decide_without_sizes_at_hand() -> None:
    """What holds for all sizes is no condition; what does not has no answer outside."""
    assert n >= 1
    assert not n < 1
    assert h != 2
    assert h > n - 4
    with pytest.raises(ValueError, match="expected to be assuming sizes"):
        assert n == 1
    with pytest.raises(ValueError, match="divisor above 0"):
        _ = n // 0


def test_answers_of_the_sizes_at_hand_are_noted() -> None:
    """Each question once, as a condition that other sizes meet or do not."""
    with assuming({"n": 4, "h": 9}) as assumed:
        assert n != 1
        assert n > 2
        assert n != 1
        assert h in (3, 9)
        assert example(n * h) == 36
    assert [str(c) for c in assumed.conditions] == ["n != 1", "n > 2", "h != 3", "h == 9"]
    alike = [values["n"] for values in holding(assumed.conditions, (N, H))]
    assert alike == [3, 4, 5, 6]


def test_numbers_and_arrays_work_with_them() -> None:
    """numpy keeps them as objects; where it needs a number, that is a condition."""
    assert list(np.asarray([n, 2]) * 3) == [n * 3, 6]
    assert np.int64(3) + n == n + 3
    with assuming({"n": 2}) as assumed:
        assert np.zeros((n, 3)).shape == (2, 3)
    assert [str(c) for c in assumed.conditions] == ["n == 2"]


def test_sizes_have_ranges() -> None:
    """In steps; a range that is none is refused."""
    assert str(Size("seq", 8, 64, 8)) == "seq=8..64:8"
    assert list(Size("seq", 8, 32, 8).values) == [8, 16, 24, 32]
    with pytest.raises(ValueError, match="expected 0 <= least <= most"):
        Size("seq", 4, 3)
    with pytest.raises(ValueError, match="expected letters, digits and underscores"):
        Size("batch size", 1, 4)


def test_conditions_are_read_from_their_texts() -> None:
    """As they were; of two forms of a question that means the same there is one."""
    rng = random.Random(5)
    with assuming({"n": 4, "h": 5}) as assumed:
        for _ in range(80):
            a, b = _random_dim(rng, 2), _random_dim(rng, 1)
            assert (a < b) in (True, False)
            assert (a == b) is (b == a)
    assert len(assumed.conditions) > 30
    assert [parse_condition(str(c), _SIZES) for c in assumed.conditions] == [*assumed.conditions]


_STEPS = {"w": Size("w", 4, 60, 4), "n": N}
w = dim_of(_STEPS["w"])


@pytest.mark.parametrize(
    ("gap", "less", "equal"),
    [
        (w - 24, "w < 24", "w == 24"),
        (24 - w, "w > 24", "w == 24"),
        (w // 8 - 3, "w < 24", "(w // 8) == 3"),
        (5 - (w + 4) // 8, "w >= 44", "((w + 4) // 8) == 5"),
        (3 * (n // 2) - 6, "n < 4", "(n // 2) == 2"),
        (4 * (w // 4) - 2 * n + 5, "2*n - w > 4", ""),
        (w * n - 8 * n, "n*w - 8*n < 0", "n*w - 8*n == 0"),
        (n + w // 16 - 3, "n + (w // 16) < 3", "n + (w // 16) == 3"),
    ],
)
def test_conditions_are_on_sizes_rather_than_quotients(gap: Dim, less: str, equal: str) -> None:
    """What they say is the same for all sizes, and their texts are read back."""
    texts: dict[Relation, str] = {"lt": less, "eq": equal}
    for relation, text in texts.items():
        for holds in (True, False) if text else ():
            found = condition_of(relation, gap, holds)
            assert not holds or str(found) == text
            assert parse_condition(str(found), _STEPS) == found
            plain = Condition(relation, gap, holds)
            for values in holding((), _STEPS.values()):
                assert found.at(values) == plain.at(values), values


@pytest.mark.parametrize(
    "text",
    ["", "n +", "w", "n*2", "(n // 0)", "(n // (n - 1))", "(n // 2", "n n", "(" * 999, "2*(n + h)"],
)
def test_other_texts_are_no_extents(text: str) -> None:
    """Unknown sizes, other forms of an extent, divisors that may be 0."""
    with pytest.raises(ValueError, match="expected"):
        parse_dim(text, _SIZES)
    with pytest.raises(ValueError, match="expected"):
        parse_condition(f"{text} < 4", _SIZES)


def test_comparisons_for_all_sizes_note_nothing() -> None:
    """They need no sizes at hand."""
    assert always_equal((n + 1) * h, n * h + h)
    assert not always_equal(n, 4)
    assert never_above(n, h + 3)
    assert not never_above(n, h)


def test_a_quotient_of_quotients_asks_no_size() -> None:
    """Whether `h // 3` divides `n // 2` is told by their forms, not by what they are for a size."""
    with assuming({"n": 6, "h": 9}) as assumed:
        each = (n // 2 * 3 + 7) // (h // 3)
    assert at(each, {"n": 6, "h": 9}) == 5
    assert assumed.conditions == ()


def test_results_are_remembered_with_their_conditions() -> None:
    """For each of the sizes at hand; what holds there is noted each time."""
    calls: list[int] = []

    @remembered(maxsize=8)
    def doubled(extent: int) -> int:
        calls.append(example(extent))
        return 2 if extent == 1 else 2 * extent

    for number, condition in [(1, "n == 1"), (3, "n != 1"), (1, "n == 1"), (3, "n != 1")]:
        with assuming({"n": number}) as assumed:
            found = doubled(n)
        assert at(found, {"n": number}) == 2 * number
        assert [str(c) for c in assumed.conditions] == [condition]
    assert doubled(4) == 8
    assert calls == [1, 3, 4]


def test_what_conditions_leave_of_a_size_is_not_asked_again() -> None:
    with assuming({"n": 4, "h": 5}) as assumed:
        assert n > 1
        assert n != 1
        assert n + h >= 5
        assert n >= 3
        assert n != 2
    assert [str(c) for c in assumed.conditions] == ["n > 1", "n >= 3"]
    with assuming({"n": 1, "h": 5}) as assumed:
        assert n == 1
        assert n < 2
        assert 3 * n == 3
    assert [str(c) for c in assumed.conditions] == ["n == 1"]


def test_conditions_have_no_common_factor() -> None:
    """So that one question has one form."""
    with assuming({"n": 4}) as assumed:
        assert 20 * n > 79
        assert 20 * n == 80
        assert 20 * n != 79
        assert -3 * n < -10
    assert [str(c) for c in assumed.conditions] == ["n > 3", "n == 4"]


def test_samples_are_spread_over_what_the_conditions_leave() -> None:
    rows, columns = Size("rows", 8, 512, 8), Size("columns", 1, 100)
    beyond = dim_of(rows) - 256
    assert isinstance(beyond, Dim)
    assert samples_at_hand([rows], 3) == [{}]
    with assuming({"rows": 512, "columns": 7}, [Condition("lt", beyond, holds=False)]):
        hand, *others = samples_at_hand([columns, rows], 8)
        assert samples_at_hand([], 8) == [{}]
    assert hand == {"rows": 512, "columns": 7}
    for name, first, last in (("rows", 256, 512), ("columns", 1, 100)):
        found = sorted(row[name] for row in others)
        assert first <= found[0] and found[-1] <= last
        assert any(value < first + (last - first) // 4 for value in found)
        assert any(value > last - (last - first) // 4 for value in found)
    assert all(row["rows"] % 8 == 0 for row in others)


def test_samples_meet_conditions_on_several_sizes_and_reach_the_small_ones() -> None:
    batch, length = Size("batch", 1, 8), Size("length", 1, 256)
    rows = dim_of(batch) * dim_of(length)
    few = rows - 16
    assert isinstance(few, Dim)
    with assuming({"batch": 1, "length": 15}, [Condition("lt", few, holds=True)]):
        found = samples_at_hand([batch, length], 8)
    assert len(found) == 9
    assert len({tuple(values.items()) for values in found}) == 9
    assert all(values["batch"] * values["length"] < 16 for values in found)
    with assuming({"length": 256}):
        lengths = [values["length"] for values in samples_at_hand([length], 8)]
    assert min(lengths) < 16, "an even spread has none of these"
