"""Random networks whose inputs leave extents open: images, and texts of any length.

Read `random_sized`. Images grow by the steps of `random_networks` and `random_blocks`, texts by
those of `random_tokens`. What a node is told of an extent is computed by nodes, as exporters write
it: by Shape, Gather and arithmetic; or left out by 0 and -1 in a Reshape.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto

from retune.core.dims import Atom, Dim, Size, SizeValues, assuming, dim_of, is_fixed, least
from tests.support.random_blocks import BLOCKS
from tests.support.random_networks import STEPS, RandomNet, Step, grown
from tests.support.random_tokens import TOKENS, TokenNet

BATCHES = (Size("n", 1, 6), Size("n", 2, 4), Size("n", 1, 3))
HEIGHTS = (Size("h", 5, 20), Size("h", 6, 9), Size("h", 5, 11, 2))
WIDTHS = (Size("w", 5, 12), Size("w", 6, 16, 2), Size("w", 7, 9))
LENGTHS = (Size("t", 1, 20), Size("t", 2, 12, 2), Size("t", 3, 9), Size("t", 4, 32, 4))
FEATURES = (4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Sized:
    """A network, and the sizes that it leaves open."""

    model: onnx.ModelProto
    sizes: tuple[Size, ...]
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    """What the elements of inputs are that state sizes."""

    def some(self, seed: int, count: int) -> Sequence[SizeValues]:
        """The least sizes, the greatest ones, and random ones; none twice."""
        rng = np.random.default_rng(seed)
        ends = [{s.name: s.values[end] for s in self.sizes} for end in (0, -1)]
        more = [{s.name: int(rng.choice(s.values)) for s in self.sizes} for _ in range(8 * count)]
        unlike = {tuple(values.values()): values for values in (*ends, *more)}
        return list(unlike.values())[:count]


class SizedNet(RandomNet):
    """A network as it grows, whose extents may depend on sizes."""

    def __init__(self, seed: int) -> None:
        self._computed: dict[str, str] = {}
        self._where: dict[str, tuple[str, int]] = {}
        self._vectors: dict[str, str] = {}
        self._sizes: list[Size] = []
        self.values: dict[str, tuple[int, ...]] = {}
        super().__init__(seed)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The sizes of its inputs."""
        return tuple(self._sizes)

    def first(self) -> str:
        kind = self.pick("n", "h", "w", "nh", "hw", "nw", "hh")
        options = {"n": BATCHES, "h": HEIGHTS, "w": WIDTHS}
        found = {name: self.pick(*options[name]) for name in dict.fromkeys(kind)}
        self._sizes += found.values()
        dims = {name: dim_of(size) for name, size in found.items()}
        fixed: dict[str, int] = {"n": self.pick(1, 1, 2), "h": self.pick(5, 7, 8)}
        batch, height = (dims.get(name, extent) for name, extent in fixed.items())
        width = height if kind == "hh" else dims.get("w", int(self.pick(5, 6, 8)))
        shape = (batch, self.pick(3, 4, 6, 8, 12, 16), height, width)
        return self.made(self.input(*shape), shape)

    def input(self, *shape: int, element: int = TensorProto.FLOAT) -> str:
        sizes = [extent.size if isinstance(extent, Dim) else None for extent in shape]
        stated = [e if s is None else s.name for e, s in zip(shape, sizes, strict=True)]
        name = super().input(*stated, element=element)  # type: ignore[arg-type]
        for axis, size in enumerate(sizes):
            if size is not None:
                self._where.setdefault(size.name, (name, axis))
        return name

    def stated(self, name: str, first: int, last: int, sign: int = 1) -> tuple[str, int]:
        """An input of one integer that is a size with that sign, and the size; fixed where there is
        one already.

        Its least value is that which is assumed for its name.
        """
        if self.values or first == last:
            return self.ints(sign * first), first
        size = Size(name, first, last)
        self._sizes.append(size)
        given = super().input(1, element=TensorProto.INT64)
        self.values[given] = (sign * dim_of(size),)
        self._vectors[name] = given if sign > 0 else self("Neg", given)
        return given, dim_of(size)

    def ints(self, *values: int) -> str:
        if all(map(is_fixed, values)):
            return super().ints(*values)
        return self("Concat", *(self._extent(v) for v in values), axis=0)

    def reshaped(self, x: str, *shape: int) -> str:
        opened = [axis for axis, extent in enumerate(shape) if not is_fixed(extent)]
        if len(opened) == 1 and -1 not in [*filter(is_fixed, shape)] and self.chance(0.5):
            shape = tuple(-1 if axis in opened else e for axis, e in enumerate(shape))
        return super().reshaped(x, *shape)

    def _extent(self, extent: int) -> str:
        """A vector of one element: the extent, computed from the shapes of inputs."""
        if not isinstance(extent, Dim):
            return super().ints(extent)
        text = str(extent)
        if text not in self._computed:
            total = ""
            for monomial, factor in extent.terms:
                parts = [self._atom(atom) for atom in monomial]
                parts += [super().ints(factor)] if factor != 1 or not parts else []
                term = parts[0]
                for part in parts[1:]:
                    term = self("Mul", term, part)
                total = self("Add", total, term) if total else term
            self._computed[text] = total
        return self._computed[text]

    def _atom(self, atom: Atom) -> str:
        if not isinstance(atom, Size):
            return self("Div", self._extent(atom.dividend), self._extent(atom.divisor))
        if atom.name in self._vectors:
            return self._vectors[atom.name]
        value, axis = self._where[atom.name]
        return self("Gather", self("Shape", value), super().ints(axis), axis=0)


