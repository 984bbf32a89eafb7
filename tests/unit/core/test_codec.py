"""Plain dataclasses come back from JSON as they were, or the field that is wrong is named."""

from dataclasses import dataclass

import pytest

from retune.core.codec import from_json, to_json
from retune.core.errors import RecordError


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    count: int
    seconds: float = 0.0
    label: str | None = None
    pairs: tuple[tuple[str, int], ...] = ()
    values: tuple[Value, ...] = ()


def test_json_round_trip_keeps_types():
    sample = Sample(
        count=3,
        label="x",
        pairs=(("a", 1), ("b", 2)),
        values=(Value(name="n", shape=(1, 2)),),
        seconds=2.0,
    )
    assert from_json(Sample, to_json(sample)) == sample


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected JSON"),
        ("{}", r"Sample\.count: expected a value"),
        ('{"count": "3"}', r"Sample\.count: expected int, got '3'"),
        ('{"count": 1, "pairs": [["a"]]}', r"pairs\[0\]: expected 2 items"),
        ('{"count": true}', "expected int, got True"),
        ('{"count": 1, "seconds": 1e999}', r"seconds: expected a finite number, got 'inf'"),
        (
            f'{{"count": 1, "seconds": -1{"0" * 400}}}',
            r"seconds: expected a finite number, got '-10",
        ),
    ],
)
def test_wrong_json_names_the_field(text: str, message: str):
    with pytest.raises(RecordError, match=message):
        from_json(Sample, text)


def test_unknown_fields_are_ignored():
    assert from_json(Sample, '{"count": 1, "newer": 2}') == Sample(count=1)


def test_what_is_quoted_is_short():
    with pytest.raises(RecordError) as caught:
        from_json(Sample, f'{{"count": {list(range(10_000))}}}')
    assert len(str(caught.value)) < 300
