"""The interpreter of work-items computes what a device would, and finds every planted race."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import finished
from retune.core.errors import VerifyError
from retune.ir.expr import Buffer, Expr, Load, Scope, Var, const, minimum, select
from retune.ir.stmt import (
    Barrier,
    Block,
    For,
    LoopKind,
    Program,
    Seq,
    Stmt,
    from_dag,
    rewrite,
    with_body,
)
from retune.schedule.schedule import Schedule
from tests.support.dags import dense, reduction, tiled_product
from tests.support.items import RaceError, run_items
from tests.support.oracle import assert_close, inputs_for, reference
from tests.support.statements import walk

I, J = Var("i"), Var("j")  # noqa: E741
N = 8


def memory(name: str, *shape: int, scope: Scope = "global") -> Buffer:
    return Buffer(name, tuple(const(n) for n in shape or (N,)), scope=scope)


X, Y = memory("x"), memory("y")
S, T = memory("s", scope="local"), memory("t", scope="local")
P = memory("p", scope="private")


def program(body: Stmt, *scratch: Buffer) -> Program:
    body = Seq((body,))
    return Program(name="planted", inputs=(X,), outputs=(Y,), scratch=scratch, body=body)


def loop(var: Var, extent: int, body: Stmt, kind: LoopKind = "serial") -> For:
    return For(var, const(extent), body, kind)


def items(*stmts: Stmt) -> Stmt:
    """Eight work-items that run the statements."""
    return loop(I, N, Seq(stmts), "local.0")


def put(target: Buffer, index: Expr, value: Expr, guard: Expr | None = None) -> Block:
    return Block(f"{target}.{index}", target, (index,), value, guard=guard)


def add(target: Buffer, index: Expr, value: Expr) -> Block:
    return Block(f"{target}.{index}", target, (index,), value, "sum", decomposed=True)


def at(buffer: Buffer, index: Expr) -> Expr:
    return Load(buffer, (index,))


def run(p: Program, seed: int = 0) -> np.ndarray:
    return run_items(p, {"x": np.arange(N, dtype=np.float32)}, seed)["y"]


# -- what is right -------------------------------------------------------------------------------


def test_items_exchange_values_through_local_memory_behind_a_barrier():
    there = put(S, I, at(X, I))
    back = put(Y, I, at(S, const(N - 1) - I))
    assert run(program(items(there, Barrier(), back), S)).tolist() == list(range(N))[::-1]


def test_private_memory_is_each_items_own():
    kept = put(P, const(0), at(X, I))
    assert run(program(items(kept, Barrier(), put(Y, I, at(P, const(0)))), P)).tolist() == [
        *range(N)
    ]


def test_overlapping_tiles_may_write_the_same_values():
    start = minimum(J * 3, const(N - 3))
    body = loop(J, 3, loop(I, 3, put(Y, start + I, at(X, start + I)), "local.0"), "group.0")
    assert run(program(body), seed=3).tolist() == [*range(N)]


@pytest.mark.parametrize("tail", ["exact", "guard"])
def test_a_tiled_product_by_hand_is_right(tail: str):
    rows, inner, columns = (32, 8, 16) if tail == "exact" else (30, 8, 13)
    dag = dense(rows, inner, columns)
    inputs = inputs_for(dag)
    for seed in range(3):
        made = run_items(
            finished(tiled_product(rows, inner, columns, tail=tail).program), inputs, seed
        )
        assert_close(made, reference(dag, inputs), "")


# -- what is not ---------------------------------------------------------------------------------

COPY = put(S, I, at(X, I))
NEXT = put(Y, I, at(S, (I + 1) % N))


def summed_by_items() -> Program:
    """Rows summed by partial sums of eight work-items in local memory."""
    s = Schedule(from_dag(reduction(6, 24, "sum", first=False)))
    s.split("y.k", [8])
    s.rfactor("y", "y.k.1")
    s.compute_at("y", "z.i")
    s.compute_at("y.part", "z.i", "local")
    s.reorder("y.part.i", "y.part.k.1", "y.part.k.0")
    s.bind("y.part.k.1", "local.0")
    s.bind("z.i", "group.0")
    return s.program


def forced(s: Schedule, **kinds: LoopKind) -> Program:
    """The program with loops run as these kinds, by no primitive that would refuse it."""
    wanted = {name.replace("_", "."): kind for name, kind in kinds.items()}

    def rule(node: Stmt) -> Stmt | None:
        if isinstance(node, For) and node.var.name in wanted:
            return replace(node, kind=wanted[node.var.name], reduce=False)
        return None

    return with_body(s.program, rewrite(s.program.body, rule))


def product() -> Schedule:
    return Schedule(from_dag(dense(N, N, N, epilogue=False)))


def shifted(**kinds: LoopKind) -> Program:
    """`y[min(i.0*3, 5) + i.1, j] += ...`, accumulated in memory that all items see."""
    s = product()
    s.split("y.i", [3], "shift")
    s.reorder("y.k", "y.j")
    return forced(s, **kinds)


def without_barrier(whole: Program, number: int) -> Program:
    """The program as it is printed, but for one of its barriers."""
    made = finished(whole)
    places = [n for n in walk(made.body) if isinstance(n, Barrier)]
    count = iter(range(len(places)))

    def rule(node: Stmt) -> Stmt | None:
        gone = isinstance(node, Barrier) and next(count) == number
        return Seq(()) if gone else None

    return with_body(made, Seq((rewrite(made.body, rule),)))


PLANTED: dict[str, Callable[[], Program]] = {
    "no barrier after a copy": lambda: program(items(COPY, NEXT), S),
    "no barrier before the copy is overwritten": lambda: program(
        items(loop(J, 2, Seq((put(S, I, at(X, I)), Barrier(), NEXT)))), S
    ),
    "a barrier too late": lambda: program(items(COPY, NEXT, Barrier()), S),
    "two items, one element of local memory": lambda: program(
        items(put(S, I // 2, at(X, I)), Barrier(), put(Y, I, at(S, I // 2))), S
    ),
    "two items, one element of global memory": lambda: program(items(put(Y, I // 2, at(X, I)))),
    "two groups, one element": lambda: program(loop(J, N, put(Y, J % 4, at(X, J)), "group.0")),
    "one element for all": lambda: program(items(put(Y, const(0), at(X, I)))),
    "a sum over items": lambda: program(items(add(Y, const(0), at(X, I)))),
    "a sum over groups": lambda: program(loop(J, N, add(Y, const(0), at(X, J)), "group.0")),
    "a neighbour's result": lambda: program(
        items(put(Y, I, at(X, I)), Barrier(), put(Y, I, at(Y, (I + 1) % N)))
    ),
    "another group's result": lambda: program(
        loop(J, N, Seq((put(Y, J, at(X, J)), put(Y, J, at(Y, (J + 1) % N)))), "group.0")
    ),
    "an item that the guard should leave out": lambda: program(
        items(put(Y, I % 4, at(X, I), guard=I < 5))
    ),
    "a copy that items read before all of it is there": lambda: program(
        items(put(S, I, at(X, I)), put(Y, I, select(I > 0, at(S, I - 1), const(0.0)))), S
    ),
    "two buffers, one barrier": lambda: program(
        items(COPY, Barrier(), put(T, I, at(S, (I + 1) % N)), put(Y, I, at(T, (I + 1) % N))), S, T
    ),
    "a reduce loop as items": lambda: forced(product(), y_k="local.0"),
    "a reduce loop as groups": lambda: forced(product(), y_k="group.0"),
    "the steps of shifted tiles as items": lambda: shifted(y_i_1="local.0"),
    "shifted tiles as items": lambda: shifted(y_i_0="local.0"),
    "shifted tiles as groups": lambda: shifted(y_i_0="group.0"),
    "a product without its first barrier": lambda: without_barrier(
        tiled_product(32, 8, 16).program, 0
    ),
    "a product without its second barrier": lambda: without_barrier(
        tiled_product(32, 8, 16).program, 1
    ),
    "sums of items without a barrier": lambda: without_barrier(summed_by_items(), 1),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_race_is_found(name: str):
    planted = PLANTED[name]()
    inputs = {
        b.name: np.random.default_rng(1).uniform(size=[int(str(e)) for e in b.shape])
        for b in planted.inputs
    }
    with pytest.raises(RaceError, match="neither waits for the other"):
        run_items(planted, inputs)


def test_the_report_says_who_does_what_where():
    with pytest.raises(RaceError) as found:
        run(program(items(COPY, NEXT), S))
    assert str(found.value) == (
        "y.i: work-item 0 of group 0 reads s[1], which another one writes, and neither waits for "
        "the other"
    )


def test_an_access_outside_its_buffer_is_reported():
    with pytest.raises(VerifyError, match=r"y.i: reads x\[8\], outside it"):
        run(program(items(put(Y, I, at(X, I + 1)))))


def test_the_side_of_a_selection_that_is_not_chosen_reads_nothing():
    inside = select(I > 0, at(X, I - 1), const(7.0))
    assert run(program(items(put(Y, I, inside)))).tolist() == [7, 0, 1, 2, 3, 4, 5, 6]
