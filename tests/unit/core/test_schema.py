"""Plain dataclasses come back from JSON as they were, or the field that is wrong is named."""

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np
import pytest

from retune.core.errors import InputError, RecordError
from retune.core.schema import (
    Meta,
    Positive,
    Text,
    from_json,
    from_toml,
    json_schemas,
    pack,
    read_toml,
    to_json,
    unpack,
)


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


def test_schemas_name_the_records_in_them():
    schemas, records = json_schemas([list[Value]])
    assert schemas == ({"type": "array", "items": {"$ref": "#Value"}},)
    assert records["Value"]["required"] == ["name", "shape"]


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
        ('{"count": "3"}', r"Sample\.count: expected a whole number, got '3'"),
        ('{"count": 1, "pairs": [["a"]]}', r"pairs\[0\]: expected a list of 2 items, got \['a'\]"),
        ('{"count": true}', "expected a whole number, got true"),
        ('{"count": 1, "seconds": 1e999}', r"seconds: expected a finite number, got inf"),
        (
            f'{{"count": 1, "seconds": -1{"0" * 400}}}',
            r"seconds: expected a finite number, got a number of more than",
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


def test_numbers_that_json_cannot_say_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json(Sample(count=1, seconds=float("nan")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    kind: Literal["slow", "lost"]
    times: Positive = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    name: Text
    part: Annotated[float, Meta(ge=0, le=1)] = 0.5
    above: Annotated[float, Meta(gt=0)] = 1.0
    rule: tuple[Rule, ...] = ()
    ages: Mapping[str, int] = field(default_factory=dict[str, int])


def test_toml_is_read_as_its_annotations_say():
    text = 'name = "a"\npart = 1\n[[rule]]\nkind = "lost"\n[ages]\nx = 3\n'
    expected = Settings(name="a", part=1.0, rule=(Rule(kind="lost"),), ages={"x": 3})
    assert from_toml(Settings, text, where="file") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name", "file: expected TOML, got text that is not: "),
        ("", "file: name: expected a value, got nothing"),
        ('name = ""', "file: name: expected a text that is not empty, got ''"),
        ("name = 3", "file: name: expected a text, got 3"),
        ('name = "a"\npart = 1.5', "file: part: expected a number of at most 1, got 1.5"),
        ('name = "a"\nabove = 0', "file: above: expected a number above 0, got 0"),
        ('name = "a"\nabove = inf', "file: above: expected a finite number, got inf"),
        ('name = "a"\nabove = true', "file: above: expected a number, got true"),
        (
            'name = "a"\npat = 1',
            "file: expected keys among name, part, above, rule, ages, got pat; did you mean part?",
        ),
        (
            'name = "a"\n[[rule]]\nkind = "lost"\n[[rule]]\nkind = "slo"',
            "file: rule 2: kind: expected one of slow, lost, got 'slo'; did you mean slow?",
        ),
        (
            'name = "a"\n[[rule]]\nkind = "lost"\ntimes = 0',
            "file: rule 1: times: expected a whole number of at least 1, got 0",
        ),
        (
            'name = "a"\n[[rule]]\nkind = "lost"\nat = 0',
            "file: rule 1: expected keys among kind, times, got at",
        ),
        ('name = "a"\nrule = 3', "file: rule: expected a list, got 3"),
        ('name = "a"\n[ages]\nx = 1\ny = "2"', "file: ages: y: expected a whole number, got '2'"),
    ],
)
def test_wrong_toml_says_where_expected_and_got(text: str, message: str):
    with pytest.raises(InputError) as caught:
        from_toml(Settings, text, where="file")
    assert str(caught.value).startswith(message)


def test_a_toml_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(InputError, match=r"absent.toml: expected a TOML file, got no file"):
        read_toml(Settings, tmp_path / "absent.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    arrays: Mapping[str, np.ndarray]
    sample: Sample | None = None


def test_messages_carry_arrays_of_any_type():
    import ml_dtypes

    arrays = {
        "floats": np.arange(6, dtype=np.float32).reshape(2, 3),
        "none": np.zeros((0, 3), np.int8),
        "scalar": np.array(True),
        "small": np.ones(3, ml_dtypes.bfloat16),
        "strided": np.arange(10)[::3],
    }
    sent = Message(arrays=arrays, sample=Sample(count=2))
    found = unpack((Sample, Message), pack(sent), 1 << 20)
    assert isinstance(found, Message)
    assert found.sample == sent.sample
    for name, array in arrays.items():
        got = found.arrays[name]
        assert (got.dtype, got.shape) == (array.dtype, array.shape)
        assert np.array_equal(got, array)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "expected one of Message; Input data was truncated"),
        (pack(Sample(count=1)), "expected one of Message, got 'Sample'"),
        (pack(Sample(count=1))[:-1], "expected one of Message; "),
        (
            msgspec.msgpack.encode(("Message", {"arrays": {"a": ("O", (1,), [b"12345678"])}})),
            "expected an array of numbers, got 'O'",
        ),
        (
            msgspec.msgpack.encode(("Message", {"arrays": {"a": ("int8", (9,), [b"1"])}})),
            "expected one of Message; cannot reshape",
        ),
        (pack(Message(arrays={"a": np.zeros(2000)})), "expected at most 10000 bytes, got 16"),
    ],
)
def test_a_frame_that_is_not_a_known_message_is_refused(frame: bytes, message: str):
    with pytest.raises(RecordError) as caught:
        unpack((Message,), frame, 10_000)
    assert message in str(caught.value)


THREADS = """
import sys, threading
from dataclasses import make_dataclass
from retune.core.schema import from_plain

sys.setswitchinterval(1e-6)
data = {f"g{i}": {f"f{j}": j for j in range(20)} for i in range(20)}
for number in range(200):
    inner = make_dataclass(f"Inner{number}", [(f"f{i}", int) for i in range(20)], frozen=True)
    kind = make_dataclass(f"Outer{number}", [(f"g{i}", inner) for i in range(20)], frozen=True)
    together, found = threading.Barrier(4), []

    def read() -> None:
        together.wait()
        found.append(from_plain(kind, data, where="x"))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
"""


def test_threads_that_read_a_type_at_first_at_once_do_not_crash():
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
