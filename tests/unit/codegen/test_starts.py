"""Sums of whole numbers start at the constant that is added to them; all others at zero."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import finished, lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT7, INT32, UINT8
from retune.core.target import GENERIC_CPU
from retune.ir.expr import Expr, binary, cast, const, equal, loads, maximum, minimum, select
from retune.ir.stmt import Program, blocks, from_dag
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from retune.targets.cpu.space import cpu_space
from tests.support.dags import byte_product, dense
from tests.support.oracle import assert_items_agree

J = "min(z.j.0*8, 12) + y.j.init"
"""The column of an element that is set to its start."""
Added = Callable[[Tensor, Tensor, Expr, Expr], Expr]


def biased(added: Added, *, shape: tuple[int, ...] = (20,), constant: bool = True) -> Dag:
    """Codes of what `added` makes of a product of bytes and `b`, of six rows and 20 columns."""
    return codes_of(byte_product(6, 8, 20).outputs[0], added, shape=shape, constant=constant)


def codes_of(y: Tensor, added: Added, *, shape: tuple[int, ...], constant: bool = True) -> Dag:
    """Codes of what `added` makes of sums and a `b` of that shape."""
    b = placeholder("b", shape, INT32, constant=constant)

    def code(i: Expr, j: Expr) -> Expr:
        scaled = binary("shr", added(y, b, i, j), const(9))
        return cast(minimum(maximum(scaled, const(0)), const(255)), UINT8)

    return Dag((compute("z", y.shape, code, [y, b]),))


def tiled(dag: Dag, tail: str = "shift") -> Schedule:
    """Tiles of three rows by eight columns, of which the last one overlaps the one before."""
    s = Schedule(from_dag(dag, "net"))
    i, j = s.loops("z")
    i0, i1 = s.split(i, [3])
    j0, j1 = s.split(j, [8], tail)
    s.reorder(i0, j0, i1, j1)
    s.compute_at("y", j0)
    s.bind(i0, "group.0")
    s.reorder("y.k", "y.i", "y.j")
    for loop in ("y.i", i1):
        s.unroll(loop)
    for loop in ("y.j", j1):
        s.vectorize(loop)
    return s


def starts(program: Program) -> list[str]:
    """What sums start at, in programs as kernels run them."""
    made = [b for b in blocks(finished(program).body) if b.name.endswith(".init")]
    return [str(b.value) if loads(b.value) else "a number" for b in made]


def after(y: Tensor, b: Tensor, i: Expr, j: Expr) -> Expr:
    return b[j] + y[i, j]


def twice(y: Tensor, b: Tensor, i: Expr, j: Expr) -> Expr:
    return minimum(y[i, j] + b[j], binary("shr", y[i, j] + b[j], const(1)))


def test_text(golden: object):
    assert lower(tiled(biased(after)).program, CPU).text == golden


@pytest.mark.parametrize(
    ("added", "shape", "expected"),
    [
        (after, (20,), f"b[{J}]"),
        (lambda y, b, i, j: y[i, j] + b[j], (20,), f"b[{J}]"),
        (lambda y, b, i, j: y[i, j] + b[0], (1,), "b[0]"),
        (lambda y, b, i, j: y[i, j] + b[i, j], (6, 20), f"b[y.i.init + z.i.0*3, {J}]"),
        (lambda y, b, i, j: y[i, j] + b[j + 3], (23,), f"b[{J} + 3]"),
        (twice, (20,), f"b[{J}]"),
    ],
)
def test_sums_start_at_what_is_added(added: Added, shape: tuple[int, ...], expected: str):
    dag = biased(added, shape=shape)
    program = tiled(dag).program
    (start,) = starts(program)
    assert start == expected
    assert_items_agree(dag, program)


@pytest.mark.parametrize(
    ("added", "shape"),
    [
        (lambda y, b, i, j: y[i, j] + b[j] * 2, (20,)),
        (lambda y, b, i, j: y[i, j] - b[j], (20,)),
        (lambda y, b, i, j: y[i, j] + b[19 - j], (20,)),
        (lambda y, b, i, j: y[i, j] + b[j] + binary("shr", y[i, j], const(3)), (20,)),
        (lambda y, b, i, j: maximum(y[i, j] + b[j], y[i, j] + b[j + 1]), (21,)),
        (lambda y, b, i, j: y[i, j] + y[i, j], (20,)),
        (lambda y, b, i, j: select(equal(y[i, j], const(3)), b[j], y[i, j] + b[j]), (20,)),
    ],
)
def test_others_start_at_zero(added: Added, shape: tuple[int, ...]):
    dag = biased(added, shape=shape)
    program = tiled(dag).program
    assert starts(program) == ["a number"]
    assert_items_agree(dag, program)


def test_what_is_computed_is_not_known_when_sums_start():
    dag = biased(after, constant=False)
    program = tiled(dag).program
    assert starts(program) == ["a number"]
    assert_items_agree(dag, program)


def test_elements_beyond_the_end_are_not_read():
    dag = biased(after)
    program = tiled(dag, "guard").program
    assert starts(program) == ["a number"]
    assert_items_agree(dag, program)


def test_floats_would_be_rounded_otherwise():
    s = Schedule(from_dag(dense(6, 8, 16), "net"))
    i, j = s.loops("z")
    s.compute_at("y", i)
    s.vectorize(j)
    assert starts(s.program) == ["a number"]


def test_two_sums_of_one_reader_start_each_at_its_own():
    x = placeholder("x", (4, 8), INT32)
    b, c = (placeholder(name, (4,), INT32, constant=True) for name in "bc")
    k = reduce_axis("k", 8)
    sums = compute("sums", (4,), lambda i: x[i, k], [x], reduce=(k,))
    squares = compute("squares", (4,), lambda i: x[i, k] * x[i, k], [x], reduce=(k,))
    value = lambda i: maximum(squares[i] + c[i], b[i] + sums[i])  # noqa: E731
    dag = Dag((compute("z", (4,), value, [sums, squares, b, c]),))
    s = Schedule(from_dag(dag, "net"))
    for name in ("sums", "squares"):
        s.compute_at(name, "z.i")
    assert sorted(starts(s.program)) == ["b[z.i]", "c[z.i]"]
    assert_items_agree(dag, s.program)


def test_sums_that_lanes_hold_in_halves_start_at_zero():
    dag = codes_of(byte_product(6, 4, 20, second=INT7).outputs[0], after, shape=(20,))
    s = tiled(dag)
    far, near = s.split("y.k", [4])
    s.reorder(far, "y.i", "y.j", near)
    s.tensorize(near, "dot4_halves")
    assert starts(s.program) == ["a number"]
    assert_items_agree(dag, s.program)


def test_sums_by_words_start_there_and_those_of_tiles_at_zero():
    dag = codes_of(byte_product(32, 64, 64).outputs[0], after, shape=(64,))
    amx = replace(GENERIC_CPU, instructions=("dot4.vnni", "tile8.amx"))
    found: dict[bool, set[bool]] = {False: set(), True: set()}
    for sketch in cpu_space(from_dag(dag), amx).sketches:
        program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
        found["matrix" in sketch.name].add(any(s.startswith("b[") for s in starts(program)))
        assert_items_agree(dag, program)
    assert found == {True: {False}, False: {True}}
