"""The Winograd primitive: a 3x3 convolution as transforms around smaller products.

F(m x m, 3 x 3) computes m x m outputs from a tile of (m+2) x (m+2) inputs with (m+2)^2 products
instead of 9 m^2. `rewrite` recognises a convolution by its tensor expression, whatever its layout
and names, and replaces it by plain stages, which other primitives then place and tile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retune.core.errors import ScheduleError
from retune.ir.expr import (
    Binary,
    Buffer,
    Const,
    Expr,
    Load,
    Var,
    all_of,
    const,
    equal,
    select,
    variables,
)
from retune.ir.simplify import affine, simplify
from retune.ir.stmt import Block, For, Program, Seq, Stmt
from retune.schedule.cooktoom import Matrix, matrices, products
from retune.schedule.stages import root_nest

ERRORS = {2: 9e-7, 4: 5e-6}
"""Output tile size m -> largest error against float64 as a part of the output's range, for data in
[-1, 1] and 32 to 512 channels; direct convolution's is 1.3e-6. A unit test measures them."""
_TAPS = 3
STAGES = ("data", "rows", "factors", "taps", "filter", "product", "columns", "outputs")
"""What the stages before the output are called, in order; `filter` and `taps` read weights only."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A 3x3 convolution of stride 1 as it was found: which axis is which."""

    root: Stmt
    block: Block
    data: Load
    weight: Load
    rows: int
    """Dimension of the data that the window moves along first; `columns` is the other one."""
    columns: int
    channels: int
    """Dimension of the data that is summed over."""
    batch: int
    taps: tuple[Var, Var]
    """Reduce variables of the window's rows and columns."""
    depth: Var
    """Reduce variable of the channels."""
    made: Var
    """The output channel's axis."""
    extents: dict[Var, int]

    def axis(self, dim: int) -> Var:
        """The output axis that moves along a dimension of the data."""
        (found,) = variables(self.data.indices[dim]) - {*self.taps, self.depth}
        return found


def find_convolution(program: Program, name: str) -> Convolution:
    """The convolution that a stage states.

    Raises: ScheduleError unless it is one that `winograd` can rewrite.
    """
    root, block, path = root_nest(program, name)
    value = block.value
    refused = ScheduleError(
        f"winograd({name}): expected the sum of data[n, y + ry, x + rx, c] * weight[ry, rx, c, f] "
        f"over a 3x3 window, of stride 1, in one group; got {value}"
    )
    if block.reducer != "sum" or not isinstance(value, Binary) or value.op != "mul":
        raise refused
    pair = [load for load in (value.a, value.b) if isinstance(load, Load)]
    constant = [load for load in pair if load.buffer.scope == "constant"]
    if len(pair) != 2 or len(constant) != 1 or not all(isinstance(p.extent, Const) for p in path):
        raise refused
    weight = constant[0]
    data = pair[0] if pair[1] is weight else pair[1]
    found = _classify(data, weight, path)
    if found is None:
        raise refused
    extents = {p.var: int(p.extent.value) for p in path if isinstance(p.extent, Const)}
    return Convolution(root, block, data, weight, extents=extents, **found)  # pyright: ignore


