"""Random legal schedules: primitives applied at random, the illegal ones refused and skipped."""

from collections.abc import Callable
from math import prod

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.errors import CodegenError, ScheduleError
from retune.ir.expr import Scope, loads
from retune.ir.stmt import For, Program, blocks, from_dag
from retune.ir.te import Dag
from retune.schedule.schedule import Schedule
from tests.support.dags import Choose
from tests.support.statements import walk

MANY = 2000
"""Iterations of a nest in which each work-item may copy what all of them need."""
Check = Callable[[Program], None]
Move = Callable[[Schedule, Choose], None]


def scramble(s: Schedule, choose: Choose, steps: int, check: Check) -> None:
    """Applies up to `steps` random primitives; `check(program)` runs after each one."""
    for _ in range(steps):
        move = MOVES[choose(len(MOVES))]
        before, kept = s.program, _state(s)
        try:
            move(s, choose)
        except ScheduleError:
            assert s.program is before or s.trace.steps, "a refused primitive changed the program"
        if not _has_kernels(s.program):
            vars(s).update(kept)
            continue
        check(s.program)


def _state(s: Schedule) -> dict[str, object]:
    """All that the schedule knows, to go back to."""
    return {k: list(v) if isinstance(v, list) else v for k, v in vars(s).items()}


def _has_kernels(program: Program) -> bool:
    """Whether later primitives left the intrinsics of the program as they were."""
    if any(isinstance(n, For) and n.kind == "intrinsic" for n in walk(program.body)):
        try:
            lower(program, CPU)
        except CodegenError:
            return False
    return True


def _loop(s: Schedule, choose: Choose) -> str:
    names = [n.var.name for n in walk(s.program.body) if isinstance(n, For)]
    if not names:
        raise ScheduleError("no loops")
    return names[choose(len(names))]


def _block(s: Schedule, choose: Choose) -> str:
    names = s.blocks()
    return names[choose(len(names))]


def _split(s: Schedule, choose: Choose) -> None:
    factors = [1 + choose(5) for _ in range(1 + choose(2))]
    s.split(_loop(s, choose), factors, ["exact", "shift", "guard"][choose(3)])


def _fuse(s: Schedule, choose: Choose) -> None:
    outer = _loop(s, choose)
    inner = s.loop(outer).body
    if isinstance(inner, For):
        s.fuse(outer, inner.var.name)


def _reorder(s: Schedule, choose: Choose) -> None:
    names = s.loops(_block(s, choose))
    for i in range(len(names) - 1, 0, -1):
        j = choose(i + 1)
        names[i], names[j] = names[j], names[i]
    s.reorder(*names[: 2 + choose(3)])


def _unroll(s: Schedule, choose: Choose) -> None:
    loop = _loop(s, choose)
    if choose(3) == 0:
        s.unroll(loop, 1 + choose(4))
    elif int(s.loop(loop).extent.value) <= 8:  # type: ignore[attr-defined]
        s.unroll(loop)


def _vectorize(s: Schedule, choose: Choose) -> None:
    loops = s.loops(_block(s, choose))
    if loops:
        loop = loops[-1]
        if int(s.loop(loop).extent.value) > 4:  # type: ignore[attr-defined]
            loop = s.split(loop, [2 ** (1 + choose(3))], ["exact", "shift", "guard"][choose(3)])[1]
        s.vectorize(loop)


def _bind(s: Schedule, choose: Choose) -> None:
    axes = ["group.0", "group.1", "group.2", "local.0", "local.0", "local.1", "vthread"]
    loop = _loop(s, choose)
    axis = axes[choose(len(axes))]
    if axis != "vthread" or int(s.loop(loop).extent.value) <= 8:  # type: ignore[attr-defined]
        s.bind(loop, axis)


def _parallel(s: Schedule, choose: Choose) -> None:
    s.parallel(_loop(s, choose))


def _annotate(s: Schedule, choose: Choose) -> None:
    s.annotate(_loop(s, choose), ["why", "level"][choose(2)], ["a test", 3][choose(2)])


def _tile(s: Schedule, choose: Choose) -> None:
    names = s.loops(_block(s, choose))[: 1 + choose(3)]
    s.tile(names, [1 + choose(4) for _ in names], ["exact", "shift", "guard"][choose(3)])


