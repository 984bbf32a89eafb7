"""The Winograd form of a convolution: transforms around smaller products.

F(m x m, r x r) computes m x m outputs from a tile of (m+r-1) x (m+r-1) inputs with (m+r-1)^2
products instead of r^2 m^2; F(m, r) does the same along one axis, for windows 1 x r and r x 1.
`winograd` recognises a convolution by its tensor expression, whatever its layout and names, and
replaces it by plain stages, which primitives then position and tile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retune.core.dims import is_fixed, never_above
from retune.core.errors import ScheduleError
from retune.ir.evaluate import known_extent
from retune.ir.expr import (
    Binary,
    Buffer,
    Expr,
    Load,
    Var,
    all_of,
    as_expr,
    const,
    equal,
    select,
    variables,
)
from retune.ir.simplify import affine, simplify
from retune.ir.stmt import Block, For, Program, Stmt, over
from retune.schedule.cooktoom import Matrix, matrices, products
from retune.schedule.stages import replace_root, root_nest

ERRORS: dict[tuple[int, ...], dict[int, float]] = {
    (3, 3): {2: 1e-6, 4: 6e-6, 6: 2.5e-5},
    (5, 5): {2: 4e-6, 4: 2.5e-5},
    (3,): {2: 1e-6, 4: 2e-6, 6: 6e-6},
    (5,): {2: 3e-6, 4: 7e-6},
    (7,): {2: 4e-6, 4: 1.2e-5},
}
"""Taps of the window along each of its axes -> size m of an output tile -> largest error against
float64 as a part of the output's range, for data in [-1, 1], 512 channels and a rectifier behind.
It grows with the root of the channels, see `WinogradConvolution.error`."""
DIRECT: dict[tuple[int, ...], float] = {
    (3, 3): 1.6e-6,
    (5, 5): 3.9e-6,
    (3,): 1.3e-6,
    (5,): 1.7e-6,
    (7,): 2e-6,
}
"""The same of direct convolution, whose error grows alike: the largest of three samples, rounded
up."""
STORED: dict[tuple[int, ...], dict[int, float]] = {(3, 3): {2: 0.9}}
"""Where the factors of the products are rounded to the type that the data is stored in: the largest
error in units of that type's rounding, as a part of the output's range. It does not grow with the
channels. (Tiles of 4 x 4 take 3.8, of 6 x 6 over 20.)"""
_DIRECT_STORED = 0.5
"""The same of direct convolution, whose results are rounded."""
_CHANNELS = 512


@dataclass(frozen=True, slots=True)
class WindowAxis:
    """An axis along which the window moves."""

    dim: int
    """Dimension of the data."""
    tap: Var
    """Reduce variable."""
    taps: int


@dataclass(frozen=True, slots=True)
class WinogradConvolution:
    """A convolution of stride 1 as it was found: which axis is which."""

    root: Stmt
    block: Block
    data: Load
    weight: Load
    windows: tuple[WindowAxis, ...]
    """The axes of more than one tap, in the order of the data's dimensions."""
    positions: tuple[int, ...]
    """All dimensions of the data but the channels."""
    channels: int
    """Dimension of the data that is summed over."""
    depth: Var
    """Reduce variable of the channels."""
    made: Var
    """The output channel's axis."""
    extents: dict[Var, int]

    @property
    def taps(self) -> tuple[int, ...]:
        """Taps along each axis of the window."""
        return tuple(window.taps for window in self.windows)

    def error(self, m: int, *, stored: bool = False) -> float:
        """The largest error by tiles of size m, as a part of the output's range.

        `stored`: of products of factors in the data's type. A unit test measures 32 to 512
        channels.
        """
        if stored:
            return STORED[self.taps][m] * self.data.buffer.dtype.roundoff
        return ERRORS[self.taps][m] * (self.extents[self.depth] / _CHANNELS) ** 0.5

    def roundings(self, m: int, *, stored: bool = False) -> float:
        """The error as a multiple of the direct convolution's."""
        if stored:
            return STORED[self.taps][m] / _DIRECT_STORED
        return ERRORS[self.taps][m] / DIRECT[self.taps]

    @property
    def stored_alike(self) -> bool:
        """Whether data and weights are of the same storage-only type."""
        dtype = self.data.buffer.dtype
        return dtype.is_small_float and self.weight.buffer.dtype == dtype

    def tile(self, m: int) -> dict[int, int]:
        """Outputs of a tile of size m along each of the positions, by dimension."""
        moved = {window.dim for window in self.windows}
        return {dim: m if dim in moved else 1 for dim in self.positions}

    def axis(self, dim: int) -> Var:
        """The output axis that moves along a dimension of the data."""
        (found,) = variables(self.data.indices[dim]) - {w.tap for w in self.windows}
        return found