def _classify(data: Load, weight: Load, path: Sequence[For]) -> dict[str, object] | None:
    """The fields of a Convolution that say what the axes are; None if it is not one."""
    reduced = {p.var: p.extent for p in path if p.reduce}
    moving = [p.var for p in path if not p.reduce]
    windows: list[tuple[int, Var]] = []
    found: dict[str, object] = {}
    used: list[Var] = []
    for dim, index in enumerate(data.indices):
        form = affine(simplify(index), [p.var for p in path])
        if form is None or form[1] != const(0) or any(c != const(1) for c in form[0].values()):
            return None
        own = [v for v in form[0] if v in moving]
        taps = [v for v in form[0] if v in reduced]
        used += own
        if len(own) == 1 and len(taps) == 1 and reduced[taps[0]] == const(_TAPS):
            windows.append((dim, taps[0]))
        elif len(own) == 1 and not taps:
            found["batch"] = dim
        elif len(taps) == 1 and not own:
            found["channels"], found["depth"] = dim, taps[0]
        else:
            return None
    left = [v for v in moving if v not in used]
    if len(windows) != 2 or len(data.indices) != 4 or len(found) != 3 or len(left) != 1:
        return None
    (found["rows"], rows), (found["columns"], columns) = windows
    found["taps"], found["made"] = (rows, columns), left[0]
    wanted = {rows, columns, found["depth"], left[0]}
    plain = len(weight.indices) == 4 and {*weight.indices} == wanted
    return found if plain and len(reduced) == 3 and len(moving) == 4 else None


def rewrite(program: Program, name: str, m: int) -> Program:
    """See Schedule.winograd."""
    if m not in ERRORS:
        raise ScheduleError(f"winograd({name}): m is one of {tuple(ERRORS)}, got {m}")
    conv = find_convolution(program, name)
    stages = _Stages(conv, m)
    nests = stages.build()
    body: list[Stmt] = []
    for stmt in program.body.stmts:
        body.extend(nests if stmt is conv.root else [stmt])
    return replace(program, body=Seq(tuple(body)), scratch=(*program.scratch, *stages.buffers))


