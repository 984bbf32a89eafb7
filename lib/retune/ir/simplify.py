"""Integer simplification by polynomial normal form, and interval bounds.

Index expressions are sums of products: `simplify` writes each one as a sorted polynomial over
atoms (variables, and the divisions, minima and selections that it cannot look into), so equal
indices become equal trees. `affine` gives the coefficient of chosen variables. `Range` arithmetic
proves that a guard always holds or that a minimum is decided.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import lru_cache, reduce
from math import gcd

from retune.core.dims import Ends, ends_at_hand, most
from retune.core.dtypes import BOOL, INT32
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import (
    Binary,
    Cast,
    Const,
    Expr,
    Rewriter,
    Select,
    SizeVar,
    Var,
    binary,
    const,
    size_variables,
    variables,
)
from retune.ir.nodes import IRNode, node
from retune.ir.operators import BinaryOp

Monomial = tuple[Expr, ...]
"""Atoms multiplied together, sorted by their text; the empty one is the constant term."""
Polynomial = dict[Monomial, int]


@node
class Range(IRNode):
    """All integers from `low` to `high`, both included."""

    low: int
    high: int
    last: Expr | None = field(default=None, compare=False)
    """The greatest one in terms of sizes, where it depends on them; `high` is its bound."""


Ranges = Mapping[Var, Range]


def range_below(extent: Expr) -> Range:
    """The values from 0 to below an extent, which depends on sizes at most."""
    if isinstance(extent, Const):
        return Range(0, int(extent.value) - 1)
    return Range(0, most(evaluate_int(extent)) - 1, extent - 1)


def simplify(expr: Expr, ranges: Ranges | None = None) -> Expr:
    """An equal expression in normal form; `ranges` bounds variables and decides comparisons.

    Selections whose condition is settled are gone.
    """
    used = variables(expr)
    known = {v: ranges[v] for v in used if v in ranges} if ranges else {}
    ends = [span.last for span in known.values() if span.last is not None]
    sizes = {v for each in (used, *map(variables, ends)) for v in each if isinstance(v, SizeVar)}
    return _simplified(
        expr,
        frozenset((v, span, span.last) for v, span in known.items()),
        frozenset((v, ends_at_hand(v.size)) for v in sizes),
    )


@lru_cache(maxsize=1 << 14)
def _simplified(
    expr: Expr,
    known: frozenset[tuple[Var, Range, Expr | None]],
    _sizes: frozenset[tuple[SizeVar, Ends]],
) -> Expr:
    """Made once for equal expressions: primitives ask for the same indices again and again.

    The last argument tells apart what is made by other ends of sizes at hand.
    """
    return Simplifying({variable: span for variable, span, _ in known})(expr)


class Simplifying(Rewriter):
    """`simplify` of expressions under the same ranges."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__()
        self._ranges = ranges

    def rewritten(self, expr: Expr) -> Expr:
        if isinstance(expr, Binary) and expr.op in _RING and expr.dtype == INT32:
            return from_polynomial(rejoined(polynomial(expr, self)))
        expr = super().rewritten(expr)
        if isinstance(expr, Binary) and expr.a.dtype == INT32:
            settled = _decide(expr, self._ranges)
            return expr if settled is None else settled
        if isinstance(expr, Select) and isinstance(expr.condition, Const):
            return expr.then if expr.condition.value else expr.otherwise
        return expr


_RING = ("add", "sub", "mul")


def polynomial(expr: Expr, atoms: Callable[[Expr], Expr] | None = None) -> Polynomial:
    """The expression as a polynomial over its atoms, each of them first changed by `atoms`."""
    if isinstance(expr, Var):
        return {(expr,): 1}
    if isinstance(expr, Const) and expr.dtype == INT32:
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, Binary):
        if expr.op in ("add", "sub"):
            left, right = polynomial(expr.a, atoms), polynomial(expr.b, atoms)
            return add_terms(left, right, 1 if expr.op == "add" else -1)
        if expr.op == "mul":
            return multiply(polynomial(expr.a, atoms), polynomial(expr.b, atoms))
    return {(expr,): 1} if atoms is None else polynomial(atoms(expr))


def add_terms(a: Polynomial, b: Polynomial, factor: int) -> Polynomial:
    """`a + factor*b`, in `a` itself."""
    for monomial, coefficient in b.items():
        total = a.get(monomial, 0) + factor * coefficient
        if total:
            a[monomial] = total
        else:
            a.pop(monomial, None)
    return a