def find_convolution(program: Program, name: str) -> WinogradConvolution:
    """The convolution that a stage states.

    Raises: ScheduleError unless it is one that `winograd` can rewrite.
    """
    root, block, path = root_nest(program, name)
    value = block.value
    refused = ScheduleError(
        f"winograd({name}): expected the sum of data[n, y + ry, x + rx, c] * weight[ry, rx, c, f] "
        "over a window of 3x3, 5x5, or 3, 5 or 7 along one axis, of stride 1, in one group; got "
        f"{value}"
    )
    if block.reducer != "sum" or not isinstance(value, Binary) or value.op != "mul":
        raise refused
    if not value.dtype.is_float:
        raise ScheduleError(f"winograd({name}): expected floats, got {value.dtype}")
    pair = [load for load in (value.a, value.b) if isinstance(load, Load)]
    constant = [load for load in pair if load.buffer.scope == "constant"]
    extents = {p.var: known_extent(p.extent) for p in path}
    if len(pair) != 2 or len(constant) != 1 or None in extents.values():
        raise refused
    weight = constant[0]
    data = pair[0] if pair[1] is weight else pair[1]
    extents = {var: extent for var, extent in extents.items() if extent is not None}
    axes = _axes(data, path, extents)
    if axes is None:
        raise refused
    windows, positions, (channels, depth), made = axes
    found = WinogradConvolution(
        root, block, data, weight, windows, positions, channels, depth, made, extents
    )
    if not all(is_fixed(extents[var]) for var in (depth, made, *(w.tap for w in windows))):
        raise refused
    wanted = {*(window.tap for window in windows), depth, made}
    used = [index for index in weight.indices if index != const(0)]
    if found.taps not in ERRORS or len(used) != len(wanted) or {*used} != wanted:
        raise refused
    return found


Axes = tuple[tuple[WindowAxis, ...], tuple[int, ...], tuple[int, Var], Var]


def _axes(data: Load, path: Sequence[For], extents: dict[Var, int]) -> Axes | None:
    """Windows, positions, the channels with their variable, and the axis of what is made.

    None if the data is not read as a convolution of stride 1 in one group reads it.
    """
    reduced = {p.var for p in path if p.reduce}
    left = [p.var for p in path if not p.reduce]
    windows: list[WindowAxis] = []
    positions: list[int] = []
    channels: list[tuple[int, Var]] = []
    for dim, index in enumerate(data.indices):
        form = affine(simplify(index), [p.var for p in path])
        if form is None or form[1] != const(0) or any(c != const(1) for c in form[0].values()):
            return None
        own = [v for v in form[0] if v in left]
        taps = [v for v in form[0] if v in reduced]
        if len(own) == 1 and len(taps) <= 1:
            left.remove(own[0])
            positions.append(dim)
            windows += [WindowAxis(dim, tap, extents[tap]) for tap in taps]
        elif len(taps) == 1 and not own:
            channels.append((dim, taps[0]))
        else:
            return None
    if len(channels) != 1 or len(left) != 1 or len(positions) > len(_POSITIONS):
        return None
    if len(reduced) != len(windows) + 1:
        return None
    return tuple(windows), tuple(positions), channels[0], left[0]


