"""Reads whose indices other reads say: elements of a table, one for each lane.

Where a register, or each lane's own read, says what to read, the indices are computed together, as
a vector with a name, and each lane reads from its own. Tables of 256 bytes, as functions of bytes
have them, are read by whole vectors: some processors hold all of one in a few registers.
"""

from collections.abc import Container

from retune.codegen.addresses import Instance
from retune.codegen.kernel import (
    TABLE_BYTES,
    TABLE_LANES,
    At,
    Lanes,
    LookedUp,
    Memory,
    MemoryLoad,
    Operation,
    Value,
)
from retune.core.dtypes import INT32
from retune.ir.expr import Buffer, Expr, Load, Var, loads, variables
from retune.ir.flat import elements, flat_terms
from retune.ir.simplify import from_polynomial


def is_lookup(load: Load, lane: Var | None, registers: Container[Buffer]) -> bool:
    """Whether it reads where registers, or other reads of each lane, say and nothing else does.

    Lanes that move along the buffer beside what is read are vectors of adjacent elements.
    """
    _, *inner = loads(load)
    said = any(read.buffer in registers or lane in variables(read) for read in inner)
    return said and all(_varies_by_reads(index, lane) for index in load.indices)


def lookups(instance: Instance, registers: Container[Buffer]) -> list[Load]:
    """The lookups of the instance's block by several lanes, inner ones first."""
    if instance.lane is None:
        return []
    lane, found = instance.lane[0], loads(instance.block.value)
    return [load for load in reversed(found) if is_lookup(load, lane, registers)]


def index_of(load: Load) -> Expr:
    """The number of the element in its buffer."""
    return from_polynomial(flat_terms(load.buffer, load.indices))


def looked_up(load: Load, memory: Memory, indices: Value) -> Value:
    """What the lookup reads at one index or several: then `indices` is a name."""
    if indices.lanes == 1:
        return MemoryLoad(At(memory, indices, 0), load.dtype)
    whole = indices.lanes == TABLE_LANES and indices.dtype == INT32 and memory.image is None
    if whole and _is_table(load.buffer):
        return LookedUp(memory, indices, load.dtype)
    ones = [Lanes(indices, (number,), indices.dtype) for number in range(indices.lanes)]
    values = tuple(MemoryLoad(At(memory, one, 0), load.dtype) for one in ones)
    return Operation("vector", values, load.dtype, indices.lanes)


def _is_table(buffer: Buffer) -> bool:
    """Whether it has an element of a byte for each byte, as functions of bytes do."""
    bytes_of_all = elements(buffer) * buffer.dtype.itemsize == elements(buffer) == TABLE_BYTES
    return bytes_of_all and buffer.scope == "constant"


def _varies_by_reads(expr: Expr, lane: Var | None) -> bool:
    """Whether the lanes of an expression differ by nothing but what they read."""
    if isinstance(expr, Load):
        return True
    return expr != lane and all(_varies_by_reads(child, lane) for child in expr.children)
