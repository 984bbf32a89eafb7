"""Buffers have a storage type, expressions a compute type: loads and stores convert."""

import numpy as np
import pytest

from retune.codegen.lower import finished, lower
from retune.codegen.target import CPU, GPU
from retune.core.dtypes import BFLOAT16, DTYPES, FLOAT16, FLOAT32, INT4, INT8, DType
from retune.ir.expr import Load, cast, const
from retune.ir.interp import run_dag, run_program
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis, stored
from retune.ir.verify import verify

NARROW = [d for d in DTYPES if d.is_float and d.compute is not d]


def product(dtype: DType, result: DType = FLOAT32) -> Dag:
    x, w = placeholder("x", (3, 5), dtype), placeholder("w", (4, 5), dtype)
    k = reduce_axis("k", 5)
    y = compute("y", (3, 4), lambda i, j: x[i, k] * w[j, k], [x, w], reduce=[k])
    z = compute("z", (3, 4), lambda i, j: y[i, j] * 2.0, [y])
    return Dag((stored(z, result),))


def test_literals_and_casts_have_the_compute_type():
    assert const(0.5, BFLOAT16).value == 0.5
    assert const(0.5, BFLOAT16).dtype is FLOAT32
    x = Load(placeholder("x", (2,), INT4).buffer, (const(0),))
    assert x.dtype is INT8
    assert cast(x, INT4) is x


@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_stored_is_read_in_the_compute_type(dtype: DType):
    rng = np.random.default_rng(0)
    arrays = {
        n: rng.standard_normal(s).astype(dtype.numpy) for n, s in (("x", (3, 5)), ("w", (4, 5)))
    }
    wide = {name: array.astype(np.float32) for name, array in arrays.items()}
    dag = product(dtype, dtype)
    found = run_dag(dag, arrays)["z"]
    assert found.dtype == dtype.numpy
    expected = (2 * (wide["x"] @ wide["w"].T)).astype(dtype.numpy)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))
    program = from_dag(dag)
    verify(program)
    made = run_program(program, arrays)["z"]
    np.testing.assert_array_equal(made.astype(np.float32), found.astype(np.float32))
    verify(finished(program))


def test_conversions_are_stated_where_types_differ():
    assert str(product(FLOAT16, FLOAT16)).splitlines()[2:] == [
        "y(i, j) += float32(x[i, k])*float32(w[j, k])",
        "z(i, j) = float16(y[i, j]*2.0)",
    ]
    x = placeholder("x", (3, 5), FLOAT16)
    moved = stored(compute("t", (5, 3), lambda i, j: x[j, i], [x]), FLOAT16)
    assert str(Dag((moved,))).splitlines()[1] == "t(i, j) = x[j, i]"


def test_the_text_of_memory_is_the_renderers():
    text = lower(from_dag(product(BFLOAT16, BFLOAT16)), CPU).text
    assert "__global const ushort* restrict x" in text
    assert "as_float(convert_uint(x[" in text
    assert "] = TO_BFLOAT16_1(" in text
    assert "vload_half(" in lower(from_dag(product(FLOAT16)), GPU).text
