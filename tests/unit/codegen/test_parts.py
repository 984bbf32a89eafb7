"""Parts of the printer: words, names, shared values, registers, slices."""

from functools import reduce
from operator import add

import numpy as np
import pytest

from retune.codegen.names import Identifiers
from retune.codegen.opencl import renderer as opencl
from retune.codegen.passes.sharing import shared_values
from retune.codegen.registers import register_lanes
from retune.core.dtypes import BOOL, FLOAT32, FLOAT64, INT32, INT64, UINT8, UINT32, UINT64
from retune.ir.expr import Var, select
from retune.ir.flat import FlatIndices, elements, flat_index
from retune.ir.functions import call
from retune.ir.stmt import For, blocks, from_dag
from retune.ir.storage import row_major
from retune.ir.te import Dag, compute, placeholder
from retune.ir.views import view
from retune.schedule.schedule import Schedule
from tests.support.dags import dense
from tests.support.oracle import assert_same_meaning
from tests.support.statements import walk

VI, VJ = Var("i"), Var("j")


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, FLOAT32, "0.1f"), (1.0, FLOAT32, "1.0f"), (-2.5, FLOAT32, "(-2.5f)"),
        (1e-10, FLOAT32, "1e-10f"), (3e38, FLOAT32, "3e+38f"), (1 / 3, FLOAT64,
        "0.3333333333333333"), (float("inf"), FLOAT32, "INFINITY"),
        (float("-inf"), FLOAT32, "-INFINITY"), (float("nan"), FLOAT32, "NAN"),
        (float("inf"), FLOAT64, "(double)INFINITY"), (-0.0, FLOAT64, "(-0.0)"),
        (float("nan"), FLOAT64, "(double)NAN"),
        (True, BOOL, "1"), (7, INT32, "7"), (-(2**31), INT32, "INT_MIN"),
        (-(2**63), INT64, "LONG_MIN"), (5, INT64, "5L"), (200, UINT8, "200"),
        (5, UINT32, "5u"), (2**64 - 1, UINT64, "18446744073709551615UL"),
    ],
)  # fmt: skip
def test_literals(value: float, dtype: str, text: str):
    assert opencl.literal(value, dtype) == text


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-38, 123456789.0, 3.4028235e38])
def test_float_literals_read_back_exactly(value: float):
    text = opencl.literal(value, FLOAT32).strip("()").removesuffix("f")
    assert np.float32(text) == np.float32(value)


@pytest.mark.parametrize(
    ("text", "bare"),
    [("(a + b)", "a + b"), ("(a)(b)", "(a)(b)"), ("((a))", "(a)"), ("f(a)", "f(a)"), ("a", "a"),
     ("(float4)(0.0f)", "(float4)(0.0f)")],
)  # fmt: skip
def test_outer_parentheses(text: str, bare: str):
    assert opencl.bare(text) == bare


def test_identifiers_are_stable_distinct_and_no_words_of_c():
    names = Identifiers(opencl.RESERVED)
    assert names.of("conv.0") == "conv_0" == names.of("conv.0")
    assert names.of("conv", 0) == "conv_0_1"
    assert names.of("conv_0") == "conv_0_2"
    assert names.of("int") == "int_1" and names.of("exp") == "exp_1"
    assert names.fresh("x") == "x" and names.fresh("x") == "x_1" and names.fresh("x") == "x_2"


def test_shared_values_are_safe_and_inner_ones_come_first():
    x, y = placeholder("x", (8,)), placeholder("y", (8,))
    a = x[VI] * 2.0 + 1.0
    b = call("exp", a) - a
    masked = y[VI] * 3.0
    value = b * b + select(VI < 4, masked + masked, 0.0)
    assert list(map(str, shared_values(value))) == [str(a), str(b)]
    assert not shared_values(a)


def test_addresses_are_row_major():
    x = placeholder("x", (2, 3, 4))
    assert elements(x.buffer) == 24
    assert str(flat_index(x.buffer, (VI, VJ, VI + 1))) == "i*13 + j*4 + 1"


@pytest.mark.parametrize(("unrolled", "lanes"), [(True, 8), (False, 0)])
def test_registers_need_settled_indices(unrolled: bool, lanes: int):
    s = Schedule(from_dag(dense(4, 6, 8)))
    s.compute_at("y", "z.i")
    s.reorder("y.k", "y.i", "y.j")
    s.unroll("y.i")
    s.vectorize("y.j")
    if unrolled:
        s.vectorize("z.j")
    nest = s.program.body.stmts[0]
    vectors = frozenset(n.var for n in walk(nest) if isinstance(n, For) and n.kind == "vectorize")
    assert register_lanes(nest, s.block("y").buffer, vectors, FlatIndices()) == lanes


def test_a_program_of_many_views_has_a_name_that_files_may_have():
    """PoCL names files after kernels."""
    wide = row_major((3, 2)).columns(100, 600)
    many = [placeholder(f"x{number}", (3, 2)) for number in range(32)]
    total = compute("y", (3, 2), lambda i, j: reduce(add, (x[i, j] for x in many)), many)
    program = from_dag(Dag((total,)))
    names = {
        view(program, {x.name: wide for x in many[:count]}).name.removeprefix(program.name)
        for count in (2, 31, 32)
    }
    assert len(names) == 3 and all(len(name) <= 101 for name in names)


def test_inputs_and_outputs_may_lie_in_columns_of_wider_rows():
    """Only addresses change: shapes and indices stay, and so does the meaning."""
    dag = dense(3, 4, 5)
    s = Schedule(from_dag(dag))
    s.split("z.j", [2], "shift")
    x, z = row_major((3, 4)).columns(3, 8), row_major((3, 5)).columns(2, 9)
    wide = view(s.program, {"x": x, "z": z})
    assert wide.name == f"{s.program.name}_in0_at3of8_out0_at2of9"
    assert [str(b.buffer) for b in blocks(wide.body)] == [
        str(b.buffer) for b in blocks(s.program.body)
    ]
    written = blocks(wide.body)[-1]
    assert written.buffer == wide.outputs[0] and written.buffer.storage == z
    assert str(flat_index(written.buffer, (VI, VJ))) == "i*9 + j + 2"
    assert_same_meaning(dag, wide)
    assert view(s.program, {}) is s.program
