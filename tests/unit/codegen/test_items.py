"""Work-items: where they wait for each other, what one does for all, virtual threads."""

import pytest

from retune.codegen.lower import lower
from retune.codegen.passes.barriers import place_barriers
from retune.codegen.passes.items import one_item, virtual_threads
from retune.codegen.target import CPU
from retune.ir.expr import Buffer, Load, Var, const
from retune.ir.reduction import decompose_all
from retune.ir.stmt import Barrier, Block, For, Program, Seq, Stmt, from_dag, inside, with_body
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from tests.support.dags import dense, reduction, tiled_product
from tests.support.oracle import assert_same_meaning
from tests.support.statements import walk

I = Var("i")  # noqa: E741
X = Buffer("x", (const(8),))
S, T = (Buffer(name, (const(8),), scope="local") for name in "st")
P = Buffer("p", (const(8),), scope="private")


def move(target: Buffer, source: Buffer) -> Stmt:
    return Block(f"{target}_{source}", target, (I,), Load(source, (I,)))


@pytest.mark.parametrize(
    ("moves", "runs"),
    [
        ([(S, X), (T, X)], [2]),
        ([(S, X), (P, S)], [1, 1]),
        ([(S, X), (T, X), (P, S), (P, T)], [2, 2]),
        ([(P, S), (S, X)], [1, 1]),
        ([(S, X), (P, X), (S, P)], [2, 1]),
        ([(S, X), (T, S), (P, T)], [1, 1, 1]),
        ([(P, X), (X, P)], [2]),
    ],
)
def test_a_barrier_lies_between_uses_in_conflict(
    moves: list[tuple[Buffer, Buffer]], runs: list[int]
):
    runs_found = [0]
    for stmt in placed(*(move(a, b) for a, b in moves)).stmts:
        if isinstance(stmt, Barrier):
            runs_found.append(0)
        else:
            runs_found[-1] += 1
    assert runs_found == runs


def placed(*stmts: Stmt) -> Seq:
    empty = Program(name="p", inputs=(X,), outputs=(), scratch=(S, T, P), body=Seq(()))
    return place_barriers(with_body(empty, Seq(stmts))).body


def test_a_loop_waits_before_it_overwrites_what_it_reads():
    (loop,) = placed(For(I, const(8), Seq((move(S, X), move(P, S))))).stmts
    assert isinstance(loop, For) and isinstance(loop.body, Seq)
    kinds = [type(stmt) for stmt in loop.body.stmts]
    assert kinds == [Block, Barrier, Block, Barrier]
    assert not inside(placed(For(I, const(8), move(S, X)))).waits


def summed_by_items() -> Schedule:
    """Each row's sum from partial sums of eight work-items in local memory."""
    s = Schedule(from_dag(reduction(6, 24, "sum", first=False)))
    s.split("y.k", [8])
    s.rfactor("y", "y.k.1")
    s.compute_at("y", "z.i")
    s.compute_at("y.part", "z.i", "local")
    s.reorder("y.part.i", "y.part.k.1", "y.part.k.0")
    s.bind("y.part.k.1", "local.0")
    s.bind("z.i", "group.0")
    return s


def test_passes_for_items_keep_the_meaning():
    for dag, s in (
        (reduction(6, 24, "sum", first=False), summed_by_items()),
        (dense(32, 8, 16), tiled_product(32, 8, 16)),
    ):
        program = decompose_all(s.program)
        for step in (one_item, virtual_threads):
            program = step(program)
            verify(program)
            assert_same_meaning(dag, program)
        assert not any(isinstance(n, For) and n.kind == "vthread" for n in walk(program.body))


def test_one_item_stores_for_all_and_all_wait():
    lines = [x.strip() for x in lower(summed_by_items().program, CPU).text.splitlines()]
    assert "__local float y_part[8] __attribute__((aligned(64)));" in lines
    assert lines.count("barrier(CLK_LOCAL_MEM_FENCE);") == 2
    store = next(i for i, x in enumerate(lines) if x.startswith("z[") and x.endswith(";"))
    assert lines[store - 1] == "if (z_item0 == 0) {"


def test_barriers_are_not_behind_guards():
    """A guard that all blocks of a loop share stays inside the loop where items wait in it."""
    text = lower(tiled_product(30, 8, 13, tail="guard").program, CPU).text
    depth: list[bool] = []
    for line in text.splitlines():
        if line.strip().startswith("barrier("):
            assert not any(depth)
        if line.endswith("{"):
            depth.append("if (" in line)
        if line.strip() == "}":
            depth.pop()
