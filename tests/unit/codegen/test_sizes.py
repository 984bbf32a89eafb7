"""Kernels with sizes read them once, and loops end at them."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.source import ProgramBuffer
from retune.codegen.target import CPU
from retune.core.dims import Size, assuming, dim_of
from retune.core.errors import CodegenError
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder
from retune.schedule.schedule import Schedule
from tests.support.sizes import context
from tests.support.tests_fixtures import Golden

TOKENS = dim_of(Size("tokens", 1, 32))


def tiled(dag: Dag) -> Schedule:
    """Tiles of four rows, the last of which overlaps, and a vector of columns."""
    s = Schedule(from_dag(dag, "net"))
    _, rows, columns = s.loops(s.cache_write("y"))
    groups, row = s.split(rows, [4], "shift")
    vectors, lane = s.split(columns, [16], "shift")
    s.reorder(groups, vectors, row, lane)
    s.compute_at("y", vectors)
    *_, i, j, k = s.loops("y")
    s.reorder(k, i, j)
    for unrolled in (row, i):
        s.unroll(unrolled)
    for along in (lane, j):
        s.vectorize(along)
    s.bind(groups, "group.0")
    return s


def test_a_kernel_with_sizes(golden: Golden) -> None:
    with assuming({"tokens": 8}) as assumed:
        source = lower(tiled(context(1, TOKENS, 32)).program, CPU)
    assert assumed.conditions == ()
    assert source.text == golden
    (launch,) = source.launches
    assert [str(n) for n in launch.global_size] == ["((tokens + 3) // 4)", "1", "1"]
    assert launch.args == ("p", "v", "y", "tokens")
    assert source.sizes == ("tokens",)
    assert source.buffer("tokens") == ProgramBuffer(
        name="tokens", dtype="int32", elements=1, role="size"
    )
    fixed = source.at({"tokens": 6})
    assert fixed.launches[0].global_size == (2, 1, 1)
    assert fixed.buffer("p").elements == 36


def test_a_size_and_a_tensor_of_one_name_are_refused() -> None:
    x = placeholder("x", (dim_of(Size("x", 1, 4)),))
    y = compute("y", x.shape, lambda i: x[i] * 2.0, [x])
    s = Schedule(from_dag(Dag((y,)), "net"))
    with assuming({"x": 2}), pytest.raises(CodegenError, match="size 'x' has the name of a tensor"):
        lower(s.program, CPU)