def rejoined(terms: Polynomial) -> Polynomial:
    """`k*n*(x // n) + k*(x % n) -> k*x`: two loops that were fused are one again."""
    for monomial, coefficient in terms.items():
        match monomial:
            case (Binary("mod", x, Const(n)),):
                quotient = (binary("floordiv", x, n),)
                if terms.get(quotient) == coefficient * int(n):
                    rest = {m: c for m, c in terms.items() if m not in (monomial, quotient)}
                    return rejoined(add_terms(rest, polynomial(x), coefficient))
            case (*others, Binary("mod", x, d)) if not isinstance(d, Const):
                whole = _whole(tuple(others), x, d)
                if whole is not None and terms.get(whole) == coefficient:
                    rest = {m: c for m, c in terms.items() if m not in (monomial, whole)}
                    moved = multiply({tuple(others): coefficient}, polynomial(x))
                    return rejoined(add_terms(rest, moved, 1))
            case _:
                pass
    return terms


def _whole(others: Monomial, x: Expr, divisor: Expr) -> Monomial | None:
    """The term `others*n*(x // n)` for a divisor n that is a product of sizes."""
    terms = polynomial(divisor)
    if len(terms) != 1 or set(terms.values()) != {1}:
        return None
    (factors,) = terms
    return tuple(sorted((*others, *factors, binary("floordiv", x, divisor)), key=_text))


def multiply(a: Polynomial, b: Polynomial) -> Polynomial:
    """`a * b`."""
    result: Polynomial = {}
    for left, p in a.items():
        for right, q in b.items():
            monomial = (
                tuple(sorted((*left, *right), key=_text)) if left and right else left or right
            )
            total = result.get(monomial, 0) + p * q
            if total:
                result[monomial] = total
            else:
                result.pop(monomial, None)
    return result


def from_polynomial(terms: Polynomial) -> Expr:
    """The polynomial as an expression: terms in text order, the constant last."""
    total: Expr | None = None
    for monomial in sorted((m for m in terms if m), key=_order):
        coefficient = terms[monomial]
        atom = reduce(lambda a, b: binary("mul", a, b), monomial)
        if total is not None and coefficient < 0:
            total = binary("sub", total, binary("mul", atom, -coefficient))
        else:
            term = atom if coefficient == 1 else binary("mul", atom, coefficient)
            total = term if total is None else binary("add", total, term)
    offset = terms.get((), 0)
    if total is None:
        return const(offset)
    if offset < 0:
        return binary("sub", total, -offset)
    return binary("add", total, offset)


def _order(monomial: Monomial) -> str:
    return _text(monomial[0]) if len(monomial) == 1 else "*".join(map(_text, monomial))


def _text(atom: Expr) -> str:
    return atom.name if isinstance(atom, Var) else _long_text(atom)


@lru_cache(maxsize=1 << 12)
def _long_text(atom: Expr) -> str:
    return str(atom)


