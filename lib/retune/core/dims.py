"""Extents that are known when a network runs: integers that depend on sizes.

A `Size` is a symbol with a range, such as `batch` from 1 to 32. A `Dim` is an integer in terms of
sizes: a polynomial over them and over quotients, in normal form, so that equal polynomials are
equal values. Code that calculates with extents works with both kinds of numbers. What it asks of a
Dim is decided by the ranges where they decide it. Otherwise the answer is that of the sizes at
hand, and it is noted as a Condition: what the code made holds for all sizes for which the
conditions hold. Read `assuming` first.

Source of the idea: symbolic integers with guards, as in Ansel et al., "PyTorch 2: Faster Machine
Learning Through Dynamic Python Bytecode Transformation and Graph Compilation", ASPLOS 2024.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from itertools import product
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeAlias, TypeGuard, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

SizeValues: TypeAlias = Mapping[str, int]
"""Name of a size -> its value."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


@dataclass(frozen=True, slots=True)
class Size:
    """A symbol for an extent from `least` to `most`, both included, in steps.

    Its name is an identifier, as texts of Dims and programs in C have it.
    """

    name: str
    least: int
    most: int
    step: int = 1
    counted: bool = False
    """A step of the network computes it from data, so that it chooses no program beforehand. Its
    value at hand is the greatest."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.step < 1:
            raise ValueError(
                f"size {self.name}: expected 0 <= least <= most and a step of 1 or more; got {self}"
            )
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"size {self.name!r}: expected letters, digits and underscores")

    @property
    def values(self) -> range:
        """All values that it may have."""
        return range(self.least, self.most + 1, self.step)

    def __str__(self) -> str:
        step = f":{self.step}" if self.step > 1 else ""
        return f"{self.name}={self.least}..{self.most}{step}"


@dataclass(frozen=True, slots=True, eq=False)
class Quotient:
    """`dividend // divisor`, rounded down, of a divisor above 0 that does not divide it evenly.

    Equal are those of the same form: which sizes make others equal is not asked.
    """

    dividend: "int | Dim"
    divisor: "int | Dim"

    def __hash__(self) -> int:
        return hash((self.dividend, self.divisor))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quotient) and always_same(
            (self.dividend, self.divisor), (other.dividend, other.divisor)
        )

    def __str__(self) -> str:
        return f"({_operand(self.dividend)} // {_operand(self.divisor, most_atoms=1)})"


Atom: TypeAlias = "Size | Quotient"
Monomial: TypeAlias = tuple[Atom, ...]
"""Atoms multiplied together, in the order of their texts; the empty one is the constant term."""
Terms: TypeAlias = tuple[tuple[Monomial, int], ...]
Relation = Literal["lt", "eq"]
Ends: TypeAlias = tuple[int, int]
"""The least and the greatest value."""
EndsOf: TypeAlias = "Callable[[Size], Ends]"


if TYPE_CHECKING:
    _Number = int
    """To type checkers a Dim is an integer: code that takes extents takes both."""
else:
    _Number = object


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Dim(_Number):
    """An integer that depends on sizes; what is constant is an int instead, see `dim_of`."""

    terms: Terms
    """In order; no coefficient is 0."""
    _hash: int = field(init=False, compare=False)
    _sizes: "frozenset[Size] | None" = field(init=False, compare=False, default=None)

    if TYPE_CHECKING:

        def __new__(cls, terms: Terms) -> Self: ...

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash(self.terms))

    def __reduce__(self) -> tuple[type["Dim"], tuple[Terms]]:
        return Dim, (self.terms,)

    # -- arithmetic ----------------------------------------------------------------------------

    def __add__(self, other: "int | Dim") -> "int | Dim":
        return _sum(self, other, 1)

    def __sub__(self, other: "int | Dim") -> "int | Dim":
        return _sum(self, other, -1)

    def __rsub__(self, other: "int | Dim") -> "int | Dim":
        return _sum(other, self, -1)

    def __mul__(self, other: "int | Dim") -> "int | Dim":
        return _product(self, other) if _is_extent(other) else NotImplemented

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> "int | Dim":
        return self * -1

    def __pos__(self) -> "Dim":
        return self

    def __abs__(self) -> "int | Dim":
        return -self if self < 0 else self

    def __floordiv__(self, other: "int | Dim") -> "int | Dim":
        return _quotient(self, other)

    def __rfloordiv__(self, other: "int | Dim") -> "int | Dim":
        return _quotient(other, self)

    def __mod__(self, other: "int | Dim") -> "int | Dim":
        return self - _quotient(self, other) * other

    def __rmod__(self, other: "int | Dim") -> "int | Dim":
        return other - _quotient(other, self) * self

    def __divmod__(self, other: "int | Dim") -> "tuple[int | Dim, int | Dim]":
        return self // other, self % other

    # -- questions -----------------------------------------------------------------------------

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and _same_terms(self, other):
            return True
        return _ask("eq", self - other) if _is_extent(other) else NotImplemented

    def __lt__(self, other: "int | Dim") -> bool:
        return _ask("lt", self - other) if _is_extent(other) else NotImplemented

    def __gt__(self, other: "int | Dim") -> bool:
        return _ask("lt", other - self) if _is_extent(other) else NotImplemented

    def __le__(self, other: "int | Dim") -> bool:
        return not self > other

    def __ge__(self, other: "int | Dim") -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """The value for the sizes at hand, and from there on only for that value."""
        value = self.at(_at_hand(self))
        _ask("eq", self - value)
        return value

    __int__ = __index__

    @property
    def sizes(self) -> frozenset[Size]:
        """The sizes that it depends on."""
        if self._sizes is None:
            found = frozenset(size for monomial, _ in self.terms for size in _sizes(monomial))
            object.__setattr__(self, "_sizes", found)
            return found
        return self._sizes

    @property
    def size(self) -> Size | None:
        """The size that it is; None where it is more than that."""
        match self.terms:
            case (((Size() as size,), 1),):
                return size
            case (((Quotient(Dim() as whole, divisor),), factor),) if divisor == factor:
                size = whole.size
                return size if size is not None and size.step == divisor else None
            case _:
                return None

    def solved(self, value: int) -> dict[str, int]:
        """The size for which it has that value, by name: of what is linear in one size.

        Raises: ValueError if it is more than that, or has that value for no whole number.
        """
        if (own := self.size) is not None:
            return {own.name: value}
        rest = dict(self.terms).get((), 0)
        match self - rest:
            case Dim(terms=(((Size() as size,), factor),)) if (value - rest) % factor == 0:
                return {size.name: (value - rest) // factor}
            case Dim(terms=(((Quotient(Dim() as whole, step),), factor),)) if (
                (size := whole.size) and size.step == step and (value - rest) % factor == 0
            ):
                return {size.name: (value - rest) // factor * step}
            case _:
                raise ValueError(f"{self} is {value} for no size")

    def at(self, values: SizeValues) -> int:
        """Its value for these sizes. Raises: KeyError for a size without a value."""
        total = 0
        for monomial, coefficient in self.terms:  # loops: generators take twice as long
            term = coefficient
            for atom in monomial:
                term = term * _atom_at(atom, values)
            total = total + term
        return total

    @property
    def least(self) -> int:
        """A lower bound over all sizes; exact where each size occurs once."""
        return _whole_bounds(self.terms)[0]

    @property
    def most(self) -> int:
        """An upper bound over all sizes; exact where each size occurs once."""
        return _whole_bounds(self.terms)[1]

    def __str__(self) -> str:
        """Python's text of it, which is a content key as well."""
        first, *others = self.terms
        rest = (f" {'-' if c < 0 else '+'} {_shown(monomial, abs(c))}" for monomial, c in others)
        return _shown(*first) + "".join(rest)

    __repr__ = __str__


