"""Content keys: equal contents have equal keys, everywhere; different ones differ."""

import enum
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.keys import cached_by_file, content_key, file_key
from tests.support.properties import quick


class Colour(enum.Enum):
    """An enum whose member has the value of another type's content."""

    RED = "red"


@dataclass(frozen=True)
class Point:
    """A value with a field that does not take part in comparisons."""

    x: int
    y: float = 0.0
    note: str = field(default="", compare=False)


@dataclass(frozen=True)
class Spot:
    """The same fields as Point under another name."""

    x: int
    y: float = 0.0


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


@quick(150)
@given(a=VALUES, b=VALUES)
def test_keys_are_equal_exactly_for_equal_contents(a: object, b: object):
    assert (content_key(a) == content_key(b)) == (repr(a) == repr(b) or _same(a, b))


def _same(a: object, b: object) -> bool:
    """Equal, with types told apart and mappings in any order."""
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(v, b[k]) for k, v in a.items())
    return repr(a) == repr(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (1, 1.0), (1, True), ("1", 1), (b"a", "a"), ((1, (2,)), (1, 2)), (("ab", "c"), ("a", "bc")),
        (Colour.RED, "red"), (Path("a"), "a"), (Point(1), Spot(1)), (Point(1), Point(2)),
        (np.zeros(4), np.zeros((2, 2))), (np.zeros(2, "f4"), np.zeros(2, "f8")), (None, "None"),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}), ({1, 2}, (1, 2)), (0.0, -0.0),
    ],
)  # fmt: skip
def test_different_contents_have_different_keys(a: object, b: object):
    assert content_key(a) != content_key(b)


def test_order_of_mappings_and_sets_does_not_matter():
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert content_key({"x", "y", "z"}) == content_key({"z", "y", "x"})


def test_arrays_count_by_contents_not_by_strides():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert content_key(array) == content_key(np.asfortranarray(array))
    assert content_key(np.float32(1.5)) == content_key(1.5)


def test_fields_outside_comparison_do_not_count():
    assert content_key(Point(1, note="a")) == content_key(Point(1, note="b"))


def test_several_values_are_not_their_concatenation():
    assert content_key("ab", "c") != content_key("a", "bc")


@pytest.mark.process
def test_keys_do_not_depend_on_the_process():
    code = (
        "from retune.core.keys import content_key;"
        "print(content_key({'b': {1, 2, 3}, 'a': ('x', 2.5, None)}, frozenset('retune')))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout.strip()
        for seed in ("0", "1", "12345")
    }  # fmt: skip
    expected = content_key({"a": ("x", 2.5, None), "b": {3, 2, 1}}, frozenset("enuter"))
    assert found == {expected}


@pytest.mark.parametrize("value", [object(), lambda: 0, Point, {"a": object()}, [1, print]])
def test_what_has_no_stable_content_is_refused(value: object):
    with pytest.raises(TypeError, match="has no stable content"):
        content_key(value)


def test_files_count_by_their_bytes(tmp_path: Path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * (3 << 20))
    two.write_bytes(b"x" * (3 << 20))
    assert file_key(one) == file_key(two)
    two.write_bytes(b"y")
    assert file_key(one) != file_key(two)


def test_a_function_of_a_file_is_called_once_for_each_version_of_it(tmp_path):
    calls: list[str] = []

    @cached_by_file(2)
    def content(path: Path, end: str = "") -> str:
        calls.append(end)
        return path.read_text() + end if path.exists() else "none"

    file = tmp_path / "file"
    assert content(file) == "none"
    file.write_text("one")
    assert [content(file), content(file), content(file, "!")] == ["one", "one", "one!"]
    replaced = tmp_path / "other"
    replaced.write_text("two")  # as long, and of the same moment perhaps, but another file
    replaced.replace(file)
    assert content(file) == "two"
    assert calls == ["", "", "!", ""]