def affine(expr: Expr, over: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """Coefficients of the chosen variables, and the rest which is free of them.

    None when the expression is not affine in them. Coefficients and rest may hold other symbols.
    """
    return affine_terms(polynomial(expr), over)


def affine_terms(terms: Polynomial, over: Iterable[Var]) -> tuple[dict[Var, Expr], Expr] | None:
    """`affine` of a polynomial."""
    chosen = set(over)
    coefficients: dict[Var, Polynomial] = {}
    rest: Polynomial = {}
    for monomial, coefficient in terms.items():
        inside = [atom for atom in monomial if atom in chosen]
        others = tuple(atom for atom in monomial if atom not in chosen)
        if len(inside) > 1 or any(not chosen.isdisjoint(variables(atom)) for atom in others):
            return None
        if not inside:
            rest[monomial] = coefficient
            continue
        variable = inside[0]
        assert isinstance(variable, Var)
        own = coefficients.setdefault(variable, {})
        own[others] = own.get(others, 0) + coefficient
    return {v: from_polynomial(t) for v, t in coefficients.items()}, from_polynomial(rest)


def sign(expr: Expr) -> int | None:
    """1 where it is never negative, -1 where it is never positive; None where that is not known.

    Loop variables start at 0 and tile sizes at 1, so every variable counts as non-negative.
    """
    terms = polynomial(expr)
    if not all(_natural(atom) for monomial in terms for atom in monomial):
        return None
    if all(coefficient >= 0 for coefficient in terms.values()):
        return 1
    return -1 if all(coefficient <= 0 for coefficient in terms.values()) else None


def _natural(atom: Expr) -> bool:
    """Whether the atom is non-negative as long as every variable is."""
    match atom:
        case Var():
            return True
        case Binary("floordiv" | "mod" | "min" | "max", a, b):
            return sign(a) == sign(b) == 1
        case _:
            return False


def bounds(expr: Expr, ranges: Ranges) -> Range | None:
    """Smallest and largest value over the ranges of the variables; None where unbounded.

    Exact for sums of terms in distinct variables; otherwise an enclosing interval.
    """
    match expr:
        case Const(value, _):
            return Range(int(value), int(value))
        case SizeVar():
            return Range(*ends_at_hand(expr.size))
        case Var():
            return ranges.get(expr)
        case Binary(op, a, b):
            left, right = bounds(a, ranges), bounds(b, ranges)
            return None if left is None or right is None else _combine(op, left, right)
        case Select(_, then, otherwise):
            left, right = bounds(then, ranges), bounds(otherwise, ranges)
            if left is None or right is None:
                return None
            return Range(min(left.low, right.low), max(left.high, right.high))
        case Cast(value, dtype) if dtype == INT32 and value.dtype == BOOL:
            return Range(0, 1)
        case _:
            return None


def _combine(op: str, a: Range, b: Range) -> Range | None:
    match op:
        case "add":
            return Range(a.low + b.low, a.high + b.high)
        case "sub":
            return Range(a.low - b.high, a.high - b.low)
        case "mul":
            return Range(*_product(a.low, a.high, b))
        case "min":
            return Range(min(a.low, b.low), min(a.high, b.high))
        case "max":
            return Range(max(a.low, b.low), max(a.high, b.high))
        case "floordiv" if b.low == b.high and b.low > 0:
            return Range(a.low // b.low, a.high // b.low)
        case "floordiv" if b.low > 0 <= a.low:
            return Range(a.low // b.high, a.high // b.low)
        case "mod" if 0 < b.low < b.high and a.low >= 0:
            return Range(0, min(a.high, b.high - 1))
        case "mod" if b.low == b.high and b.low > 0:
            if a.low // b.low == a.high // b.low:
                return Range(a.low % b.low, a.high % b.low)
            return Range(0, b.low - 1)
        case _:
            return None


def _product(low: int, high: int, other: Range) -> tuple[int, int]:
    """The least and the greatest product of two integers of these intervals."""
    corners = (low * other.low, low * other.high, high * other.low, high * other.high)
    return min(corners), max(corners)


def _bounds_of(terms: Polynomial, ranges: Ranges) -> Range | None:
    """`bounds` of a polynomial, which need not become an expression for it."""
    low = high = 0
    for monomial, coefficient in terms.items():
        least = greatest = coefficient
        for atom in monomial:
            span = bounds(atom, ranges)
            if span is None:
                return None
            least, greatest = _product(least, greatest, span)
        low, high = low + least, high + greatest
    return Range(low, high)


def _decide(node: Binary, ranges: Ranges) -> Expr | None:
    """Minima, comparisons, divisions and remainders that the ranges or the form settle."""
    if node.op in ("min", "max", "lt", "le", "eq", "ne"):
        terms = polynomial(_multiplied(node) if node.op == "lt" else node.a - node.b)
        gap = _bounds_of(terms, ranges)
        settled = None if gap is None else _settle(node, gap)
        if gap is None or settled is not None or not size_variables(node):
            return settled
        return _settle(node, _bounds_by_sizes(terms, ranges, gap))
    if node.op in ("floordiv", "mod"):
        return _divide(node, ranges)
    return None


def _multiplied(node: Binary) -> Expr:
    """The difference that is negative where `a < b`: `x // n < b` is `x < b*n` for a size n."""
    a = node.a
    if isinstance(a, Binary) and a.op == "floordiv" and size_variables(a.b):
        return a.a - node.b * a.b
    return a - node.b


def _bounds_by_sizes(terms: Polynomial, ranges: Ranges, gap: Range) -> Range:
    """Bounds of a sum, `gap` or better ones: variables end where sizes say, so that these cancel.

    `i - n` for i below n is less than 0, whatever n is.
    """
    high = _highest(terms, ranges, _MOST_STEPS)
    low = _highest({m: -c for m, c in terms.items()}, ranges, _MOST_STEPS)
    return Range(
        gap.low if low is None else max(gap.low, -low),
        gap.high if high is None else min(gap.high, high),
    )


_MOST_STEPS = 8
"""Atoms of a sum that are replaced by what bounds them, at most."""


def _highest(terms: Polynomial, ranges: Ranges, steps: int) -> int | None:
    """An upper bound of the sum; None where there is none."""
    for monomial, coefficient in terms.items() if steps else ():
        for atom in monomial:
            ends = _ends_of(atom, ranges, up=coefficient > 0)
            others = [other for other in monomial if other is not atom]
            if not ends or not all(map(_natural, others)):
                continue
            rest = {m: c for m, c in terms.items() if m != monomial}
            found: list[int | None] = []
            for end in ends:
                moved = multiply({tuple(others): coefficient}, polynomial(end))
                found.append(_highest(add_terms(dict(rest), moved, 1), ranges, steps - 1))
            known = [bound for bound in found if bound is not None]
            either = isinstance(atom, Binary) and (atom.op == "min") == (coefficient > 0)
            if len(known) < len(found) and not (either and known):
                return None
            return min(known) if either else max(known)
    whole = _bounds_of(terms, ranges)
    return None if whole is None else whole.high


def _ends_of(atom: Expr, ranges: Ranges, *, up: bool) -> tuple[Expr, ...]:
    """The bounds of an atom, from above or from below, in terms of sizes."""
    match atom:
        case Var() if (span := ranges.get(atom)) is not None and span.last is not None:
            return (span.last if up else const(span.low),)
        case Binary("min" | "max", a, b):
            return (a, b)
        case Binary("mod", _, d) if size_variables(d):
            return (d - 1 if up else const(0),)
        case _:
            return ()


def at_worst(condition: Expr) -> Expr:
    """A condition without sizes that implies this comparison for all sizes at hand.

    Raises: ValueError for anything but a comparison of sums, products and quotients of natural
    numbers.
    """
    if isinstance(condition, Binary) and condition.op in ("le", "lt"):
        a, b = _without_sizes(condition.a, up=True), _without_sizes(condition.b, up=False)
        return binary(condition.op, a, b)
    raise ValueError(f"{condition} does not bound what depends on sizes")


def _without_sizes(expr: Expr, *, up: bool) -> Expr:
    """An upper bound, or a lower one, free of sizes."""
    match expr:
        case SizeVar():
            return const(ends_at_hand(expr.size)[up])
        case _ if not size_variables(expr):
            return expr
        case Binary("add" | "mul" | "min" | "max" as op, a, b):
            return binary(op, _without_sizes(a, up=up), _without_sizes(b, up=up))
        case Binary("sub" | "floordiv" as op, a, b):
            return binary(op, _without_sizes(a, up=up), _without_sizes(b, up=not up))
        case _:
            raise ValueError(f"{expr} has no bounds without sizes")


def follows(term: Expr, known: Expr) -> bool:
    """Whether `i*4 + 3 < n*4` and the like follow from `i < n`, for whole numbers."""
    pair = (term, known)
    comparisons = [e for e in pair if isinstance(e, Binary) and e.op == "lt" and e.a.dtype == INT32]
    if len(comparisons) < len(pair):
        return False
    own, gap = (polynomial(e.a - e.b) for e in comparisons)
    monomial = next((m for m in gap if m), ())
    times, rest = divmod(own.get(monomial, 0), gap.get(monomial, 1))
    left = add_terms(own, gap, -times)
    return times > 0 and not rest and left.keys() <= {()} and left.get((), 0) < times


def _settle(node: Binary, gap: Range) -> Expr | None:
    """`gap` encloses a - b."""
    match node.op:
        case "min" | "max" if gap.high <= 0 or gap.low >= 0:
            return node.a if (gap.high <= 0) == (node.op == "min") else node.b
        case "lt" if gap.high < 0 or gap.low >= 0:
            return const(gap.high < 0, BOOL)
        case "le" if gap.high <= 0 or gap.low > 0:
            return const(gap.high <= 0, BOOL)
        case "eq" | "ne" if gap.low > 0 or gap.high < 0:
            return const(node.op == "ne", BOOL)
        case "eq" | "ne" if gap.low == gap.high == 0:
            return const(node.op == "eq", BOOL)
        case _:
            return None


def _divide(node: Binary, ranges: Ranges) -> Expr | None:
    """A quotient or remainder with fewer terms below it; None where nothing is known."""
    if isinstance(node.b, Const):
        found = _divide_by_number(node, int(node.b.value), ranges)
    else:
        found = _divide_by_product(node, ranges)
    return _divide_by_parts(node, ranges) if found is None else found


def _divide_by_number(node: Binary, divisor: int, ranges: Ranges) -> Expr | None:
    """`(a*d + r) // d -> a + r//d` and `(a*d + r) % d -> r % d`; exact where r is in [0, d)."""
    if divisor <= 0:
        return None
    multiples: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in polynomial(node.a).items():
        whole, part = divmod(coefficient, divisor)
        if part == 0:
            multiples[monomial] = whole
        elif monomial == ():
            if whole:
                multiples[monomial] = whole
            rest[monomial] = part
        else:
            rest[monomial] = coefficient
    span = _bounds_of(rest, ranges)
    if span is not None and span.low // divisor == span.high // divisor:
        shift = span.low // divisor
        if node.op == "mod":
            return from_polynomial(add_terms(rest, {(): divisor}, -shift))
        return from_polynomial(add_terms(multiples, {(): 1}, shift))
    if not multiples:
        return None
    part = _divided(node.op, from_polynomial(rest), node.b, ranges)
    if node.op == "mod":
        return part
    return from_polynomial(add_terms(multiples, polynomial(part), 1))


def _divide_by_product(node: Binary, ranges: Ranges) -> Expr | None:
    """The same for a divisor d that is a product of symbols, each of them at least 1.

    `(s*a) // s -> a`, and `(s*a + r) // s -> a + r//s` for a size s and an r from 0 on.
    """
    divisor = polynomial(node.b)
    if len(divisor) != 1:
        return None
    ((factor, scale),) = divisor.items()
    quotient: Polynomial = {}
    rest: Polynomial = {}
    for monomial, coefficient in polynomial(node.a).items():
        left = _without(monomial, factor)
        if left is None or coefficient % scale:
            rest[monomial] = coefficient
        else:
            quotient[left] = coefficient // scale
    whole, remainder = from_polynomial(quotient), from_polynomial(rest)
    if not rest:
        return whole if node.op == "floordiv" else const(0)
    if not size_variables(node.b) or sign(remainder) != 1:
        return None
    if simplify(remainder < node.b, ranges) == const(True, BOOL):
        return whole if node.op == "floordiv" else remainder
    if not quotient:
        return None
    part = _divided(node.op, remainder, node.b, ranges)
    return part if node.op == "mod" else from_polynomial(polynomial(whole + part))


def _divided(op: BinaryOp, a: Expr, b: Expr, ranges: Ranges) -> Expr:
    """The quotient or remainder, divided as far as it can be."""
    made = binary(op, a, b)
    found = _divide(made, ranges) if isinstance(made, Binary) else None
    return made if found is None else found


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    """The monomial divided by a factor of it; None where it is not a factor."""
    left = list(monomial)
    for atom in factor:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def _divide_by_parts(node: Binary, ranges: Ranges) -> Expr | None:
    """`(a*k + r) // (k*d) -> a // d` and `(a*k + r) % (k*d) -> (a % d)*k + r` for r in [0, k)."""
    terms, divisor = polynomial(node.a), polynomial(node.b)
    if len(divisor) != 1 or not (isinstance(node.b, Const) or size_variables(node.b)):
        return None
    ((factor, scale),) = divisor.items()
    shared = {gcd(coefficient, scale) for coefficient in terms.values()}
    for part in sorted(shared - {1, 1 if factor else scale}, reverse=True):
        own = {m: c // part for m, c in terms.items() if c // part and (not m or not c % part)}
        rest = add_terms(dict(terms), own, -part)
        span = _bounds_of(rest, ranges)
        if own and span is not None and span.low >= 0 and span.high < part:
            divided = from_polynomial({factor: scale // part})
            found = _divided(node.op, from_polynomial(own), divided, ranges)
            if node.op == "floordiv":
                return found
            return from_polynomial(add_terms(polynomial(found * part), rest, 1))
    return None