def winograd(program: Program, name: str, sizes: Sequence[int]) -> tuple[Program, list[str]]:
    """The convolution by tiles of m outputs along each axis of its window.

    F(m x m, r x r) or, for a window along one axis, F(m, r). `sizes` is [m], or [m, 1] for factors
    that are stored in the type of the data and the weights, whose products instructions make.

    Rewrite: the stage `c` becomes plain stages
        c.data, c.rows, c.factors   the input's tiles, transformed along rows, then columns
        c.taps, c.filter            the weights, transformed; for `precompute`
        c.product                   for each of the (m+r-1)^2 factors, a sum over channels
        c.columns, c.outputs        the outputs, transformed along rows, then columns
        c                           reads the outputs of its tiles
    For a window along one axis there are no rows, taps and columns. Tiles past the end of odd
    sizes read zeros there. Gives the program, and the names of all stages but `c`.

    The results differ by rounding: see `WinogradConvolution.error`.

    Raises: ScheduleError unless it is such a convolution, of stride 1 in one group.
    """
    conv = find_convolution(program, name)
    stored = tuple(sizes[1:]) == (1,)
    known = tuple((STORED if stored else ERRORS).get(conv.taps, ()))
    if len(sizes) > 1 + stored or not sizes or sizes[0] not in known:
        raise ScheduleError(f"winograd({name}): m is one of {known}, got {[*sizes]}")
    if stored and not conv.stored_alike:
        kinds = f"{conv.data.buffer.dtype} and {conv.weight.buffer.dtype}"
        raise ScheduleError(f"winograd({name}): expected one type that is only stored, got {kinds}")
    stages = _Stages(conv, sizes[0], stored=stored)
    program = replace_root(program, conv.root, *stages.build())
    buffers = stages.buffers
    return replace(program, scratch=(*program.scratch, *buffers)), [b.name for b in buffers]