class _Stages:
    """The nests that replace one convolution.

    data[i, j, n, y, x, c]      the input under tile (y, x), zero past its end
    rows[u, j, n, y, x, c]      B^T data
    factors[u, v, n, y, x, c]   rows B
    taps[u, j, c, f]            G weight
    filter[u, v, c, f]          taps G^T
    product[u, v, n, y, x, f]   sum over c of factors * filter
    columns[p, v, n, y, x, f]   A^T product
    outputs[p, q, n, y, x, f]   columns A
    and the stage itself, which reads its element at (y % m, x % m) of tile (y//m, x//m).
    """

    def __init__(self, conv: Convolution, m: int) -> None:
        self.conv = conv
        self.m = m
        self.forms = matrices(m, _TAPS)
        self.buffers: list[Buffer] = []
        self._nests: list[Stmt] = []
        extents = conv.extents
        self.tiles = {
            "n": extents[conv.axis(conv.batch)],
            "y": -(-extents[conv.axis(conv.rows)] // m),
            "x": -(-extents[conv.axis(conv.columns)] // m),
        }
        self.depth = {"c": extents[conv.depth]}
        self.made = {"f": extents[conv.made]}

    def build(self) -> list[Stmt]:
        """All nests, producers first; `buffers` holds what they write."""
        m, n = self.m, self.m + _TAPS - 1
        b_t, a_t = self.forms.b_t, self.forms.a_t
        inputs, made = self.tiles | self.depth, self.tiles | self.made
        data = self._stage("data", {"i": n, "j": n} | inputs, self._data)
        rows = self._stage(
            "rows", {"u": n, "j": n} | inputs,
            lambda u, j, *at: _chosen(b_t, u, lambda i: Load(data, (i, j, *at))),
        )  # fmt: skip
        factors = self._stage(
            "factors", {"u": n, "v": n} | inputs,
            lambda u, v, *at: _chosen(b_t, v, lambda j: Load(rows, (u, j, *at))),
        )  # fmt: skip
        weight = self._weights(n)
        product = self._stage(
            "product", {"u": n, "v": n} | made,
            lambda u, v, b, y, x, f, c: (
                Load(factors, (u, v, b, y, x, c)) * Load(weight, (u, v, c, f))
            ),
            reduce=self.depth,
        )  # fmt: skip
        columns = self._stage(
            "columns", {"p": m, "v": n} | made,
            lambda p, v, *at: _chosen(a_t, p, lambda u: Load(product, (u, v, *at))),
        )  # fmt: skip
        outputs = self._stage(
            "outputs", {"p": m, "q": m} | made,
            lambda p, q, *at: _chosen(a_t, q, lambda v: Load(columns, (p, v, *at))),
        )  # fmt: skip
        return [*self._nests, self._assembled(outputs)]

    def _weights(self, n: int) -> Buffer:
        """The transformed weights."""
        axes, g = self.depth | self.made, self.forms.g
        taps = self._stage(
            "taps", {"u": n, "j": _TAPS} | axes,
            lambda u, j, c, f: _chosen(g, u, lambda i: self._weight(i, j, c, f)),
        )  # fmt: skip
        return self._stage(
            "filter", {"u": n, "v": n} | axes,
            lambda u, v, c, f: _chosen(g, v, lambda j: Load(taps, (u, j, c, f))),
        )  # fmt: skip

    def _data(self, *axes: Expr) -> Expr:
        i, j, batch, y, x, c = axes
        conv, m = self.conv, self.m
        at: list[Expr] = [const(0)] * 4
        at[conv.batch], at[conv.channels] = batch, c
        at[conv.rows], at[conv.columns] = y * m + i, x * m + j
        tests: list[Expr] = []
        for dim, tiles in ((conv.rows, self.tiles["y"]), (conv.columns, self.tiles["x"])):
            extent = conv.data.buffer.shape[dim]
            if not isinstance(extent, Const) or tiles * m + _TAPS - 1 > extent.value:
                tests.append(at[dim] < extent)
        return select(all_of(*tests), Load(conv.data.buffer, tuple(at)), 0.0)

    def _weight(self, i: Expr, j: Expr, c: Expr, f: Expr) -> Expr:
        conv = self.conv
        places = {conv.taps[0]: i, conv.taps[1]: j, conv.depth: c, conv.made: f}
        indices = (places[v] for v in conv.weight.indices if isinstance(v, Var))
        return Load(conv.weight.buffer, tuple(indices))

    def _assembled(self, outputs: Buffer) -> Stmt:
        """The convolution's own nest, which picks its elements out of the tiles."""
        conv, m = self.conv, self.m
        y, x = conv.axis(conv.rows), conv.axis(conv.columns)
        at = (y % m, x % m, conv.axis(conv.batch), y // m, x // m, conv.made)
        nest: Stmt = replace(conv.block, value=Load(outputs, at), reducer=None)
        for index in reversed(conv.block.indices):
            assert isinstance(index, Var)
            nest = For(index, const(conv.extents[index]), nest)
        return nest

    def _stage(
        self,
        stem: str,
        axes: dict[str, int],
        value: Callable[..., Expr],
        reduce: dict[str, int] | None = None,
    ) -> Buffer:
        """A buffer over `axes`, with the nest that fills it with `value` of the axes' variables."""
        name = f"{self.conv.block.name}.{stem}"
        own = {Var(f"{name}.{axis}"): extent for axis, extent in axes.items()}
        summed = {Var(f"{name}.{axis}"): extent for axis, extent in (reduce or {}).items()}
        buffer = Buffer(name, tuple(const(e) for e in own.values()), self.conv.block.buffer.dtype)
        nest: Stmt = Block(
            name, buffer, tuple(own), value(*own, *summed), "sum" if summed else None
        )
        for var, extent in reversed(summed.items()):
            nest = For(var, const(extent), nest, reduce=True)
        for var, extent in reversed(own.items()):
            nest = For(var, const(extent), nest)
        self.buffers.append(buffer)
        self._nests.append(nest)
        return buffer


def _chosen(matrix: Matrix, row: Expr, value: Callable[[Expr], Expr]) -> Expr:
    """The row of `matrix @ [value(0), value(1), ...]` that an index chooses."""
    *others, last = products(matrix, [value(const(c)) for c in range(len(matrix[0]))])
    result = last
    for number, form in reversed(list(enumerate(others))):
        result = select(equal(row, number), form, result)
    return result
