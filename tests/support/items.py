"""Interpreter of work-groups and work-items: runs a loop program as a device may, and finds races.

All items of a work-group run in step, and groups in random order, or in step as well where they
have no local memory. That leaves nothing to chance: what an item reads or writes is noted in shadow
memory beside each buffer, and an access that another item's access may come before or after is
reported, the first one by name. Private memory is one for each item, local memory one for each
group; both start poisoned.

Two items may write the same value to one element, as overlapping tiles do, if nobody reads it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from retune.core.errors import VerifyError
from retune.ir.evaluate import Evaluation, Value, evaluate_int
from retune.ir.expr import Buffer, Expr, Load, Select, Var
from retune.ir.interp import COMBINE, Arrays, Interpreter, perfect_nest, poisoned
from retune.ir.reduction import decompose_all
from retune.ir.stmt import (
    Barrier,
    Block,
    For,
    Program,
    Seq,
    Stmt,
    blocks,
    is_compile_time,
    loops,
)


class RaceError(VerifyError):
    """Two work-items touch one element, one of them writes it, and neither waits for the other."""


PRIVATE = ("register", "private")
"""Scopes of memory that one item has for itself."""
_NOBODY = -1
_SEVERAL = -2
_AFTER_ALL = np.iinfo(np.int64).max

Points = tuple[np.ndarray, ...]
"""One array of indices for each dimension of a buffer."""


def run_items(program: Program, inputs: Mapping[str, np.ndarray], seed: int = 0) -> Arrays:
    """The outputs of a loop program of integer extents, by name, as work-items compute them.

    `seed` decides in which order the work-groups run. Barriers are where the program has them:
    this is the program that is about to be printed, see `codegen.lower.finished`.

    Raises: RaceError for the first access in conflict with another item's; VerifyError for one
    outside its buffer; KeyError for an input without a value.
    """
    arrays: Arrays = {b.name: np.asarray(inputs[b.name]) for b in program.inputs}
    for buffer in (*program.outputs, *program.scratch):
        if buffer.scope in ("global", "constant"):
            arrays[buffer.name] = poisoned(buffer)
    rng = np.random.default_rng(seed)
    for root in decompose_all(program).body.stmts:
        if is_compile_time(root):
            Interpreter(arrays).run(root, {})
        else:
            _Kernel(root, arrays).run(rng)
    return {b.name: arrays[b.name] for b in program.outputs}


@dataclass(slots=True)
class _Shadow:
    """Who touched each element of a buffer since accesses were last in order."""

    size: int
    writer: np.ndarray = field(init=False)
    first_reader: np.ndarray = field(init=False)
    last_reader: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Everything so far comes before everything from now on."""
        self.writer = np.full(self.size, _NOBODY, np.int64)
        self.first_reader = np.full(self.size, _AFTER_ALL, np.int64)
        self.last_reader = np.full(self.size, _NOBODY, np.int64)

    def read(self, elements: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Notes the reads; where another item wrote the element. bool [n]"""
        writer = self.writer[elements]
        np.minimum.at(self.first_reader, elements, items)
        np.maximum.at(self.last_reader, elements, items)
        return (writer != _NOBODY) & (writer != items)

    def read_by_another(self, elements: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Where another item than the one that writes now read the element. bool [n]"""
        return (self.first_reader[elements] < items) | (self.last_reader[elements] > items)

    def write(self, elements: np.ndarray, items: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Notes the writes; where another item wrote before, and where one writes now. bool [n]"""
        before = self.writer[elements]
        self.writer[elements] = items
        earlier = (before != _NOBODY) & (before != items)
        several = np.zeros(self.size, bool)
        several[elements[self.writer[elements] != items]] = True
        now = several[elements]
        self.writer[elements[earlier | now]] = _SEVERAL
        return earlier, now


class _Kernel:
    """One nest, which work-groups of work-items run."""

    def __init__(self, root: Stmt, arrays: Arrays) -> None:
        self.root = root
        self.arrays = arrays
        sizes = {n.kind: evaluate_int(n.extent) for n in loops(root)}
        groups = {kind: n for kind, n in sizes.items() if kind.startswith("group")}
        local = {kind: n for kind, n in sizes.items() if kind.startswith("local")}
        used = {b.buffer for b in blocks(root)}
        used |= {load.buffer for b in blocks(root) for load in _loads_in(b)}
        self.own = [b for b in sorted(used, key=str) if b.scope in (*PRIVATE, "local")]
        self.shared = {b.buffer for b in blocks(root) if b.buffer.scope not in PRIVATE}
        """What is written and seen by several items: the reads of others cannot be in conflict."""
        self.shadows = {b.name: _Shadow(arrays[b.name].size) for b in used if b not in self.own}
        self.group_items = prod(local.values())
        apart = any(b.scope == "local" for b in self.own)
        self.groups = groups if apart else {}
        """Those that run one after the other."""
        together = local if apart else {**groups, **local}
        self.count = prod(together.values())
        places = np.unravel_index(np.arange(self.count), tuple(together.values()) or (1,))
        self.items = dict(zip(together, places, strict=False))
        """Axis -> the place on it of each item that runs in step. int [count]"""
        self.group = 0
        self.place: dict[str, int] = {}

    def run(self, rng: np.random.Generator) -> None:
        """All work-groups, those that run one after the other in random order."""
        places = list(product(*(range(n) for n in self.groups.values())))
        for number in rng.permutation(len(places)):
            self.group = int(number)
            self.place = dict(zip(self.groups, places[self.group], strict=True))
            for buffer in self.own:
                start = poisoned(buffer)
                if buffer.scope == "local":
                    self.shadows[buffer.name] = _Shadow(start.size)
                else:
                    start = np.broadcast_to(start, (self.count, *start.shape)).copy()
                self.arrays[buffer.name] = start
            self._run(self.root, {})

    def _run(self, stmt: Stmt, env: dict[Var, Value]) -> None:
        match stmt:
            case Seq(stmts):
                for child in stmts:
                    self._run(child, env)
            case Barrier():
                for buffer in self.own:
                    if buffer.scope == "local":
                        self.shadows[buffer.name].clear()
            case Block():
                self._store(stmt, env, [])
            case For():
                loops, block = perfect_nest(stmt)
                if block is not None:
                    self._store(block, env, loops)
                elif stmt.kind in self.place or stmt.kind in self.items:
                    self._run(stmt.body, {**env, stmt.var: self._id(stmt, 1)})
                else:
                    for i in range(evaluate_int(stmt.extent)):
                        self._run(stmt.body, {**env, stmt.var: i})

    def _id(self, loop: For, rank: int) -> Value:
        """The number of the group, or those of the items along the first of `rank` dimensions."""
        if loop.kind in self.place:
            return self.place[loop.kind]
        return self.items[loop.kind].reshape(-1, *[1] * (rank - 1))

    def _store(self, block: Block, env: dict[Var, Value], loops: list[For]) -> None:
        """A block over a grid: the items, then the loops in time around it."""
        times = [n for n in loops if n.kind not in self.place and n.kind not in self.items]
        rank = 1 + len(times)
        full = (self.count, *(evaluate_int(n.extent) for n in times))
        env = {v: _widened(value, rank) for v, value in env.items()}
        for loop in loops:
            if loop in times:
                shape = [1] * rank
                shape[1 + times.index(loop)] = -1
                env[loop.var] = np.arange(evaluate_int(loop.extent)).reshape(shape)
            else:
                env[loop.var] = self._id(loop, rank)
        scene = _Scene(self, block, env, full)
        active = np.ones(full, bool)
        if block.guard is not None:
            scene.note_reads(block.guard, active)
            active = scene.grid(block.guard).astype(bool)
        for expr in (*block.indices, block.value):
            scene.note_reads(expr, active)
        scene.write(active)


@dataclass(frozen=True, slots=True)
class _Scene:
    """One block at all points of a grid, of which the first dimension is the items of a group."""

    kernel: _Kernel
    block: Block
    env: Mapping[Var, Value]
    full: tuple[int, ...]
    values: Evaluation = field(init=False)
    noted: dict[tuple[int, int], np.ndarray] = field(init=False, default_factory=dict)
    """Of which expressions reads were noted at which points, both by identity."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", Evaluation(self.env, self._fetch))

    def grid(self, expr: Expr) -> np.ndarray:
        """The value at every point. [full]"""
        return np.broadcast_to(np.asarray(self.values(expr)), self.full)

    def note_reads(self, expr: Expr, active: np.ndarray) -> None:
        """Checks what is read at the points that are active: of a selection, the side chosen."""
        if (id(expr), id(active)) in self.noted:
            return
        self.noted[id(expr), id(active)] = active
        if isinstance(expr, Select):
            self.note_reads(expr.condition, active)
            chosen = self.grid(expr.condition).astype(bool)
            self.note_reads(expr.then, active & chosen)
            self.note_reads(expr.otherwise, active & ~chosen)
            return
        for child in expr.children:
            self.note_reads(child, active)
        if isinstance(expr, Load):
            self._note_read(expr, active)

    def write(self, active: np.ndarray) -> None:
        """Stores the block's values at the active points."""
        kernel, block = self.kernel, self.block
        array = kernel.arrays[block.buffer.name]
        value = _taken(self.grid(block.value), active).astype(array.dtype)
        at = self._points(block.indices, active)
        self._check_inside(block.buffer, at, "writes")
        items = self._items(active)
        own = block.buffer.scope in PRIVATE
        target = (items, *at) if own else at or (np.zeros(len(items), np.int64),)
        array = array if array.ndim == len(target) else array.reshape(-1)
        before = array[target]
        if block.reducer is None:
            array[target] = value
        else:
            COMBINE[block.reducer].at(array, target, value)
        if own:
            return
        shadow, places, who = self._shadowed(block.buffer, at, items)
        if block.reducer is not None:
            self._report(shadow.read(places, who), block.buffer, at, who, "adds to", "wrote")
        late = shadow.read_by_another(places, who)
        self._report(late, block.buffer, at, who, "writes", "reads or has read")
        earlier, now = shadow.write(places, who)
        if block.reducer is None:  # the same value twice is harmless
            earlier &= ~_same(before, value)
            now &= ~_same(array[target], value)
        self._report(earlier | now, block.buffer, at, who, "writes", "writes or has written")

    def _fetch(self, load: Load, indices: tuple[Value, ...]) -> Value:
        array = self.kernel.arrays[load.buffer.name]
        own = load.buffer.scope in PRIVATE
        shape = array.shape[1:] if own else array.shape
        at = tuple(np.minimum(np.maximum(i, 0), n - 1) for i, n in zip(indices, shape, strict=True))
        if own:
            rank = len(self.full)
            at = (np.arange(self.kernel.count).reshape(-1, *[1] * (rank - 1)), *at)
        return array[at]

    def _note_read(self, load: Load, active: np.ndarray) -> None:
        if load.buffer not in self.kernel.shared and active.all():
            values = tuple(np.asarray(self.values(i)) for i in load.indices)
            if self._inside(load.buffer, values):
                return
        at = self._points(load.indices, active)
        self._check_inside(load.buffer, at, "reads")
        if load.buffer not in self.kernel.shared:
            return
        shadow, places, who = self._shadowed(load.buffer, at, self._items(active))
        self._report(shadow.read(places, who), load.buffer, at, who, "reads", "writes")

    def _points(self, indices: tuple[Expr, ...], active: np.ndarray) -> Points:
        return tuple(_taken(self.grid(i), active) for i in indices)

    def _items(self, active: np.ndarray) -> np.ndarray:
        item = np.arange(self.full[0]).reshape(-1, *[1] * (len(self.full) - 1))
        return _taken(np.broadcast_to(item, self.full), active)

    def _inside(self, buffer: Buffer, values: Points) -> bool:
        return all(
            value.min() >= 0 and value.max() < evaluate_int(extent)
            for value, extent in zip(values, buffer.shape, strict=True)
            if value.size
        )

    def _shadowed(
        self, buffer: Buffer, at: Points, items: np.ndarray
    ) -> tuple[_Shadow, np.ndarray, np.ndarray]:
        """The buffer's shadow, the elements in it, and the items among those that may touch it."""
        array = self.kernel.arrays[buffer.name]
        places = np.ravel_multi_index(at, array.shape) if at else np.zeros(len(items), np.int64)
        shared = 0 if buffer.scope == "local" else self.kernel.group * self.kernel.count
        return self.kernel.shadows[buffer.name], places, items + shared

    def _check_inside(self, buffer: Buffer, at: Points, verb: str) -> None:
        if self._inside(buffer, at):
            return
        for index, extent in zip(at, buffer.shape, strict=True):
            n = evaluate_int(extent)
            outside = (index < 0) | (index >= n)
            if outside.any():
                where = _point(at, int(np.argmax(outside)))
                raise VerifyError(f"{self.block.name}: {verb} {buffer}[{where}], outside it")

    def _report(
        self, bad: np.ndarray, buffer: Buffer, at: Points, who: np.ndarray, does: str, other: str
    ) -> None:
        if not bad.any():
            return
        first = int(np.argmax(bad))
        group, item = divmod(int(who[first]), self.kernel.group_items)
        group = self.kernel.group if buffer.scope == "local" else group
        raise RaceError(
            f"{self.block.name}: work-item {item} of group {group} {does} "
            f"{buffer}[{_point(at, first)}], which another one {other}, and neither waits for "
            "the other"
        )


def _loads_in(block: Block) -> Iterator[Load]:
    stack: list[Expr] = [block.value, *block.indices]
    stack += [] if block.guard is None else [block.guard]
    while stack:
        expr = stack.pop()
        if isinstance(expr, Load):
            yield expr
        stack.extend(expr.children)


def _taken(grid: np.ndarray, active: np.ndarray) -> np.ndarray:
    """The values at the points that are active, in order."""
    return grid.reshape(-1) if active.all() else grid[active]


def _widened(value: Value, rank: int) -> Value:
    """A number as it is; numbers of items along the first of `rank` dimensions."""
    array = np.asarray(value)
    return value if array.ndim == 0 else array.reshape(-1, *[1] * (rank - 1))


def _same(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Equal, or both not a number. bool [n]"""
    return (a == b) | ((a != a) & (b != b))


def _point(at: Points, position: int) -> str:
    return ", ".join(str(int(index[position])) for index in at)