def _cooperate(s: Schedule, choose: Choose) -> None:
    """Items with a tile each, of which a copy in local memory serves all."""
    names = s.loops(_block(s, choose))
    points = prod(int(s.loop(n).extent.value) for n in names)  # type: ignore[attr-defined]
    if len(names) < 2 or points > MANY:
        raise ScheduleError("one loop is not enough, and too many take the interpreter long")
    outer, inner = s.split(names[0], [1 + choose(4)], "guard")
    s.bind(outer, "vthread" if choose(2) else "local.1")
    s.bind(inner, "local.0")
    buffers = [b.name for b in s.program.inputs]
    copy = s.cache_read(buffers[choose(len(buffers))], s.loops(_last(s, inner))[-1], "local")
    last = s.loops(copy)[-1]
    items = int(s.loop(inner).extent.value)  # type: ignore[attr-defined]
    if choose(3):
        s.bind(s.split(last, [items], "guard")[1], "local.0")


def _last(s: Schedule, loop: str) -> str:
    return [b for b in s.blocks() if loop in s.loops(b)][-1]


def _inline(s: Schedule, choose: Choose) -> None:
    s.compute_inline(_block(s, choose))


def _cache_write(s: Schedule, choose: Choose) -> None:
    s.cache_write(_block(s, choose))


SCOPES: tuple[Scope, ...] = ("register", "private", "local")


def _cache_read(s: Schedule, choose: Choose) -> None:
    names = [b.name for b in (*s.program.inputs, *s.program.scratch)]
    s.cache_read(names[choose(len(names))], _loop(s, choose), SCOPES[choose(3)])


def _compute_at(s: Schedule, choose: Choose) -> None:
    s.compute_at(_block(s, choose), _loop(s, choose), SCOPES[choose(3)])


def _reverse_compute_at(s: Schedule, choose: Choose) -> None:
    consumer = _block(s, choose)
    sources = {load.buffer for load in loads(s.block(consumer).value)}
    nests = [n for b in s.blocks() if s.block(b).buffer in sources for n in s.loops(b)]
    if not nests:
        raise ScheduleError("nothing is made that it reads")
    s.reverse_compute_at(consumer, nests[choose(len(nests))], SCOPES[choose(2)])


def _location(s: Schedule, choose: Choose) -> None:
    s.sample_compute_location(_block(s, choose), SCOPES[choose(3)])


def somewhere(dag: Dag, choose: Choose) -> dict[str, tuple[int, ...]]:
    """A choice for each location that a random schedule may sample."""
    return {f"at.{b.name}": (choose(4),) for b in blocks(from_dag(dag).body)}


def _decompose(s: Schedule, choose: Choose) -> None:
    s.decompose_reduction(_block(s, choose), _loop(s, choose))


def _rfactor(s: Schedule, choose: Choose) -> None:
    reduced = [n for n in s.loops(_block(s, choose)) if s.loop(n).reduce]
    if not reduced:
        raise ScheduleError("no reduce loops")
    loop = reduced[choose(len(reduced))]
    if choose(2) and s.loop(loop).kind == "serial":
        loop = s.split(loop, [1 + choose(5)], ["exact", "guard"][choose(2)])[choose(2)]
    block = next(b for b in s.blocks() if loop in s.loops(b))
    s.rfactor(block, loop, choose(3) - 1)


def _pack(s: Schedule, choose: Choose) -> None:
    buffers = (*s.program.inputs, *s.program.scratch)
    names = [b.name for b in buffers if b.scope == "constant"]
    if names:
        s.pack(names[choose(len(names))])


def _precompute(s: Schedule, choose: Choose) -> None:
    s.precompute(_block(s, choose))


def _tensorize(s: Schedule, choose: Choose) -> None:
    """Four steps of a reduction as one instruction, the lanes around it often vectors."""
    name = _block(s, choose)
    if not s.loops(name):
        raise ScheduleError("no loops")
    *spatial, last = s.loops(name)
    near = last if int(s.loop(last).extent.value) == 4 else s.split(last, [4])[1]  # type: ignore[attr-defined]
    if spatial and choose(2):
        s.reorder(*[n for n in s.loops(name) if n not in (spatial[-1], near)], spatial[-1], near)
    s.tensorize(near, "dot4")
    s.pack("w")


MOVES: tuple[Move, ...] = (
    _split, _split, _split, _fuse, _reorder, _reorder, _unroll, _vectorize, _vectorize, _bind,
    _inline, _inline, _inline, _cache_write, _cache_write, _compute_at, _compute_at, _compute_at,
    _decompose, _pack, _precompute,
    _rfactor, _rfactor, _tile, _parallel, _annotate, _cache_read, _cache_read, _cooperate,
    _cooperate, _reverse_compute_at, _reverse_compute_at, _location, _tensorize, _tensorize,
    _tensorize,
)  # fmt: skip
