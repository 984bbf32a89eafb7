"""Addresses of reads and writes: an index split into parts by when they are known.

An index is a sum. Terms in unrolled loop variables are numbers for each instance; one variable may
run over vector lanes; the rest is a name that the kernel hoists to the outermost scope that can
compute it. So neighbouring accesses share one base and differ in a constant. Read `Addresses.of`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import gcd

from retune.codegen.frame import Frame
from retune.codegen.kernel import Value
from retune.ir.expr import Binary, Buffer, Const, Expr, SizeVar, Var, const, substitute, variables
from retune.ir.nodes import IRNode, node
from retune.ir.simplify import (
    Monomial,
    Polynomial,
    Range,
    add_terms,
    from_polynomial,
    polynomial,
    simplify,
)
from retune.ir.stmt import Block


@node
class Instance(IRNode):
    """A block, its unrolled loops' values by their names, and `lane`: (variable, lanes)."""

    block: Block
    env: Mapping[str, int]
    lane: tuple[Var, int] | None


@node
class Address(IRNode):
    """Memory that is read or written: `lanes` adjacent elements from `base + offset`."""

    buffer: Buffer
    base: Value | None
    offset: int
    lanes: int
    divisor: int = 1
    """Divides `base`; 0 if that is 0."""
    terms: tuple[tuple[Monomial, int], ...] = field(default=(), compare=False)
    """What `base` adds up: monomials with their coefficients."""

    @property
    def aligned(self) -> bool:
        """Whether a vector there surely starts on a multiple of its size."""
        return gcd(self.divisor, self.offset) % self.lanes == 0


@dataclass(frozen=True, slots=True, eq=False)
class _AffineIndex:
    """An index that is `base + offset + sum(step * unrolled variable) + stride * lane`."""

    base: Value | None
    offset: int
    steps: tuple[tuple[str, int], ...]
    stride: int
    divisor: int
    terms: tuple[tuple[Monomial, int], ...]
    sized: tuple[tuple[str, Monomial, int], ...] = ()
    """Unrolled variables whose steps depend on sizes, which are the monomials."""
    addresses: dict[int, Address] = field(default_factory=dict[int, Address])
    """Those made so far, by their offset."""
    moved: "dict[tuple[int, ...], _AffineIndex]" = field(
        default_factory=dict[tuple[int, ...], "_AffineIndex"]
    )
    """The index for values of the `sized` variables."""


