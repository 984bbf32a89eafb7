"""The form of attention that a work-group computes as a whole: some rows of one head.

All stages from scores to results are in one nest, whose loop over a group's rows has the note
`ATTENTION`. As written it makes all scores of a row before their softmax; code generation replaces
it by a function that holds no scores (`codegen.attention`), which changes no more than roundings:

    scores, biased, largest, powers, total, weights: a stage each
    out(h, i, e) += weights[h, i, j] * v[h, j, e]
    ->
    for h:
      for i.tile:
        for i.row in 64:  # attention
          scores[j] += q[h, i, d] * k[h, j, d]
          ...
          out[h, i, e] = sum of weights[j] * v[h, j, e]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.core.errors import ScheduleError
from retune.intrinsics.attention import AttentionTile
from retune.ir.expr import (
    Buffer,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    redirect,
    substitute,
    variables,
)
from retune.ir.stmt import (
    ATTENTION,
    Block,
    For,
    Program,
    Reducer,
    Seq,
    Stmt,
    blocks,
    identity,
    over,
)
from retune.schedule.stages import readers, replace_root, root_nest

_SIZES = 5


def attention(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The stages of attention whose results the stage `name` makes, as one nest by a tile of these
    `sizes` (see `AttentionTile`). What is computed for a row goes by the stages' names.

    Raises: ScheduleError for another stage, or other sizes.
    """
    if len(sizes) != _SIZES or min(sizes) < 1:
        raise ScheduleError(f"attention({name}): expected {_SIZES} positive sizes, got {sizes}")
    found = AttentionStages.of(program, name)
    nest = _RowsNest(found, AttentionTile(*sizes))
    stages = (found.out, *found.before, *found.copies)
    roots = [root_nest(program, stage.name)[0] for stage in stages]
    program = replace_root(program, roots[0], nest.whole())
    for root in roots[1:]:
        program = replace_root(program, root)
    gone = {stage.buffer for stage in stages} - {*program.outputs, nest.made}
    kept = tuple(b for b in program.scratch if b not in gone)
    return replace(program, scratch=(*kept, *nest.scratch)), []


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStages:
    """The stages of one attention as they were found, in terms of the results' axes."""

    out: Block
    """Sums of values."""
    weights: Block
    total: Block
    powers: Block
    largest: Block
    biased: Block
    scores: Block
    spatial: tuple[For, ...]
    """Loops over results."""
    row: Var
    """The axis of queries among them."""
    column: Var
    """That of elements of values."""
    key: For
    """The loop over keys around `out`."""
    width: For
    """The loop over elements of queries around `scores`."""
    copies: tuple[Block, ...]
    """The stage that only copies results, maybe to another type, if there is one."""

    @property
    def before(self) -> tuple[Block, ...]:
        """All but the last one, the last of them first."""
        return (
            self.weights, self.total, self.powers, self.largest, self.biased, self.scores,
        )  # fmt: skip

    @property
    def causal(self) -> bool:
        """Whether queries see only some of the first keys."""
        return isinstance(self.biased.value, Select)

    @staticmethod
    def of(program: Program, name: str) -> "AttentionStages":
        """The stages of attention that end in `name`. Raises: ScheduleError if it does not end
        attention."""
        _, out, path = root_nest(program, name)
        makers = {b.buffer: b for b in blocks(program.body)}

        def read(block: Block, number: int) -> Block:
            found = [load.buffer for load in dict.fromkeys(loads(block.value))]
            if len(found) <= number or found[number] not in makers:
                raise ScheduleError(f"attention({name}): expected a stage that {block.name} reads")
            return makers[found[number]]

        weights = read(out, 0)
        powers, total = read(weights, 0), read(weights, 1)
        biased, largest = read(powers, 0), read(powers, 1)
        scores = read(biased, 0)
        steps = [loop for loop in path if loop.reduce]
        inner = [loop for loop in root_nest(program, scores.name)[2] if loop.reduce]
        stages = (out, total, largest, scores)
        kinds = [b.reducer for b in stages] == ["sum", "sum", "max", "sum"]
        if not kinds or len(steps) != 1 or len(inner) != 1:
            raise ScheduleError(f"attention({name}): expected sums over keys of a softmax")
        spatial = tuple(loop for loop in path if not loop.reduce)
        row, column = _roles(name, out, scores, spatial, steps[0])
        return AttentionStages(
            out=out, weights=weights, total=total, powers=powers, largest=largest, biased=biased,
            scores=scores, spatial=spatial, row=row, column=column, key=steps[0], width=inner[0],
            copies=_copies(program, out),
        )  # fmt: skip