_INPUTS = {1: ("factors",), 2: ("rows", "factors")}
_WEIGHTS = {1: ("filter",), 2: ("taps", "filter")}
_OUTPUTS = {1: ("outputs",), 2: ("columns", "outputs")}
"""Names of the transforms' stages, by the number of axes of the window."""
_FACTORS = ("factors", "filter")
"""The last ones of data and weights, of which products are made."""
_POSITIONS = "nyx"
"""Names of the axes over tiles: the last ones of these."""
Read = Callable[..., Expr]


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

    A window of one axis has i, u and p alone, and no rows, taps and columns.
    """

    def __init__(self, conv: WinogradConvolution, m: int, *, stored: bool) -> None:
        self.conv = conv
        self.m = m
        self._factor = conv.data.buffer.dtype if stored else conv.block.buffer.dtype
        self.sizes = conv.tile(m)
        self.forms = [matrices(m, taps) for taps in conv.taps]
        self.buffers: list[Buffer] = []
        self._nests: list[Stmt] = []
        names = _POSITIONS[-len(conv.positions) :]
        self.tiles = {
            name: -(-conv.extents[conv.axis(dim)] // size)
            for name, (dim, size) in zip(names, self.sizes.items(), strict=True)
        }
        self.depth = {"c": conv.extents[conv.depth]}
        self.made = {"f": conv.extents[conv.made]}

    def build(self) -> list[Stmt]:
        """All nests, producers first; `buffers` holds what they write."""
        axes, forms = len(self.forms), self.forms
        points: dict[str, int] = dict(zip("uv", (len(form.b_t) for form in forms), strict=False))
        inputs: dict[str, int] = dict(zip("ij", points.values(), strict=False))
        taps: dict[str, int] = dict(zip("ij", self.conv.taps, strict=False))
        data = self._stage("data", inputs | self.tiles | self.depth, self._data)
        factors = self._transformed(
            _INPUTS[axes], [f.b_t for f in forms], (inputs, "uv"), self.tiles | self.depth,
            lambda *at: Load(data, at),
        )  # fmt: skip
        weight = self._transformed(
            _WEIGHTS[axes], [f.g for f in forms], (taps, "uv"), self.depth | self.made, self._weight
        )

        def multiplied(*at: Expr) -> Expr:
            *position, f, c = at
            return Load(factors, (*position, c)) * Load(weight, (*position[:axes], c, f))

        made = self.tiles | self.made
        product = self._stage("product", points | made, multiplied, reduce=self.depth)
        outputs = self._transformed(
            _OUTPUTS[axes], [f.a_t for f in forms], (points, "pq"), made,
            lambda *at: Load(product, at),
        )  # fmt: skip
        return [*self._nests, self._assembled(outputs)]

    def _transformed(
        self,
        stems: Sequence[str],
        factors: Sequence[Matrix],
        axes: tuple[dict[str, int], str],
        rest: dict[str, int],
        read: Read,
    ) -> Buffer:
        """One stage for each of the leading axes, which multiplies along it; the last one.

        `axes` are those axes as they are read, and their names when they are transformed.
        """
        before, names = axes
        sizes, buffer = list(before.items()), None
        for position, (stem, matrix) in enumerate(zip(stems, factors, strict=True)):
            sizes[position] = (names[position], len(matrix))
            buffer = self._stage(stem, dict(sizes) | rest, _along(position, matrix, read))
            read = _loader(buffer)
        assert buffer is not None, "a window has an axis"
        return buffer

    def _data(self, *at: Expr) -> Expr:
        conv = self.conv
        *inside, channel = at
        offsets = dict(zip((w.dim for w in conv.windows), inside, strict=False))
        taps = {window.dim: window.taps for window in conv.windows}
        index: list[Expr] = [channel] * len(conv.data.indices)
        tests: list[Expr] = []
        tiles = zip(inside[len(offsets) :], self.tiles.values(), strict=True)
        for (dim, size), (tile, count) in zip(self.sizes.items(), tiles, strict=True):
            index[dim] = tile * size + offsets.get(dim, const(0))
            extent = conv.data.buffer.shape[dim]
            reach = count * size + taps.get(dim, 1) - 1
            held = known_extent(extent)
            if held is None or not never_above(reach, held):
                tests.append(index[dim] < extent)
        return select(all_of(*tests), Load(conv.data.buffer, tuple(index)), 0.0)

    def _weight(self, *at: Expr) -> Expr:
        conv = self.conv
        *taps, c, f = at
        positions = dict(zip((w.tap for w in conv.windows), taps, strict=True))
        positions |= {conv.depth: c, conv.made: f}
        indices = (positions[v] if isinstance(v, Var) else v for v in conv.weight.indices)
        return Load(conv.weight.buffer, tuple(indices))

    def _assembled(self, outputs: Buffer) -> Stmt:
        """The convolution's own nest, which picks its elements out of the tiles."""
        conv = self.conv
        pixels = [conv.axis(window.dim) % self.m for window in conv.windows]
        tiles = [conv.axis(dim) // size for dim, size in self.sizes.items()]
        value = Load(outputs, (*pixels, *tiles, conv.made))
        axes = [(i, as_expr(conv.extents[i])) for i in conv.block.indices if isinstance(i, Var)]
        return over(axes, replace(conv.block, value=value, reducer=None))

    def _stage(
        self,
        stem: str,
        axes: dict[str, int],
        value: Read,
        reduce: dict[str, int] | None = None,
    ) -> Buffer:
        """A buffer over `axes`, with the nest that fills it with `value` of the axes' variables."""
        name = f"{self.conv.block.name}.{stem}"
        own = {Var(f"{name}.{axis}"): as_expr(extent) for axis, extent in axes.items()}
        summed = {Var(f"{name}.{axis}"): as_expr(extent) for axis, extent in (reduce or {}).items()}
        buffer = Buffer(name, tuple(own.values()), self.conv.block.buffer.dtype)
        reducer = "sum" if summed else None
        if stem in _FACTORS:
            buffer = replace(buffer, dtype=self._factor)
        block = Block(name, buffer, tuple(own), value(*own, *summed), reducer)
        nest = over(own.items(), over(summed.items(), block, reduce=True))
        self.buffers.append(buffer)
        self._nests.append(nest)
        return buffer


def _loader(buffer: Buffer) -> Read:
    return lambda *at: Load(buffer, at)


def _along(axis: int, matrix: Matrix, read: Read) -> Read:
    """The product of `matrix` and the values that `read` gives along an axis."""
    return lambda *at: _chosen(matrix, at[axis], lambda i: read(*at[:axis], i, *at[axis + 1 :]))


def _chosen(matrix: Matrix, row: Expr, value: Callable[[Expr], Expr]) -> Expr:
    """The row of `matrix @ [value(0), value(1), ...]` that an index chooses."""
    *others, last = products(matrix, [value(const(c)) for c in range(len(matrix[0]))])
    result = last
    for number, form in reversed(list(enumerate(others))):
        result = select(equal(row, number), form, result)
    return result