class Addresses:
    """The addresses of accesses in one run of straight-line code; forms are found once each."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._forms: dict[tuple[int, str, str], tuple[object, _AffineIndex | None]] = {}

    def of(self, buffer: Buffer, indices: tuple[Expr, ...], instance: Instance) -> Address | None:
        """Where an access of an instance goes; None when its lanes are not adjacent."""
        lane, across = instance.lane or (None, 1)
        key = (id(indices), buffer.name, "" if lane is None else lane.name)
        known = self._forms.get(key)
        if known is None:  # the indices are kept, so that their id stays theirs
            terms = self._frame.flat(buffer, indices)
            known = self._forms[key] = (indices, self._form(terms, instance.env, lane, buffer))
        form = known[1]
        if form is None:
            return self._settled(buffer, indices, instance)
        if form.sized:
            form = self._at_sizes(form, instance.env, buffer)
        offset = form.offset
        for name, step in form.steps:
            offset += step * instance.env[name]
        address = form.addresses.get(offset)
        if address is None:
            lanes = across if form.stride else 1
            address = Address(buffer, form.base, offset, lanes, form.divisor, form.terms)
            form.addresses[offset] = address
        return address

    def resolve(self, terms: Polynomial, instance: Instance) -> Polynomial:
        """The polynomial with unrolled variables replaced by their values, as lanes allow it."""
        values: dict[Var, Expr] = {Var(name): const(i) for name, i in instance.env.items()}
        own = {*values, *(instance.lane or ())[:1]}
        if all(own.isdisjoint(variables(a)) for monomial in terms for a in monomial):
            return dict(terms)
        settled = substitute(from_polynomial(terms), values)
        return polynomial(simplify(settled, self.ranges(instance)))

    def ranges(self, instance: Instance) -> dict[Var, Range]:
        """Ranges of the variables that an instance sees."""
        ranges = dict(self._frame.ranges)
        if instance.lane:
            ranges[instance.lane[0]] = Range(0, instance.lane[1] - 1)
        return ranges

    def _form(
        self, terms: Polynomial, env: Mapping[str, int], lane: Var | None, buffer: Buffer
    ) -> _AffineIndex | None:
        """The parts of an index; None where unrolled variables or lanes are multiplied."""
        base: Polynomial = {}
        sized: list[tuple[str, Monomial, int]] = []
        moving = {*map(Var, env), lane}
        steps: list[tuple[str, int]] = []
        offset, stride = 0, 0
        for monomial, coefficient in terms.items():
            match monomial:
                case ():
                    offset = coefficient
                case (Var() as atom,) if atom == lane:
                    stride = coefficient
                case (Var(name),) if name in env:
                    steps.append((name, coefficient))
                case _ if not all(moving.isdisjoint(variables(atom)) for atom in monomial):
                    step = _sized_step(monomial, env)
                    if step is None:
                        return None
                    sized.append((*step, coefficient))
                case _:
                    base[monomial] = coefficient
        if stride not in (0, 1):
            return None
        known = self._frame.hoist(base, self._frame.names.of(buffer.name)) if base else None
        return _AffineIndex(
            known,
            offset,
            tuple(steps),
            stride,
            _known_divisor(base),
            tuple(base.items()),
            tuple(sized),
        )

    def _at_sizes(self, form: _AffineIndex, env: Mapping[str, int], buffer: Buffer) -> _AffineIndex:
        """The index whose `sized` variables have their values."""
        values = tuple(env[name] for name, _, _ in form.sized)
        known = form.moved.get(values)
        if known is None:
            base = dict(form.terms)
            for value, (_, sizes, step) in zip(values, form.sized, strict=True):
                add_terms(base, {sizes: step}, value)
            stem = self._frame.names.of(buffer.name)
            known = form.moved[values] = replace(
                form,
                base=self._frame.hoist(base, stem) if base else None,
                divisor=_known_divisor(base),
                terms=tuple(base.items()),
                sized=(),
                addresses={},
            )
        return known

    def _settled(
        self, buffer: Buffer, indices: tuple[Expr, ...], instance: Instance
    ) -> Address | None:
        terms = self.resolve(self._frame.flat(buffer, indices), instance)
        lane = instance.lane[0] if instance.lane else None
        form = self._form(terms, {}, lane, buffer)
        if form is None:
            return None
        lanes = instance.lane[1] if instance.lane and form.stride else 1
        return Address(buffer, form.base, form.offset, lanes, form.divisor, form.terms)


def _sized_step(monomial: Monomial, env: Mapping[str, int]) -> tuple[str, Monomial] | None:
    """An unrolled variable and the sizes that it is multiplied by; None for any other product."""
    names = [a.name for a in monomial if isinstance(a, Var) and a.name in env]
    sizes = tuple(a for a in monomial if not (isinstance(a, Var) and a.name in env))
    plain = all(isinstance(v, SizeVar) for a in sizes for v in variables(a))
    return (names[0], sizes) if len(names) == 1 and plain else None


def _known_divisor(terms: Polynomial) -> int:
    """A number that divides the sum, whatever its variables are; 0 for the sum of nothing.

    Vectors that start on their own size are one access on GPUs: `vload4` promises alignment to one
    element only, and so becomes four loads there.
    """
    divisor = 0
    for monomial, coefficient in terms.items():
        factor = abs(coefficient)
        for atom in monomial:
            factor *= _divisor_of(atom)
        divisor = gcd(divisor, factor)
    return divisor


def _divisor_of(atom: Expr) -> int:
    match atom:
        case Const(value):
            return abs(int(value))
        case Var():
            return 1
        case Binary("min" | "max", a, b):
            return gcd(_known_divisor(polynomial(a)), _known_divisor(polynomial(b)))
        case _:
            return 1
