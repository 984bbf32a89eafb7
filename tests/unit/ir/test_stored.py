"""Expressions as text: what is read back is the same expression, and anything else is refused."""

import json

import pytest

from retune.core.errors import RecordError
from retune.ir.expr import cast, maximum, select
from retune.ir.stored import from_text, to_text
from retune.ir.te import Dag, compute, concat, placeholder, reduce_axis, show
from tests.support.dags import conv2d


def _mixed() -> Dag:
    x = placeholder("x", (4, 8), "float16")
    w = placeholder("w", (8, 3), "int8", constant=True)
    k = reduce_axis("k", 8)
    y = compute("y", (4, 3), lambda i, j: x[i, k] * cast(w[k, j], "float32"), [x, w], reduce=(k,))
    z = compute("z", (4, 3), lambda i, j: maximum(y[i, j], float("-inf")), [y])
    s = compute("s", (4, 3), lambda i, j: select((i + j) % 2 < 1, z[i, j], 0.1), [z])
    return Dag((concat("both", [s, z], 1), y))


@pytest.mark.parametrize("dag", [_mixed(), conv2d(1, 9, 7, 4, 8)], ids=["mixed", "conv2d"])
def test_an_expression_survives_the_round_trip(dag: Dag):
    text = to_text(dag)
    assert text is not None
    again = from_text(text, dag.key, "here")
    assert show(again) == show(dag) and again.key == dag.key
    assert [t.buffer for t in again.stages] == [t.buffer for t in dag.stages]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("tensors",), None),
        (("tensors", 0, "dtype"), "float31"),
        (("tensors", 0, "shape"), [4, -8]),
        (("tensors", 0, "scope"), "elsewhere"),
        (("tensors", 2, "inputs"), [7]),
        (("tensors", 2, "reducer"), "eval"),
        (("tensors", 2, "body"), ["call", "system", "float32"]),
        (("tensors", 2, "body"), ["binary", "__import__", ["const", "1", "int32"]]),
        (("tensors", 2, "body"), [["var"]]),
        (("tensors", 2, "body"), ["const", "1e999999", "int32"]),
        (("tensors", 2, "body"), ["const", "7.0", "float32"]),
        (("version",), 99),
        (("outputs",), []),
    ],
)
def test_another_text_is_refused_in_one_line(path: tuple[str | int, ...], value: object):
    dag = _mixed()
    whole = json.loads(to_text(dag) or "")
    part = whole
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    with pytest.raises(RecordError, match=r"^here: expected") as caught:
        from_text(json.dumps(whole), dag.key, "here")
    assert "\n" not in str(caught.value)


def test_deeply_nested_text_is_refused():
    dag = _mixed()
    whole = json.loads(to_text(dag) or "")
    body = ["var", "i", "int32"]
    for _ in range(5000):
        body = ["cast", "int32", body]
    whole["tensors"][2]["body"] = "BODY"
    text = json.dumps(whole).replace('"BODY"', "[" * 100_000 + "]" * 100_000)
    with pytest.raises(RecordError, match="expected a tensor expression"):
        from_text(text, dag.key, "here")
