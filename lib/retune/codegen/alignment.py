"""What surely divides an address: vectors that start on their own size are one access on GPUs.

`vload4` promises alignment to one element only, and so becomes four loads there.
"""

from math import gcd

from retune.ir.expr import Binary, Const, Expr, Var
from retune.ir.simplify import Polynomial, polynomial


def known_divisor(terms: Polynomial) -> int:
    """A number that divides the sum, whatever its variables are; 0 for the sum of nothing."""
    divisor = 0
    for monomial, coefficient in terms.items():
        factor = abs(coefficient)
        for atom in monomial:
            factor *= _of(atom)
        divisor = gcd(divisor, factor)
    return divisor


def _of(atom: Expr) -> int:
    match atom:
        case Const(value):
            return abs(int(value))
        case Var():
            return 1
        case Binary("min" | "max", a, b):
            return gcd(known_divisor(polynomial(a)), known_divisor(polynomial(b)))
        case _:
            return 1
