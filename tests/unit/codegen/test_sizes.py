"""Kernels with sizes read them once, and loops end at them."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.network.resident import WAYS
from retune.codegen.source import ProgramBuffer
from retune.codegen.target import CPU, GPU
from retune.core.dims import Size, assuming, dim_of
from retune.core.errors import CodegenError
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.expr import as_expr, select
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, at_sizes, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.space import cpu_space
from retune.targets.gpu.space import gpu_space
from tests.support.sizes import Rules, assert_items_right, context, tokens
from tests.support.tests_fixtures import Golden

SHORT = "gpu.v4.local4.short"
"""A fetch of so many tokens at once, the last of which may be fewer."""
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


def test_all_items_of_a_larger_group_know_the_sizes() -> None:
    """They come to every barrier, and so run every loop around one."""
    with assuming({"tokens": 16}):
        sketch = gpu_space(from_dag(context(1, TOKENS, 32)), GENERIC_GPU).sketch(SHORT)
        program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
        text = lower(program, replace(GPU, offers=WAYS)).kernels[0].called
    first = text[text.index("__local uchar* arena)") : text.index("if (0 <= item)")]
    assert "const int tokens = tokens_size[0];" in first
    assert "barrier" in text


PROFILES: dict[str, tuple[Rules, DeviceSpec]] = {
    "cpu": (cpu_space, GENERIC_CPU),
    "gpu": (gpu_space, GENERIC_GPU),
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("batch", [1, 3])
def test_what_was_measured_at_fixed_sizes_applies(profile: str, batch: int) -> None:
    """Sketches and decisions have the same names where extents are sizes."""
    rules, spec = PROFILES[profile]
    values = {"batch": batch, "tokens": 24}
    dag = tokens(dim_of(Size("batch", 1, 8)), TOKENS, 64, 48)
    fixed = rules(from_dag(at_sizes(dag, values)), spec)
    measured = default_candidate(fixed, spec)
    with assuming(values) as assumed:
        space = rules(from_dag(dag), spec)
        assert {s.name for s in space.sketches} == {s.name for s in fixed.sketches}
        lower(space.instantiate(measured), CPU if profile == "cpu" else GPU)
    assert assumed.conditions == ()


@pytest.mark.parametrize(("profile", "number"), [("cpu", 1), ("gpu", 5), ("gpu", 12), ("gpu", 17)])
def test_work_items_agree(profile: str, number: int) -> None:
    assert_items_right(*PROFILES[profile], number)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_work_items_of_many_expressions_agree(profile: str) -> None:
    for number in range(100):
        assert_items_right(*PROFILES[profile], number)


def test_a_size_in_values_alone_is_an_argument() -> None:
    """No extent depends on it: an element says whether its index is below."""
    x = placeholder("x", (40,))
    limit = as_expr(TOKENS)
    y = compute("y", (40,), lambda i: select(i < limit, x[i], 0.0), [x])
    with assuming({"tokens": 8}):
        space = cpu_space(from_dag(Dag((y,))), GENERIC_CPU)
        program = space.instantiate(default_candidate(space, GENERIC_CPU))
        source = lower(program, CPU)
    assert source.sizes == ("tokens",)
    assert source.launches[0].args[-1] == "tokens"


def test_a_copy_serves_extents_shorter_than_a_vector() -> None:
    """No condition is noted; the copy is no work of its own."""
    tokens = dim_of(Size("tokens", 1, 256))
    p = placeholder("p", (4, tokens))
    k = reduce_axis("k", tokens)
    total = compute("total", (4,), lambda i: p[i, k], [p], reduce=(k,))
    y = compute("y", (4, tokens), lambda i, j: p[i, j] - total[i], [p, total])
    with assuming({"tokens": 64}) as assumed:
        space = cpu_space(from_dag(Dag((y,))), GENERIC_CPU)
        source = lower(space.instantiate(default_candidate(space, GENERIC_CPU)), CPU)
    assert assumed.conditions == ()
    few, usual = source.text.split("if (16 <= tokens)")
    assert "if (tokens < 16)" in few and "vload16" not in few.partition("total_few")[0]
    assert "if (15 < tokens)" in few and "if (" not in usual
    (launch,) = source.launches
    assert str(launch.flops) == "192*((tokens + 15) // 16) + 64"
