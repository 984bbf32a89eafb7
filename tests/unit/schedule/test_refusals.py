"""A primitive that is refused leaves the schedule as it was, whatever it was asked for."""

from collections import Counter
from collections.abc import Callable
from inspect import Parameter, signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.errors import ScheduleError
from retune.ir.expr import Var
from retune.ir.stmt import For, from_dag
from retune.schedule.schedule import Schedule
from retune.schedule.trace import PRIMITIVES, VARIADIC
from tests.support.dags import Choose, conv2d, dense, random_dag
from tests.support.properties import chooser, quick, seeded
from tests.support.random_schedules import SCOPES
from tests.support.statements import walk

Draw = Callable[[Schedule, Choose], object]


def _one(*options: object) -> Draw:
    return lambda s, choose: options[choose(len(options))]


def _loop(s: Schedule, choose: Choose) -> str:
    names = [n.var.name for n in walk(s.program.body) if isinstance(n, For)]
    return [*names, "nowhere"][choose(len(names) + 1)]


def _block(s: Schedule, choose: Choose) -> str:
    return [*s.blocks(), "nothing"][choose(len(s.blocks()) + 1)]


def _buffer(s: Schedule, choose: Choose) -> str:
    program = s.program
    names = [b.name for b in (*program.inputs, *program.scratch, *program.outputs)]
    return [*names, "nothing"][choose(len(names) + 1)]


def _size(s: Schedule, choose: Choose) -> object:
    """A number, often none that fits, or a symbol: then the condition for it is kept for later."""
    symbols = [v for d in s.decisions for v in d.symbols]
    options = [-1, 0, 1, 2, 3, 4, 8, 100, *symbols, *symbols, *symbols]
    return options[choose(len(options))]


def _some(draw: Draw, most: int = 3) -> Draw:
    return lambda s, choose: [draw(s, choose) for _ in range(choose(most + 1))]


ARGUMENTS: dict[str, Draw] = {
    "loop": _loop,
    "outer": _loop,
    "inner": _loop,
    "nest": _some(_loop),
    VARIADIC: _some(_loop, 4),
    "block": _block,
    "buffer": _buffer,
    "factors": _some(_size),
    "sizes": _some(_size),
    "count": _size,
    "parts": _one(0, 1, 2, 3),
    "max_innermost": _one(0, 4, 64),
    "unit": _one(0, 1, 2, 100),
    "units": _one(1, 2, 3),
    "options": _some(_one(1, 2, 3)),
    "axis": _one(-2, -1, 0, 1, 9, "group.0", "group.1", "local.0", "vthread", "elsewhere"),
    "tail": _one("exact", "shift", "guard", "cut"),
    "scope": _one(*SCOPES),
    "order": _some(_one(-1, 0, 1, 2, 9)),
    "intrinsic": _one("dot4", "dot5"),
    "texels": _one(-4, 0, 3, 1024),
    "form": _one("winograd", "words", "poems"),
    "stages": _one(1, 2, 3),
    "elements": _size,
    "line": _one(0, 1, 2),
    "every": _one(0, 1, 2),
    "key": _one("why", "not a word"),
    "value": _one("a test", "two\nlines"),
    "name": _one("one", "two", "three"),
}
"""What each argument of a primitive may be, by its name."""


def attempt(s: Schedule, primitive: str, choose: Choose) -> bool:
    """Calls the primitive with some arguments. Whether it was refused; then nothing changed."""
    positional: list[object] = []
    named: dict[str, object] = {}
    for name, parameter in signature(getattr(s, primitive)).parameters.items():
        drawn = ARGUMENTS[name](s, choose)
        if primitive == "restate" and name == "sizes":
            drawn = [size for size in drawn if isinstance(size, int)]  # type: ignore[attr-defined]
        if parameter.kind is Parameter.VAR_POSITIONAL:
            positional += drawn  # type: ignore[arg-type]
        elif primitive == "rfactor" and name == "axis":
            named[name] = drawn if isinstance(drawn, int) else -1
        elif name != "count" or choose(2):
            named[name] = drawn
    before = _state(s)
    try:
        getattr(s, primitive)(*positional, **named)
    except ScheduleError:
        assert _state(s) == before, f"{primitive}({positional}, {named}) was refused, but did some"
        return True
    return False


def _state(s: Schedule) -> dict[str, object]:
    """All that the schedule knows; what it holds is frozen, but for its lists."""
    return {k: list(v) if isinstance(v, list) else v for k, v in vars(s).items()}


@quick(60)
@given(data=st.data())
def test_a_refused_primitive_leaves_the_schedule_as_it_was(data: st.DataObject):
    choose = chooser(data)
    s = Schedule(from_dag(random_dag(choose)))
    primitives = sorted(PRIMITIVES)
    for _ in range(12):
        attempt(s, primitives[choose(len(primitives))], choose)


def test_every_primitive_is_refused_and_most_are_done():
    refused, done = Counter[str](), Counter[str]()
    for seed in range(160):
        choose = seeded(seed)
        dag = (dense(8, 12, 16), conv2d(1, 6, 6, 4, 8), random_dag(choose))[seed % 3]
        s = Schedule(from_dag(dag))
        s.sample_categorical("size", [2, 4])
        for primitive in sorted(sorted(PRIMITIVES), key=lambda _: choose(1000)):
            (refused if attempt(s, primitive, choose) else done)[primitive] += 1
    assert set(refused) == PRIMITIVES, PRIMITIVES - set(refused)
    assert len(done) > len(PRIMITIVES) / 2, done


def test_a_refused_split_keeps_no_condition():
    s = Schedule(from_dag(dense(8, 12, 16)))
    size = s.sample_categorical("size", [2, 4])
    s.reorder("y.k", "y.j")
    with pytest.raises(ScheduleError, match="would be added twice"):
        s.split("y.j", [size], "shift")
    assert s.constraints == []
    assert [v for d in s.decisions for v in d.symbols] == [Var("size@0")]