def dim_of(size: Size) -> "int | Dim":
    """The extent that the size is.

    One that has whole steps only is so many times the number of these: strides then divide it.
    """
    if size.least == size.most:
        return size.least
    whole = Dim((((size,), 1),))
    if size.step == 1 or size.least % size.step:
        return whole
    return Dim((((Quotient(whole, size.step),), size.step),))


def at(extent: int, values: SizeValues) -> int:
    """The value of an extent for these sizes."""
    return extent.at(values) if isinstance(extent, Dim) else extent


def values_text(values: SizeValues) -> str:
    """Such as `batch=8, length=128`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def most(extent: int) -> int:
    """The largest value of an extent, or a bound above it."""
    return extent.most if isinstance(extent, Dim) else extent


def least(extent: int) -> int:
    """The least value of an extent, or a bound below it."""
    return extent.least if isinstance(extent, Dim) else extent


def reach(extent: int) -> Ends:
    """The least and the greatest value that the conditions noted so far leave of an extent."""
    return _bounds(extent, ends_at_hand)


def example(extent: int) -> int:
    """The value of an extent for the sizes at hand, for estimates: nothing is noted."""
    return extent.at(_at_hand(extent)) if isinstance(extent, Dim) else extent


def sizes_of(extents: Iterable[int]) -> frozenset[Size]:
    """The sizes that extents depend on."""
    found = (extent.sizes for extent in extents if isinstance(extent, Dim))
    return frozenset[Size]().union(*found)


def counts_of(extents: Iterable[int]) -> frozenset[Size]:
    """The sizes among them that a step of the network computes."""
    return frozenset(size for size in sizes_of(extents) if size.counted)


def _is_extent(value: object) -> TypeGuard[int]:
    return isinstance(value, int | Dim)


def is_multiple(extent: int, of: int) -> bool:
    """Whether the extent is a multiple of a number for all sizes: nothing is asked."""
    return all(c * prod(map(_divisor, m)) % of == 0 for m, c in _terms(extent).items())


def _divisor(atom: Atom) -> int:
    """What divides all values of a size."""
    return gcd(atom.least, atom.step) if isinstance(atom, Size) and atom.step > 1 else 1


def is_fixed(extent: int) -> bool:
    """Whether it is the same for all sizes."""
    return not isinstance(extent, Dim)


def _same_terms(a: Dim, b: Dim) -> bool:
    """Whether they are of one form; those of different ones are not compared, which would ask."""
    return hash(a) == hash(b) and a.terms == b.terms


def always_equal(a: int, b: int) -> bool:
    """Whether two extents are equal for all sizes, by their normal forms: nothing is noted.

    For choices: what is done for extents that may differ is right for equal ones, too.
    """
    if isinstance(a, Dim) or isinstance(b, Dim):
        return isinstance(a, Dim) and isinstance(b, Dim) and _same_terms(a, b)
    return a == b


def always_same(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether two shapes are equal for all sizes, see `always_equal`."""
    return len(a) == len(b) and all(map(always_equal, a, b))


