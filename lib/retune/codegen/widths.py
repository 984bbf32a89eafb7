"""Index expressions that fit into an int32, in which indices are computed.

Elements of a buffer, iterations of a loop and work-groups of a launch have to: `check_sizes`. A sum
on the way to an index may be larger than the index, and is an int64 then: `sum_type`.
"""

from collections.abc import Iterable
from math import prod

from retune.core.dims import most
from retune.core.dtypes import INT32, INT64, DType
from retune.core.errors import CodegenError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Expr
from retune.ir.flat import elements
from retune.ir.simplify import Monomial, Range, Ranges, bounds
from retune.ir.stmt import Stmt, blocks, loops, touched

INT_MAX = 2**31 - 1


def check_sizes(kernel: str, nest: Stmt) -> None:
    """All that the kernel of a nest numbers can be numbered by an int32.

    Groups count together: one number stands for all axes where workers share them out.

    Raises: CodegenError naming the buffer, loop or launch that is too large.
    """
    buffers = {buffer for block in blocks(nest) for buffer in touched(block)}
    sizes = {f"{b.name} has": (most(elements(b)), "elements") for b in sorted(buffers, key=str)}
    around = loops(nest)
    sizes |= {f"loop {n.var} has": (most(evaluate_int(n.extent)), "iterations") for n in around}
    groups = {n.kind: most(evaluate_int(n.extent)) for n in around if n.kind.startswith("group")}
    sizes["its launch has"] = (prod(groups.values()), "work-groups")
    for what, (size, unit) in sizes.items():
        if size > INT_MAX:
            raise CodegenError(
                f"{kernel}: {what} {size} {unit}; expected at most {INT_MAX}, as indices are of "
                "32 bits; compute it in parts"
            )


def integer_type(expr: Expr, ranges: Ranges) -> DType:
    """`int32`, or `int64` for an expression that may leave it."""
    return _type_of(bounds(expr, ranges))


def sum_type(terms: Iterable[tuple[Monomial, int]], ranges: Ranges) -> DType:
    """`int32`, or `int64` for a sum that may leave it on the way, added up in this order."""
    low = high = 0
    for monomial, coefficient in terms:
        factors = [bounds(atom, ranges) for atom in monomial]
        ends = {coefficient}
        for factor in factors:
            if factor is None:
                return INT32  # read from memory: an index into a buffer of known size
            ends = {end * f for end in ends for f in (factor.low, factor.high)}
        low, high = low + min(ends), high + max(ends)
        if INT64 in (_type_of(Range(low, high)), _type_of(Range(min(ends), max(ends)))):
            return INT64
    return INT32


def _type_of(values: Range | None) -> DType:
    fits = values is None or -INT_MAX <= values.low <= values.high <= INT_MAX
    return INT32 if fits else INT64