def _copies(program: Program, out: Block) -> tuple[Block, ...]:
    """The stage behind `out` that copies its results element by element, if it alone reads them."""
    users = readers(program, out.buffer)
    plain = out.buffer not in program.outputs and len(users) == 1
    if plain and users[0].value == Load(out.buffer, users[0].indices) and not users[0].reducer:
        return (users[0],)
    return ()


def _roles(
    name: str, out: Block, scores: Block, spatial: Sequence[For], key: For
) -> tuple[Var, Var]:
    """The axes of rows and of columns: those that scores, or values, alone move with."""
    weight, value = dict.fromkeys(loads(out.value))
    query, other = dict.fromkeys(loads(scores.value))
    own = [_moved(load) for load in (weight, value)]
    several = [n.var for n in spatial if n.extent != const(1)]
    columns = [v for v in several if v in own[1] - own[0]]
    at = dict(zip(scores.indices, weight.indices, strict=True))
    rows = {at[v] for v in scores.indices if v in _moved(query) - _moved(other)}
    found = [v for v in several if v in rows]
    plain = all(isinstance(i, Var) for i in weight.indices) and key.var in own[0] & own[1]
    if len(columns) != 1 or len(found) != 1 or not plain:
        raise ScheduleError(f"attention({name}): expected queries by rows, and values by columns")
    return found[0], columns[0]


def _moved(load: Load) -> set[Var]:
    return {v for index in load.indices for v in variables(index)}