def always_empty(shape: Iterable[int]) -> bool:
    """Whether there are no elements, whatever the sizes: nothing is noted."""
    return any(is_fixed(extent) and extent == 0 for extent in shape)


def never_above(a: int, b: int) -> bool:
    """Whether `a <= b` for all sizes, as far as ranges say; nothing is noted."""
    return most(a - b) <= 0


# -- what is asked of them -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """That `dim < 0` (`lt`) or `dim == 0` (`eq`) holds, or does not."""

    relation: Relation
    dim: Dim
    holds: bool

    def at(self, values: SizeValues) -> bool:
        """Whether it is met by these sizes; of arrays of sizes, by each of them."""
        value = self.dim.at(values)
        return (value < 0 if self.relation == "lt" else value == 0) == self.holds

    @property
    def counted(self) -> bool:
        """Whether it is on a size that a step of the network computes."""
        return any(size.counted for size in self.dim.sizes)

    @property
    def indicator(self) -> int:
        """1 for sizes that meet it, and 0 for others, in terms of sizes."""
        found = 1 - _reached(self.dim) if self.relation == "lt" else _reached(self.dim)
        if self.relation == "eq":
            found = found * _reached(-self.dim)
        return found if self.holds else 1 - found

    def __str__(self) -> str:
        rest = dict(self.dim.terms).get((), 0)
        left, turned = self.dim - rest, self.dim.terms[0][1] < 0
        if self.relation == "eq":
            sign = "==" if self.holds else "!="
        else:
            sign = (">" if self.holds else "<=") if turned else ("<" if self.holds else ">=")
        return f"{-left} {sign} {rest}" if turned else f"{left} {sign} {-rest}"


def _reached(dim: int) -> int:
    """1 where it is 0 or more, and 0 where it is less."""
    low, high = _bounds(dim, _whole)
    beyond = max(high + 1, -low, 1)
    return (dim + beyond) // beyond


_AtHand: TypeAlias = tuple[tuple[tuple[str, int], ...], tuple["Condition", ...]]
"""The sizes at hand and the conditions that hold beforehand."""


