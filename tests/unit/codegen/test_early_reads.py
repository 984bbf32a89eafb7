"""Reads that items have under way together: before the calculations, and as they were."""

from dataclasses import replace

import pytest

from retune.codegen.kernel import (
    Asked,
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
    Statement,
    Store,
    Wait,
    parts,
)
from retune.codegen.network.early_reads import with_early_reads
from retune.codegen.opencl.renderer import OPENCL
from retune.codegen.printing import render
from retune.core.dtypes import BOOL, FLOAT16, FLOAT32, INT32, DType

Y = Memory("y", FLOAT32, "global")
GROUP, ITEM, K, SUM = Name("g", INT32), Name("i", INT32), Name("k", INT32), Name("t", FLOAT32, 4)


def added(*values: object) -> Operation:
    return Operation("sum", values, INT32)  # type: ignore[arg-type]


def product(steps: int, dtype: DType = FLOAT32, *, written: bool = False) -> Kernel:
    """y[g] = the sum over k of x[i + k] * w[g + i + k], by vectors."""
    x, w = Memory("x", dtype, "global"), Memory("w", dtype, "global")
    place = Name("place", INT32)
    row, weight = (
        MemoryLoad(At(m, base, 0, 4, aligned=True), FLOAT32)
        for m, base in ((x, added(ITEM, K)), (w, place))
    )
    step: tuple[Statement, ...] = (
        Declare(place, added(GROUP, ITEM, K)),
        Assign((SUM,), Operation("fma", (row, weight, SUM), FLOAT32, 4)),
    )
    return Kernel(
        name="k",
        parameters=(Parameter(x, False), Parameter(w, written), Parameter(Y, True)),
        single_item=False,
        local_size=(32, 1, 1),
        body=(
            Number(GROUP, "group", 0, 5, True),
            Number(ITEM, "local", 0, 32, False),
            Assign((SUM,), Literal(0.0, FLOAT32)),
            ForLoop(K, steps, 1, (), step),
            Wait(),
            Store(At(Y, GROUP, 0, 4), SUM),
        ),
    )


def runs(kernel: Kernel) -> list[list[str]]:
    """What is read between one `Asked` and the next."""
    found: list[list[str]] = [[]]
    for statement in kernel.body:
        if isinstance(statement, Asked):
            found.append([])
        found[-1] += [p.at.memory.name for p in parts(statement) if isinstance(p, MemoryLoad)]
    return found


def test_a_loop_of_a_few_reads_is_written_out_and_asks_first() -> None:
    made = with_early_reads(product(3))
    assert runs(made) == [["w"] * 3 + ["x"] * 3, []]
    assert not any(isinstance(s, ForLoop) for s in made.body)
    last = [s for s in made.body if isinstance(s, Assign) and s.targets == (SUM,)]
    assert len(last) == 4, "a start, and three steps in their order"


def test_as_many_are_under_way_as_there_are_registers_for() -> None:
    far, near = (
        [run.count(name) for run in runs(with_early_reads(product(13)))] for name in ("w", "x")
    )
    assert far == [6, 6, 1], "96 bytes, twice, and what is left where it is used"
    assert near == [4, 2 + 4, 2 + 1], "64 bytes; others where they are used"


def test_halves_are_asked_for_as_words() -> None:
    made = with_early_reads(product(4, FLOAT16))
    text = render(made, OPENCL)
    assert text.count("*(const __global int2*)(w + ") == 4
    assert "LOAD_HALVES_4(__private, (const __private half*)&" in text
    assert text.index("#define LOAD_HALVES_4") < text.index("void k(")


def test_what_a_test_guards_is_read_behind_it() -> None:
    """At a border it need not be there."""
    kernel = product(3)
    *before, loop, wait, store = kernel.body
    assert isinstance(loop, ForLoop)
    place, total = loop.body
    assert isinstance(total, Assign)
    inside = Operation("lt", (ITEM, Literal(9, INT32)), BOOL)
    value = Operation("choose", (inside, total.value, SUM), FLOAT32, 4)
    guarded = replace(loop, body=(place, Assign((SUM,), value)))
    made = with_early_reads(replace(kernel, body=(*before, guarded, wait, store)))
    assert len(runs(made)) == 1
    behind = replace(loop, body=(place, If((inside,), (total,))))
    made = with_early_reads(replace(kernel, body=(*before, behind, wait, store)))
    assert len(runs(made)) == 1


@pytest.mark.parametrize(
    "kernel", [product(33), product(4, written=True), product(1)], ids=["long", "written", "one"]
)
def test_others_stay_as_they_are(kernel: Kernel) -> None:
    assert not any(isinstance(part, Asked) for part in with_early_reads(kernel).body)