class _RowsNest:
    """The nest of a tile; `scratch` are the buffers of a row, as they come to be used."""

    def __init__(self, found: AttentionStages, tile: AttentionTile) -> None:
        self._found, self._tile = found, tile
        self._name = found.out.name
        self.scratch: list[Buffer] = []
        self.made = found.copies[0].buffer if found.copies else found.out.buffer
        self._rows = next(loop.extent for loop in found.spatial if loop.var == found.row)
        self._count = (self._rows + (tile.rows - 1)) // tile.rows
        self._far, self._near = (Var(f"{self._name}.{part}") for part in ("tile", "row"))
        far: Expr = self._far
        if found.causal:  # those with the most keys first
            far = self._count - 1 - far
        self._row = far * tile.rows + self._near
        self._guard = self._row < self._rows

    def whole(self) -> Stmt:
        """All of it."""
        found, tile = self._found, self._tile
        note = ((ATTENTION, str(tile)),)
        rows = For(self._near, const(tile.rows), Seq(tuple(self._stages())), notes=note)
        others = [n for n in found.spatial if n.var not in (found.row, found.column)]
        heads = [(n.var, n.extent) for n in others]
        tiles = [(self._far, self._count)]
        return over([*tiles, *heads] if found.causal else [*heads, *tiles], rows)

    def _stages(self) -> list[Stmt]:
        """The stages of one row, in order."""
        f = self._found
        row: dict[Var, Expr] = {f.row: self._row}
        scores = self._over_keys(f.scores, row, {}, f.width)
        biased = self._over_keys(f.biased, row, {f.scores.buffer: scores[0]})
        largest = self._of_row(f.largest, row, {f.biased.buffer: biased[0]})
        powers = self._over_keys(
            f.powers, row, {f.biased.buffer: biased[0], f.largest.buffer: largest[0]}
        )
        total = self._of_row(f.total, row, {f.powers.buffer: powers[0]})
        weights = self._over_keys(
            f.weights, row, {f.powers.buffer: powers[0], f.total.buffer: total[0]}
        )
        sums = self._sums(row, weights[0])
        made = (scores, biased, largest, powers, total, weights)
        return [*(stmt for _, stmts in made for stmt in stmts), *sums]

    def _buffer(self, stage: Block, *extents: Expr) -> Buffer:
        made = Buffer(f"{stage.buffer.name}.held", extents, stage.buffer.dtype.compute, "private")
        self.scratch.append(made)
        return made

    def _value(
        self, stage: Block, indices: Sequence[Expr], held: Mapping[Buffer, Buffer], at: Expr
    ) -> Expr:
        """A stage's value at these indices; what was made of the row is read at a key."""
        own = {v: i for v, i in zip(stage.indices, indices, strict=True) if isinstance(v, Var)}
        value = substitute(stage.value, own)

        def read(load: Load) -> Expr | None:
            made = held.get(load.buffer)
            if made is None:
                return None
            return Load(made, (at if made.shape != (const(1),) else const(0),))

        return redirect(value, read)

    def _indices(self, stage: Block, row: Mapping[Var, Expr], key: Expr) -> list[Expr]:
        """The indices of the row in a stage's results, in terms of the nest."""
        f = self._found
        weight = next(iter(dict.fromkeys(loads(f.out.value))))
        at = {**row, f.key.var: key}
        full = [substitute(i, at) for i in weight.indices]
        if len(stage.indices) == len(full):
            return full
        own = [n for n, i in enumerate(weight.indices) if f.key.var not in variables(i)]
        return [full[n] for n in own]

    def _over_keys(
        self,
        stage: Block,
        row: Mapping[Var, Expr],
        held: Mapping[Buffer, Buffer],
        width: For | None = None,
    ) -> tuple[Buffer, list[Stmt]]:
        """A stage that has an element for each key."""
        key = Var(f"{stage.name}.key")
        keys = [(key, self._found.key.extent)]
        made = self._buffer(stage, self._found.key.extent)
        value = self._value(stage, self._indices(stage, row, key), held, key)
        if width is None:
            return made, [over(keys, self._block(stage.name, made, (key,), value))]
        step = Var(f"{stage.name}.step")
        value = substitute(value, {width.var: step})
        return made, self._summed(stage, made, key, keys, [(step, width.extent)], value)

    def _of_row(
        self, stage: Block, row: Mapping[Var, Expr], held: Mapping[Buffer, Buffer]
    ) -> tuple[Buffer, list[Stmt]]:
        """A stage that has a number for each row."""
        key, made = Var(f"{stage.name}.key"), self._buffer(stage, const(1))
        value = self._value(stage, self._indices(stage, row, key), held, key)
        keys = [(key, self._found.key.extent)]
        return made, self._summed(stage, made, const(0), [], keys, value)

    def _sums(self, row: Mapping[Var, Expr], weights: Buffer) -> list[Stmt]:
        f = self._found
        made = self._buffer(f.out, next(n.extent for n in f.spatial if n.var == f.column))
        column, key = Var(f"{self._name}.sum.column"), Var(f"{self._name}.key")
        at = {**row, f.key.var: key, f.column: column}
        own = {f.weights.buffer: weights}
        value = redirect(
            substitute(f.out.value, at),
            lambda load: Load(own[load.buffer], (key,)) if load.buffer in own else None,
        )
        columns = [(column, made.shape[0])]
        keys = [(key, f.key.extent)]
        stage = replace(f.out, name=f"{self._name}.sum")
        last = Var(f"{self._name}.column")
        indices = tuple(substitute(i, {**row, f.column: last}) for i in f.out.indices)
        stored = self._block(self._name, self.made, indices, Load(made, (last,)))
        return [
            *self._summed(stage, made, column, columns, keys, value),
            over([(last, made.shape[0])], stored),
        ]

    def _summed(
        self,
        stage: Block,
        made: Buffer,
        at: Expr,
        results: Sequence[tuple[Var, Expr]],
        steps: Sequence[tuple[Var, Expr]],
        value: Expr,
    ) -> list[Stmt]:
        """A reduction, its start set before."""
        assert stage.reducer is not None, "it was found as one"
        start = [(Var(f"{v.name}.init"), n) for v, n in results]
        first = start[0][0] if start else at
        zero = identity(stage.reducer, made.dtype)
        added = self._block(stage.name, made, (at,), value, stage.reducer)
        return [
            over(start, self._block(f"{stage.name}.init", made, (first,), zero)),
            over(results, over(steps, added, reduce=True)),
        ]

    def _block(
        self,
        name: str,
        made: Buffer,
        indices: tuple[Expr, ...],
        value: Expr,
        reducer: Reducer | None = None,
    ) -> Block:
        decomposed = reducer is not None
        return Block(name, made, indices, value, reducer, self._guard, decomposed=decomposed)
