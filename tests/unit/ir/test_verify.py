"""Each invariant of loop programs is checked: one broken program for each."""

from dataclasses import replace

import pytest

from retune.core.dtypes import FLOAT32
from retune.core.errors import VerifyError
from retune.ir.expr import Buffer, Load, Var, const, select
from retune.ir.stmt import Block, For, Program, Seq, Stmt, from_dag
from retune.ir.verify import CHECKS, verify
from retune.schedule.schedule import Schedule
from tests.support.dags import dense, softmax

VI, VJ = Var("i"), Var("j")
X = Buffer("x", (const(8),))
Y = Buffer("y", (const(8),))
T = Buffer("t", (const(8),))


def copy(index: Var = VI, source: Buffer = X, target: Buffer = Y, name: str = "copy") -> Block:
    return Block(name, target, (index,), Load(source, (index,)))


def loop(body: Stmt, var: Var = VI, extent: int = 8, **fields: object) -> For:
    return For(var, const(extent), body, **fields)  # type: ignore[arg-type]


def program(*stmts: Stmt, scratch: tuple[Buffer, ...] = ()) -> Program:
    return Program(name="p", inputs=(X,), outputs=(Y,), scratch=scratch, body=Seq(stmts))


GOOD = program(loop(copy()))
TWICE = (loop(copy()), loop(copy(VJ, name="again"), VJ))

BROKEN = {
    "two loops over i": program(loop(loop(copy(), extent=2))),
    "two blocks named copy": program(loop(copy()), loop(copy(VJ), VJ)),
    "copy: i is not a loop around it": program(copy()),
    "loop j: its extent i depends on a loop": program(loop(For(VJ, VI, copy()))),
    r"copy: t is not declared with shape 8": program(loop(copy(source=T))),
    "copy: stores to the input x": program(loop(copy(target=X))),
    "two buffers named y": program(loop(copy()), scratch=(Y,)),
    r"copy: 2 indices for y\[8\]": program(loop(replace(copy(), indices=(VI, VI)))),
    "copy: int32 stored in float32": program(loop(replace(copy(), value=VI))),
    "copy: an index is not int32": program(
        loop(replace(copy(), indices=(const(0.0, FLOAT32),)))
    ),
    "copy: its guard is int32": program(loop(replace(copy(), guard=VI))),
    "loop i has extent 0": program(loop(copy(), extent=0)),
    "loop i: a vector of 32 lanes; at most 16": program(
        loop(copy(), extent=32, kind="vectorize")
    ),
    "reduce loop i runs as group.0": program(
        loop(replace(copy(), reducer="sum"), reduce=True, kind="group.0")
    ),
    "reduce loop i holds no reduction": program(loop(copy(), reduce=True)),
    "copy: group.0 runs two loops around it": program(
        loop(loop(copy(), kind="group.0"), VJ, kind="group.0")
    ),
    "group.0 has extents 8 and 4": program(
        loop(Seq((loop(copy(), kind="group.0"), loop(copy(Var("k"), name="b"), Var("k"), 4,
                                                      kind="group.0"))), VJ, 1)
    ),
    r"copy: stores y\[i \+ 1\], in 1..8 of 8": program(loop(replace(copy(), indices=(VI + 1,)))),
    r"copy: reads x\[i - 1\], in -1..6 of 8": program(
        loop(replace(copy(), value=Load(X, (VI - 1,))))
    ),
    r"copy: reads x\[i \+ 2\], in 2..9 of 8": program(
        loop(replace(copy(), value=select(VI < 4, Load(X, (VI + 2,)), Load(X, (VI + 2,)) * 2.0)))
    ),
    "copy: reads t before it is written": program(
        loop(copy(source=T)), loop(copy(VJ, target=T, name="late"), VJ), scratch=(T,)
    ),
    "output y is not written": program(loop(copy(target=T)), scratch=(T,)),
}  # fmt: skip


def test_a_good_program_passes():
    verify(GOOD)
    verify(program(*TWICE))


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_program_is_refused(message: str):
    with pytest.raises(VerifyError, match=message) as error:
        verify(BROKEN[message], "some step")
    assert "p after some step: " in str(error.value)
    assert str(BROKEN[message]) in str(error.value), "the program's text is shown"


def test_every_check_refuses_some_program():
    for check in CHECKS:
        caught = []
        for broken in BROKEN.values():
            try:
                caught.extend(check(broken))
            except ValueError:
                continue  # an earlier check of the list would have refused it
        assert caught, f"{check.__name__} refuses none of the broken programs"


def test_guarded_accesses_and_taken_branches_may_pass_the_end():
    past = replace(copy(), indices=(VI + 1,), guard=VI < 7)
    verify(program(loop(past)))


def test_shifted_tails_are_inside():
    s = Schedule(from_dag(dense(7, 5, 11)))
    for name in s.loops("z"):
        s.split(name, [4], "shift")
    verify(s.program)


def test_programs_of_tensor_expressions_pass():
    verify(from_dag(softmax(3, 5)))


def test_the_knob_turns_checks_on(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETUNE_VERIFY", "0")
    broken = replace(from_dag(dense(2, 3, 4)), outputs=())
    Schedule(broken).unroll("z.i")
    monkeypatch.setenv("RETUNE_VERIFY", "1")
    with pytest.raises(VerifyError, match="after unroll: z: z is not declared"):
        Schedule(broken).unroll("z.i")