class Assumptions:
    """The sizes at hand, and the conditions that were noted."""

    def __init__(self, values: SizeValues, given: Sequence[Condition]) -> None:
        self.values = dict(values)
        self.given = tuple(given)
        """Conditions that hold beforehand."""
        self._noted: dict[Condition, None] = {}
        self._left: dict[Size, Ends] = {}
        for condition in given:
            self.note(condition)
        self.fixed = {size: low for size, (low, high) in self._left.items() if low == high}
        """Sizes that have a single value where these hold."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """Those given, and then those noted, in the order in which they were noted first."""
        return tuple(self._noted)

    def note(self, condition: Condition) -> None:
        """It is one of them."""
        if condition in self._noted:
            return
        self._noted[condition] = None
        sizes = condition.dim.sizes
        for size in sizes if len(sizes) == 1 else ():
            first, last = self.ends(size)
            if (last - first) // size.step > _MOST_LOOKED_AT:
                continue
            met = [
                v
                for v in range(first, last + 1, size.step)
                if condition.at({**self.values, size.name: v})
            ]
            if met:
                self._left[size] = met[0], met[-1]

    def ends(self, size: Size) -> Ends:
        """The least and the greatest value of a size that the conditions on it alone leave."""
        return self._left.get(size, (size.least, size.most))


_MOST_LOOKED_AT = 1 << 14
"""Values of a size at most that are looked at for what a condition leaves of it."""

_TRIES = 16
"""Values that are looked at for each of some samples; conditions leave few of them."""

_CURRENT: ContextVar[Assumptions | None] = ContextVar("assumptions", default=None)


def ends_at_hand(size: Size) -> Ends:
    """The least and the greatest value of a size that the conditions noted so far leave."""
    current = _CURRENT.get()
    return _whole(size) if current is None else current.ends(size)


def samples_at_hand(sizes: Iterable[Size], count: int) -> list[dict[str, int]]:
    """The sizes at hand, and at most so many others that meet the conditions given beforehand.

    They are spread over what these leave of each size, in turns evenly and by factors: most values
    of a wide range are great, and the few small ones differ most from each other. What is estimated
    for all of them holds on the average of those that a program serves.
    Source of the order: Roberts, "The Unreasonable Effectiveness of Quasirandom Sequences", 2018.
    """
    current = _CURRENT.get()
    every = sorted(set(sizes), key=str)
    if current is None or not every:
        return [{}]
    ratio = _harmonious(len(every))
    found = [dict(current.values)]
    for number in range(_TRIES * count):
        values = dict(current.values)
        for i, size in enumerate(every):
            part = (0.5 + (number + 1) * ratio ** -(i + 1)) % 1.0
            values[size.name] = _between(size, current.ends(size), part, by_factor=number % 2 > 0)
        met = all(c.dim.sizes - set(every) or c.at(values) for c in current.given)
        if met and values not in found:
            found.append(values)
        if len(found) > count:
            break
    return found


def _between(size: Size, ends: Ends, part: float, *, by_factor: bool) -> int:
    """The value of the size at that part, of less than 1, of the way between its ends."""
    first, last = ends
    if by_factor:
        low = max(1, first)
        exact = low * ((last + 1) / low) ** part
        return first + max(0, int(exact) - first) // size.step * size.step
    return first + int(part * ((last - first) // size.step + 1)) * size.step


def _harmonious(count: int) -> float:
    """The root above 1 of `x**(count + 1) == x + 1`: its powers spread points most evenly."""
    root = 2.0
    for _ in range(32):
        root = (1.0 + root) ** (1.0 / (count + 1))
    return root


def fixed_value(size: Size) -> int | None:
    """The value of a size that has a single one by the conditions that hold beforehand."""
    current = _CURRENT.get()
    return None if current is None else current.fixed.get(size)


@contextmanager
def assuming(values: SizeValues, given: Sequence[Condition] = ()) -> Generator[Assumptions]:
    """Within it, questions that ranges leave open are answered for these sizes, and noted.

    What was made within it holds for all sizes that meet the conditions, those `given` among them:
    they say beforehand for which sizes it is to be.
    """
    own = Assumptions(values, given)
    token = _CURRENT.set(own)
    try:
        yield own
    finally:
        _CURRENT.reset(token)


@contextmanager
def apart(values: SizeValues | None = None) -> Generator[Assumptions]:
    """Within it, conditions are noted apart, for who calls to judge; these sizes are at hand, and
    otherwise those around it."""
    current = _CURRENT.get()
    around, given = ({}, ()) if current is None else (current.values, current.given)
    with assuming({**around, **(values or {})}, given) as own:
        yield own


def note(conditions: Iterable[Condition]) -> None:
    """What is being made holds where these do, too."""
    for condition in conditions:
        _note(condition)


def remembered(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """An `lru_cache` of what is made of extents, for each of the sizes at hand.

    The conditions of a result are noted again where it is used again.
    """

    def decorate(made: Callable[P, R]) -> Callable[P, R]:
        make = cast("Callable[..., R]", made)

        @lru_cache(maxsize=maxsize)
        def cached(at_hand: _AtHand | None, *args: Any) -> Any:
            if at_hand is None:
                return make(*args), ()
            values, given = at_hand
            with assuming(dict(values), given) as assumed:
                result = make(*args)
            return result, assumed.conditions

        @wraps(made)
        def found(*args: P.args, **kwargs: P.kwargs) -> R:
            assert not kwargs, f"{made.__name__}: expected positional arguments"
            current = _CURRENT.get()
            at_hand = current and (tuple(sorted(current.values.items())), current.given)
            result, conditions = cached(at_hand, *args)
            note(conditions)
            return result

        return found

    return decorate


def _at_hand(dim: Dim) -> SizeValues:
    current = _CURRENT.get()
    values = {} if current is None else current.values
    missing = [size for size in dim.sizes if size.name not in values]
    if not all(size.counted for size in missing):
        raise ValueError(f"the extent {dim} has no value here; expected to be assuming sizes")
    return {**values, **{size.name: size.most for size in missing}} if missing else values


def _note(condition: Condition) -> None:
    current = _CURRENT.get()
    if current is None:
        raise ValueError(f"'{condition}' has no answer here; expected to be assuming sizes")
    current.note(condition)


def _ask(relation: Relation, gap: int | Dim) -> bool:
    """Whether gap < 0, or gap == 0."""
    gap = _reduced(relation, gap) if isinstance(gap, Dim) else gap
    if isinstance(gap, Dim):
        low, high = _bounds(gap, ends_at_hand)
        if relation == "lt" and (high < 0 or low >= 0):
            return high < 0
        if relation == "eq" and (high < 0 or low > 0 or low == high):
            return low == high == 0
        value = gap.at(_at_hand(gap))
        answer = value < 0 if relation == "lt" else value == 0
        _note(condition_of(relation, gap, answer))
        return answer
    return gap < 0 if relation == "lt" else gap == 0


def condition_of(relation: Relation, gap: Dim, holds: bool) -> Condition:
    """The Condition in its plainest form: of sizes instead of quotients where that says the same.

    `4*(h // 4) < 182` is `h < 184` where h has steps of 4, and where it has others.
    """
    whole = _reduced(relation, gap)
    while isinstance(whole, Dim):
        plain = _reduced(relation, _without_exact(whole)[0])
        assert isinstance(plain, Dim), f"{gap} is decided, and so it is not a condition"
        rest = dict(plain.terms).get((), 0)
        match plain - rest:
            case Dim(terms=(((Quotient(Dim() as x, d),), c),)) if relation == "lt" and is_fixed(d):
                # c is 1 or -1: x // d < -rest, or not x // d < rest + 1
                whole = x - (-rest if c > 0 else rest + 1) * d
                holds = holds == (c > 0)
            case _:
                if relation == "eq" and plain.terms[0][1] < 0:  # one form of the same question
                    plain = Dim(tuple((monomial, -c) for monomial, c in plain.terms))
                return Condition(relation, plain, holds)
    raise AssertionError(f"{gap} is decided, and so it is not a condition")


def _without_exact(dim: Dim) -> tuple[Dim, int]:
    """So many times the Dim, with sizes instead of their quotients by their steps."""
    rows = [(*_times_exact(monomial), c) for monomial, c in dim.terms]
    times = lcm(*(below // gcd(below, c) for _, below, c in rows))
    found = _normal({monomial: times * c // below for monomial, below, c in rows})
    assert isinstance(found, Dim), "sizes replace sizes"
    return found, times


def _times_exact(monomial: Monomial) -> tuple[Monomial, int]:
    """The monomial times what divides its sizes evenly, and that divisor."""
    atoms, below = list[Atom](), 1
    for atom in monomial:
        match atom:
            case Quotient(Dim(terms=(((Size() as size,), 1),)), d) if (
                d == size.step and size.least % d == 0
            ):
                atoms.append(size)
                below *= d
            case Quotient(Dim() as whole, d) if is_fixed(d):
                inner, times = _without_exact(whole)
                atoms.append(Quotient(inner, times * d))
            case _:
                atoms.append(atom)
    return tuple(sorted(atoms, key=str)), below


def _reduced(relation: Relation, gap: Dim) -> int | Dim:
    """The same question without a common factor: 20*n - 79 < 0 is n - 4 < 0."""
    factor = gcd(*(coefficient for monomial, coefficient in gap.terms if monomial))
    rest = dict(gap.terms).get((), 0)
    if relation == "eq" and rest % factor:
        return 1  # never
    whole = {m: c // factor for m, c in gap.terms if m}
    return _normal({**whole, (): rest // factor})


# -- normal form -----------------------------------------------------------------------------------


def _terms(value: int | Dim) -> dict[Monomial, int]:
    if isinstance(value, Dim):
        return dict(value.terms)
    return {(): value} if value else {}


def _normal(terms: Mapping[Monomial, int]) -> int | Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept.keys() - {()}:
        return kept.get((), 0)
    return Dim(tuple(kept.items() if len(kept) == 1 else sorted(kept.items(), key=_order)))


def _order(term: tuple[Monomial, int]) -> tuple[bool, bool, str]:
    """Sizes first, quotients after them, the constant last."""
    monomial, _ = term
    return not monomial, any(isinstance(a, Quotient) for a in monomial), str(monomial)


def _sum(a: int | Dim, b: int | Dim, factor: int) -> int | Dim:
    if not _is_extent(a) or not _is_extent(b):
        return NotImplemented
    total = _terms(a)
    for monomial, coefficient in _terms(b).items():
        total[monomial] = total.get(monomial, 0) + factor * coefficient
    return _normal(total)


def _product(a: int | Dim, b: int | Dim) -> int | Dim:
    if isinstance(a, Dim) and not isinstance(b, Dim):
        return Dim(tuple((monomial, c * b) for monomial, c in a.terms)) if b else 0
    total: dict[Monomial, int] = {}
    for (left, p), (right, q) in product(_terms(a).items(), _terms(b).items()):
        monomial = tuple(sorted((*left, *right), key=str))
        total[monomial] = total.get(monomial, 0) + p * q
    return _normal(total)


def _quotient(a: int | Dim, b: int | Dim) -> int | Dim:
    """`a // b`: whole where b divides each term, and otherwise of what is left of them."""
    if not _is_extent(a) or not _is_extent(b):
        return NotImplemented
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a // b
    if b <= 0:
        raise ValueError(f"{a} // {b}: expected a divisor above 0")
    divisor = _terms(b)
    if len(divisor) > 1 and (exact := _ratio(a, b)) is not None:
        return exact
    whole: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a).items():
        found = _divided(monomial, coefficient, divisor)
        if found is None:
            rest[monomial] = coefficient
        else:
            whole[found[0]] = whole.get(found[0], 0) + found[1]
    if is_fixed(b):  # the least rest: (N + 6) // 4 is (N + 2) // 4 + 1
        whole[()] = whole.get((), 0) + rest.get((), 0) // b
        rest[()] = rest.get((), 0) % b
        if common := gcd(*(c for monomial, c in rest.items() if monomial)):
            common = gcd(common, b)  # the least divisor: (2*N + 3) // 4 is (N + 1) // 2
            rest, b = {monomial: c // common for monomial, c in rest.items()}, b // common
    left = _normal(rest)
    if least(left) >= 0 and most(left - b) < 0:
        return _normal(whole)
    if is_fixed(b) and isinstance(left, Dim) and left.terms[0][1] < 0:  # one form of rounding up
        return _normal(whole) - _quotient(-left + b - 1, b)
    if (nested := _nested(left, b)) is not None:
        return _normal(whole) + nested
    atom = Quotient(left, b)
    whole[(atom,)] = whole.get((atom,), 0) + 1
    return _normal(whole)


def _ratio(a: int | Dim, b: int | Dim) -> int | Dim | None:
    """`a / b` where that is a polynomial: by long division, the greatest monomials first."""
    leading, scale = max(_terms(b).items(), key=_degree)
    ratio: int | Dim = 0
    while terms := _terms(a):
        found = _divided(*max(terms.items(), key=_degree), {leading: scale})
        if found is None:
            return None
        term = _normal({found[0]: found[1]})
        ratio, a = ratio + term, a - term * b
    return ratio


def _degree(term: tuple[Monomial, int]) -> tuple[int, list[str]]:
    """An order of monomials that products keep: by degree, then by atoms."""
    return len(term[0]), [str(atom) for atom in term[0]]


def _nested(left: int | Dim, b: int | Dim) -> int | Dim | None:
    """`(x // d + c) // b` as `(x + c*d) // (d*b)`, which it is for all integers."""
    rest = dict(_terms(left)).get((), 0)
    match left - rest:
        case Dim(terms=(((Quotient(dividend, divisor),), 1),)) if is_fixed(b) and is_fixed(divisor):
            return _quotient(dividend + rest * divisor, divisor * b)
        case _:
            return None


def _divided(
    monomial: Monomial, coefficient: int, divisor: Mapping[Monomial, int]
) -> tuple[Monomial, int] | None:
    """The term over a divisor of one term, if that divides it."""
    if len(divisor) != 1:
        return None
    ((factor, scale),) = divisor.items()
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return None if coefficient % scale else (tuple(left), coefficient // scale)


def _sizes(monomial: Monomial) -> Iterator[Size]:
    for atom in monomial:
        if isinstance(atom, Size):
            yield atom
        else:
            yield from sizes_of([atom.dividend, atom.divisor])


def _atom_at(atom: Atom, values: SizeValues) -> int:
    if isinstance(atom, Size):
        return values[atom.name]
    return at(atom.dividend, values) // at(atom.divisor, values)


def _whole(size: Size) -> Ends:
    return size.least, size.most


@lru_cache(maxsize=1 << 12)
def _whole_bounds(terms: Terms) -> Ends:
    """Those over all sizes: a plan asks them of few extents, many times."""
    return _bounds(Dim(terms), _whole)


def _bounds(dim: int, of: EndsOf) -> Ends:
    """The better ones of two ways to put bounds on each `c*d*(x // d)`: those of the quotient, and
    those of `c*x` less c times a rest below d, which other terms in x take something off. What is
    multiplied by less than d is so as a part of so many times the whole."""
    if not isinstance(dim, Dim):
        return dim, dim
    low, high = _plain_bounds(dim, of)
    if (times := _common(dim)) > 1:
        first, last = _bounds(dim * times, of)
        low, high = max(low, -(-first // times)), min(high, last // times)
    flat: int | Dim = dim
    slack = [0, 0]
    for monomial, coefficient in dim.terms:
        match monomial:
            case (Quotient(x, d),) if is_fixed(d) and coefficient % d == 0:
                c = coefficient // d
                flat = flat - Dim(((monomial, coefficient),)) + c * x
                slack[c > 0] += c * (d - 1)
            case _:
                pass
    if flat is dim:
        return low, high
    first, last = _bounds(flat, of)
    return max(low, first - slack[1]), min(high, last - slack[0])


def _common(dim: Dim) -> int:
    """What makes the factors of all quotients multiples of their divisors."""
    return lcm(
        *(
            divisor // gcd(divisor, coefficient)
            for monomial, coefficient in dim.terms
            for divisor in (q.divisor for q in monomial if isinstance(q, Quotient))
            if len(monomial) == 1 and is_fixed(divisor)
        )
    )


def _plain_bounds(dim: Dim, of: EndsOf) -> Ends:
    ends = [_ends(monomial, c, of) for monomial, c in dim.terms]
    return sum(low for low, _ in ends), sum(high for _, high in ends)


def _ends(monomial: Monomial, coefficient: int, of: EndsOf) -> Ends:
    """The least and the greatest value of a term."""
    low = high = coefficient
    for atom in monomial:
        first, last = _atom_ends(atom, of)
        corners = (low * first, low * last, high * first, high * last)
        low, high = min(corners), max(corners)
    return low, high


def _atom_ends(atom: Atom, of: EndsOf) -> Ends:
    if isinstance(atom, Size):
        return of(atom)
    low, high = _bounds(atom.dividend, of)
    first, last = _bounds(atom.divisor, of)
    first = max(1, first)
    corners = [low // first, low // last, high // first, high // last]
    return min(corners), max(corners)


def _operand(extent: int | Dim, most_atoms: int = 1 << 30) -> str:
    """Its text in a quotient: what is not a product of so few atoms is in parentheses."""
    if not isinstance(extent, Dim):
        return str(extent)
    (monomial, coefficient), *others = extent.terms
    single = not others and coefficient == 1 and len(monomial) <= most_atoms
    return str(extent) if single else f"({extent})"


def _shown(monomial: Monomial, coefficient: int) -> str:
    atoms = [a.name if isinstance(a, Size) else str(a) for a in monomial]
    return "*".join([str(coefficient), *atoms] if coefficient != 1 or not atoms else atoms)


# -- from texts ------------------------------------------------------------------------------------

_TOKEN = re.compile(rf"\s*({_NAME.pattern}|\d+|//|[-+*()])")
_CONDITION = re.compile(r"(.+) (<=|>=|==|!=|<|>) (.+)")
_RELATIONS: Mapping[str, tuple[Relation, bool]] = {
    "<": ("lt", True),
    ">=": ("lt", False),
    "==": ("eq", True),
    "!=": ("eq", False),
}
_TURNED: Mapping[str, str] = {">": "<", "<=": ">="}
"""Signs of conditions that are stated of the negative."""
_MOST_NESTED = 64
"""Quotients in each other."""


def parse_dim(text: str, sizes: Mapping[str, Size]) -> int:
    """The extent with that text, in terms of these sizes, by their names.

    Raises: ValueError for another text than `str` gives, or a divisor that may be below 1.
    """
    parser = _Parser(text, sizes)
    found = parser.sum()
    if parser.token or str(found) != text:
        raise ValueError(f"{text[:80]!r}: expected an extent such as 4*n + (n // 2)")
    return found


def parse_condition(text: str, sizes: Mapping[str, Size]) -> Condition:
    """The condition with that text, in terms of these sizes. Raises: ValueError."""
    if found := _CONDITION.fullmatch(text):
        left, sign, right = found.groups()
        gap = parse_dim(left, sizes) - parse_dim(right, sizes)
        relation, holds = _RELATIONS[_TURNED.get(sign, sign)]
        gap = -gap if sign in _TURNED else gap
        if isinstance(gap, Dim) and str(stated := Condition(relation, gap, holds)) == text:
            return stated
    raise ValueError(f"{text[:80]!r}: expected a condition such as n != 1")


class _Parser:
    """Reads what `Dim.__str__` writes; the caller compares the texts."""

    def __init__(self, text: str, sizes: Mapping[str, Size]) -> None:
        self._text = text
        self._sizes = sizes
        self._end = self._depth = 0
        self.token = ""
        """The next one; empty behind the last one, and where there is none."""
        self._advance()

    def _advance(self) -> str:
        taken, found = self.token, _TOKEN.match(self._text, self._end)
        self.token = found[1] if found else ""
        self._end = found.end() if found else self._end
        return taken

    def _took(self, token: str) -> bool:
        if self.token != token:
            return False
        self._advance()
        return True

    def sum(self, first: "Atom | None" = None) -> int | Dim:
        """Products with signs between them, of which the first one may begin with an atom."""
        terms: dict[Monomial, int] = {}
        sign = -1 if not first and self._took("-") else 1
        while True:
            factors = [first or self._factor()]
            first = None
            while self._took("*"):
                factors.append(self._factor())
            atoms = (factor for factor in factors if not isinstance(factor, int))
            monomial = tuple(sorted(atoms, key=str))
            coefficient = sign * prod(factor for factor in factors if isinstance(factor, int))
            terms[monomial] = terms.get(monomial, 0) + coefficient
            if self.token not in ("+", "-"):
                return _normal(terms)
            sign = 1 if self._advance() == "+" else -1

    def _factor(self) -> "Atom | int":
        if self._took("("):
            found = self._group()
            if isinstance(found, Quotient):
                return found
            raise ValueError(f"{self._text[:80]!r}: expected a quotient, got {found}")
        token = self._advance()
        if token.isdigit():
            return int(token)
        if token in self._sizes:
            return self._sizes[token]
        known = ", ".join(self._sizes)
        raise ValueError(f"{self._text[:80]!r}: expected a size of {known}, got {token!r}")

    def _group(self) -> Quotient | int | Dim:
        """A quotient, or a sum that is an operand of one, behind its opening parenthesis."""
        self._depth += 1
        if self._depth > _MOST_NESTED:
            raise ValueError(f"{self._text[:80]!r}: expected at most {_MOST_NESTED} quotients")
        dividend = self._operand()
        found: Quotient | int | Dim = dividend
        if self._took("//"):
            divisor = self._operand()
            if least(divisor) < 1:
                raise ValueError(f"{self._text[:80]!r}: expected a divisor above 0, got {divisor}")
            found = Quotient(dividend, divisor)
        if not self._took(")"):
            raise ValueError(f"{self._text[:80]!r}: expected a closing parenthesis")
        return found

    def _operand(self) -> int | Dim:
        if not self._took("("):
            return self.sum()
        found = self._group()
        return self.sum(found) if isinstance(found, Quotient) else found
