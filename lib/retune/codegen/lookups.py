"""Reads whose places other reads say: elements of a table, one for each lane.

Where a register, or each lane's own read, says what to read, the places are computed together, as a
vector with a name, and each lane reads from its own.
"""

from collections.abc import Container

from retune.codegen.addresses import Instance
from retune.codegen.kernel import At, Lanes, Load, Memory, Operation, Value
from retune.ir.expr import Buffer, Expr, Var, loads, variables
from retune.ir.expr import Load as LoadExpr
from retune.ir.flat import flat_terms
from retune.ir.simplify import from_polynomial


def is_lookup(load: LoadExpr, lane: Var | None, registers: Container[Buffer]) -> bool:
    """Whether it reads where registers, or other reads of each lane, say and nothing else does.

    Lanes that move along the buffer beside what is read are vectors of adjacent elements.
    """
    _, *inner = loads(load)
    said = any(read.buffer in registers or lane in variables(read) for read in inner)
    return said and all(_varies_by_reads(index, lane) for index in load.indices)


def lookups(instance: Instance, registers: Container[Buffer]) -> list[LoadExpr]:
    """The lookups of the instance's block by several lanes, inner ones first."""
    if instance.lane is None:
        return []
    lane, found = instance.lane[0], loads(instance.block.value)
    return [load for load in reversed(found) if is_lookup(load, lane, registers)]


def place_of(load: LoadExpr) -> Expr:
    """The number of the element in its buffer."""
    return from_polynomial(flat_terms(load.buffer, load.indices))


def elements(memory: Memory, places: Value, dtype: str) -> Value:
    """What lies at one place or several: then `places` is a name."""
    if places.lanes == 1:
        return Load(At(memory, places, 0), dtype)
    ones = [Lanes(places, (number,), places.dtype) for number in range(places.lanes)]
    values = tuple(Load(At(memory, one, 0), dtype) for one in ones)
    return Operation("vector", values, dtype, places.lanes)


def _varies_by_reads(expr: Expr, lane: Var | None) -> bool:
    """Whether the lanes of an expression differ by nothing but what they read."""
    if isinstance(expr, LoadExpr):
        return True
    return expr != lane and all(_varies_by_reads(child, lane) for child in expr.children)