class SizedTokenNet(SizedNet, TokenNet):
    """The same of texts, of any number and length."""

    def first(self) -> str:
        kind = self.pick("t", "nt", "t", "n")
        length = self.pick(*LENGTHS) if "t" in kind else self.pick(Size("t", 5, 5), Size("t", 8, 8))
        batch = self.pick(*BATCHES) if "n" in kind else Size("n", *[self.pick(1, 1, 2)] * 2)
        self._sizes += (size for size in (batch, length) if size.least < size.most)
        return self.begun(dim_of(batch), dim_of(length), self.pick(*FEATURES))


def stated_end(n: SizedNet, x: str) -> str:
    """The beginning of one axis, up to what an input says, or the rest of it."""
    shape = [*n.shapes[x]]
    axis = n.pick(2, 3) if len(shape) == 4 else 1
    kind = n.pick("end", "negated", "start")
    given, count = n.stated("k", 1, least(shape[axis]), -1 if kind == "start" else 1)
    if kind == "end":
        part = n("Slice", x, n.ints(0), given, n.ints(axis))
    else:
        start = n("Neg", given) if kind == "negated" else given
        part = n("Slice", x, start, n.ints(1 << 40), n.ints(axis))
    shape[axis] = count
    return n.made(part, tuple(shape))


def stated_largest(n: SizedNet, x: str) -> str:
    """The largest elements along one axis, as many as an input says."""
    shape = [*n.shapes[x]]
    axis = n.pick(2, 3) if len(shape) == 4 else 1
    given, shape[axis] = n.stated("k", 1, least(shape[axis]))
    values, _ = n.parts("TopK", 2, x, given, axis=axis)
    return n.made(values, tuple(shape))


def stated_image(n: SizedNet, x: str) -> str:
    """An image of as many rows as an input says."""
    batch, c, _, w = n.shapes[x]
    given, count = n.stated("rows", 3, 9)
    sizes = n("Concat", n.ints(batch, c), given, n.ints(w), axis=0)
    mode, way = n.pick("nearest", "linear"), n.pick("half_pixel", "asymmetric")
    made = n("Resize", x, "", "", sizes, mode=mode, coordinate_transformation_mode=way)
    return n.made(made, (batch, c, count, w))


def random_sized(seed: int, steps: int = 6, among: Sequence[Step] | None = None) -> Sized:
    """A network with one or two sizes; the same seed gives the same.

    Every third one is of texts. It grows by such steps as are asked for, or by all that there are.
    """
    text = seed % 3 == 2
    net = SizedTokenNet(seed) if text else SizedNet(seed)
    stated = (stated_end, stated_largest, *(() if text else (stated_image,)))
    with assuming({"k": 1, "rows": 3, **{size.name: size.least for size in net.sizes}}):
        if not among and net.chance(0.4):
            net.step(TOKENS if text else STEPS)
            net.x = net.pick(*stated)(net, net.x)
        model = grown(net, steps, among or (TOKENS if text else (*STEPS, *BLOCKS)))
    return Sized(model, net.sizes, net.values)


LEAST = 0.137
"""Rows whose greatest element is above it are kept."""


def random_counted(seed: int, steps: int = 3) -> Sized:
    """A network with sizes that keeps as many rows as its data say; the same seed gives the same.

    Dense layers and sums are behind that.
    """
    text = seed % 3 == 2
    net = SizedTokenNet(seed) if text else SizedNet(seed)
    with assuming({size.name: size.least for size in net.sizes}):
        for _ in range(steps):
            net.step(TOKENS if text else STEPS)
        shape = net.shapes[net.x]
        last = -1 if len(shape) == 3 else 1
        depth = shape[last] if is_fixed(shape[last]) else 1
        turned = net("Transpose", net.x, perm=[0, 2, 3, 1]) if len(shape) == 4 else net.x
        kept = net.pick(_chosen, _compressed, _distinct, _chosen_twice)(
            net, net("Reshape", turned, net.ints(-1, depth)), depth
        )
    dense = net("MatMul", kept, net.weight(depth, made := net.pick(4, 8, 20)))
    rows = net(net.pick("Relu", "Tanh", "Sigmoid"), net("Add", dense, net.weight(made)))
    shares = net("Softmax", rows, axis=1)
    return Sized(net.model(rows, net("ReduceSum", shares, net.ints(0), keepdims=0)), net.sizes)


def _kept(n: SizedNet, rows: str) -> str:
    """Which rows are kept: a condition for each."""
    return n("Greater", n("ReduceMax", rows, n.ints(1), keepdims=0), n.number(LEAST))


def _chosen(n: SizedNet, rows: str, _: int) -> str:
    return n("Gather", rows, n("Squeeze", n("NonZero", _kept(n, rows)), n.ints(0)), axis=0)


def _compressed(n: SizedNet, rows: str, _: int) -> str:
    return n("Compress", rows, _kept(n, rows), axis=0)


def _chosen_twice(n: SizedNet, rows: str, depth: int) -> str:
    kept = n("Tanh", _chosen(n, rows, depth))
    return _compressed(n, n("Mul", kept, n.weight(depth)), depth)


def _distinct(n: SizedNet, rows: str, depth: int) -> str:
    """Rows of a table, one for each number that there is."""
    numbers = n("Cast", n("ReduceMax", rows, n.ints(1), keepdims=0), to=TensorProto.INT64)
    (found,) = n.parts("Unique", 1, n("Mod", numbers, n.ints(9)))
    return n("Gather", n.weight(9, depth), found, axis=0)
