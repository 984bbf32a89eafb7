"""Groups as functions of a larger group: guards between barriers, numbers and memory as given."""

from dataclasses import replace

import pytest

from retune.bundle.manifest import described_by_text
from retune.codegen.kernel import (
    Array,
    Assign,
    At,
    Declare,
    ForLoop,
    If,
    Kernel,
    Literal,
    Memory,
    MemoryLoad,
    Name,
    Number,
    Operation,
    Parameter,
    Registers,
    Store,
    SubArray,
    Wait,
)
from retune.codegen.lower import lower
from retune.codegen.network.resident import WAYS
from retune.codegen.network.tile_functions import tile_function
from retune.codegen.opencl.renderer import OPENCL
from retune.codegen.printing import render
from retune.codegen.target import GPU
from retune.core.dtypes import BOOL, FLOAT32, INT8, INT32
from retune.core.errors import CodegenError
from retune.core.target import GENERIC_GPU
from retune.ir.stmt import from_dag
from retune.targets.cost.estimate import default_candidate
from retune.targets.gpu.space import gpu_space
from tests.support.dags import conv2d
from tests.support.kernel_text import shown
from tests.support.tests_fixtures import Golden

X = Memory("x", FLOAT32, "global")
S = Memory("s", FLOAT32, "local")
NUMBER, T, A = Name("i", INT32), Name("t", FLOAT32), Name("a", INT32)
ZERO = Literal(0.0, FLOAT32)


def kernel_of(*body: object) -> Kernel:
    return Kernel(
        name="k",
        parameters=(Parameter(X, written=True),),
        single_item=False,
        local_size=(4, 3, 2),
        body=body,  # type: ignore[arg-type]
    )


def lines(kernel: Kernel) -> list[str]:
    return ["  " + line for line in shown(kernel.body).splitlines()]


def test_statements_between_barriers_are_guarded_together() -> None:
    value = MemoryLoad(At(X, NUMBER, 0), FLOAT32)
    made, arena = tile_function(
        kernel_of(
            Array(S, 20),
            Number(NUMBER, "local", 0, 4, False),
            Declare(A, Operation("mul", (NUMBER, NUMBER), INT32)),
            Declare(T, value),
            Store(At(S, A, 0), T),
            Wait(),
            Store(At(X, A, 0), MemoryLoad(At(S, NUMBER, 1), FLOAT32)),
        )
    )
    assert arena == 128, "80 bytes, to the next multiple of 64"
    assert lines(made) == [
        "  local s from byte 0",
        "  let i = (item % 4)",
        "  let a = (i * i)",
        "  registers t",
        "  if (0 <= item):",
        "    t = x[i + 0]",
        "    s[a + 0] = t",
        "  barrier",
        "  if (0 <= item):",
        "    x[a + 0] = s[i + 1]",
    ]


@pytest.mark.parametrize(("items", "in_warp"), [(24, True), (32, True), (40, False)])
def test_a_group_of_one_warp_waits_for_that_warp_alone(items: int, in_warp: bool) -> None:
    made, _ = tile_function(replace(kernel_of(Wait()), local_size=(items, 1, 1)))
    assert made.body == (Wait(in_warp=in_warp),)
    text = render(made, OPENCL)
    assert ("WARP_BARRIER();" in text) == in_warp


def test_loops_that_wait_stay_outside_of_guards_and_others_go_in() -> None:
    inner = ForLoop(Name("j", INT32), 2, 1, (), (Number(NUMBER, "local", 2, 2, False),))
    made, _ = tile_function(
        kernel_of(Registers((T,)), ForLoop(A, 5, 1, (), (inner, Wait(), Assign((T,), ZERO))))
    )
    assert lines(made) == [
        "  registers t",
        "  for a in range(5):",
        "    if (0 <= item):",
        "      for j in range(2):",
        "        let i = (item / 12)",
        "    barrier",
        "    if (0 <= item):",
        "      t = 0.0",
    ]


def test_what_depends_on_guarded_values_is_guarded() -> None:
    made, _ = tile_function(
        kernel_of(
            Declare(A, MemoryLoad(At(X, None, 0), INT32)),
            Declare(NUMBER, Operation("neg", (A,), INT32)),
        )
    )
    assert [type(s) for s in made.body] == [Registers, Registers, If]


def test_local_arrays_follow_one_another() -> None:
    other = Memory("r", INT8, "local")
    made, arena = tile_function(kernel_of(Array(S, 3), Array(other, 65)))
    assert made.body == (SubArray(S, 0), SubArray(other, 64))
    assert arena == 64 + 128


def test_a_barrier_behind_a_test_is_refused() -> None:
    with pytest.raises(CodegenError, match="k: a barrier behind a test"):
        tile_function(kernel_of(If((Literal(True, BOOL),), (Wait(),))))


def test_the_text(golden: Golden) -> None:
    """Only where a device offers persistent kernels, and beside a kernel that is what it was."""
    space = gpu_space(from_dag(conv2d(1, 6, 6, 8, 16, pad=1)), GENERIC_GPU)
    program = space.instantiate(default_candidate(space, GENERIC_GPU))
    plain = lower(program, GPU).kernels[0]
    source = lower(program, replace(GPU, offers=(next(iter(WAYS)),))).kernels[0]
    assert (plain.called, source.text) == ("", plain.text)
    assert source.arena_bytes and plain.arena_bytes is None
    assert described_by_text(source.name, source.called).arena_bytes == source.arena_bytes
    assert source.called == golden
