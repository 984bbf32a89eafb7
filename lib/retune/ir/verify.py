"""The invariants of loop programs, one function each, and the list that runs them.

`verify(program)` raises VerifyError with the program's text. Extents may hold tile-size symbols:
what depends on their values is checked only where the bounds prove it wrong. Nothing here knows
schedules or OpenCL.
"""

from collections.abc import Callable, Iterator, Mapping

from retune.core.dtypes import BOOL, INT32
from retune.core.errors import VerifyError
from retune.ir.expr import Binary, Buffer, Const, Expr, Var, is_symbol, loads, variables
from retune.ir.selections import certain_loads
from retune.ir.simplify import Range, bounds, simplify
from retune.ir.stmt import (
    Block,
    For,
    Program,
    blocks,
    expressions,
    loops,
    paths,
)

MAX_VECTOR = 16
"""Lanes of the widest vector of OpenCL C."""


def verify(program: Program, after: str = "") -> None:
    """Every invariant holds. Raises: VerifyError naming the first that does not, and `after`."""
    for check in CHECKS:
        for problem in check(program):
            where = f" after {after}" if after else ""
            raise VerifyError(f"{program.name}{where}: {problem}\n{program}")


def check_loops_bound_once(program: Program) -> Iterator[str]:
    """Each loop has a variable of its own."""
    seen: set[Var] = set()
    for loop in loops(program.body):
        if loop.var in seen:
            yield f"two loops over {loop.var}"
        seen.add(loop.var)


def check_blocks_named_once(program: Program) -> Iterator[str]:
    """Each block has a name of its own."""
    seen: set[str] = set()
    for block in blocks(program.body):
        if block.name in seen:
            yield f"two blocks named {block.name}"
        seen.add(block.name)


def check_no_free_variables(program: Program) -> Iterator[str]:
    """Expressions use the variables of the loops around them, tile-size symbols and sizes."""
    for block, path in paths(program.body):
        known = {loop.var for loop in path}
        for expr in expressions(block):
            for var in sorted(variables(expr) - known, key=str):
                if not is_symbol(var):
                    yield f"{block.name}: {var} is not a loop around it"
    for loop in loops(program.body):
        if not all(is_symbol(v) for v in variables(loop.extent)):
            yield f"loop {loop.var}: its extent {loop.extent} depends on a loop"


def check_buffers_declared(program: Program) -> Iterator[str]:
    """Blocks touch declared buffers only, inputs are not written, names are unique."""
    declared = (*program.inputs, *program.scratch, *program.outputs)
    names = [b.name for b in declared]
    for name in sorted({n for n in names if names.count(n) > 1}):
        yield f"two buffers named {name}"
    known = set(declared)
    for block in blocks(program.body):
        for buffer in _touched(block):
            if buffer not in known:
                yield f"{block.name}: {buffer} is not declared with shape {_shape(buffer)}"
        if block.buffer in program.inputs:
            yield f"{block.name}: stores to the input {block.buffer}"


def check_ranks(program: Program) -> Iterator[str]:
    """One index for each dimension."""
    for block in blocks(program.body):
        accesses = [(block.buffer, block.indices)]
        accesses += [(load.buffer, load.indices) for e in expressions(block) for load in loads(e)]
        for buffer, indices in accesses:
            if len(buffer.shape) != len(indices):
                yield f"{block.name}: {len(indices)} indices for {buffer}[{_shape(buffer)}]"


def check_types(program: Program) -> Iterator[str]:
    """Values have the type of their buffer, indices are int32, guards are bool."""
    for block in blocks(program.body):
        if block.value.dtype is not block.buffer.dtype.compute:
            yield f"{block.name}: {block.value.dtype} stored in {block.buffer.dtype}"
        if any(i.dtype != INT32 for i in block.indices):
            yield f"{block.name}: an index is not int32"
        if block.guard is not None and block.guard.dtype != BOOL:
            yield f"{block.name}: its guard is {block.guard.dtype}"


def check_extents(program: Program) -> Iterator[str]:
    """Known extents are positive; those of vectors are at most 16."""
    for loop in loops(program.body):
        if not isinstance(loop.extent, Const):
            continue
        extent = int(loop.extent.value)
        if extent < 1:
            yield f"loop {loop.var} has extent {extent}"
        if loop.kind == "vectorize" and extent > MAX_VECTOR:
            yield f"loop {loop.var}: a vector of {extent} lanes; at most {MAX_VECTOR}"


def check_reduce_loops(program: Program) -> Iterator[str]:
    """Reduce loops run in order or as lanes, and hold a block that accumulates."""
    for loop in loops(program.body):
        if not loop.reduce:
            continue
        if not loop.in_order:
            yield f"reduce loop {loop.var} runs as {loop.kind}"
        if all(b.reducer is None for b in blocks(loop.body)):
            yield f"reduce loop {loop.var} holds no reduction"


def check_parallel_axes(program: Program) -> Iterator[str]:
    """A work-group or work-item axis runs one loop on each path, of one extent in each nest.

    Only stores to local memory may stand in two loops over the same items: work that they share.
    """
    for root in program.body.stmts:
        extents: dict[str, Expr] = {}
        for loop in loops(root):
            if loop.in_order or loop.kind == "vthread":
                continue
            if extents.setdefault(loop.kind, loop.extent) != loop.extent:
                yield f"{loop.kind} has extents {extents[loop.kind]} and {loop.extent}"
        for block, path in paths(root):
            kinds = [p.kind for p in path if not p.in_order and p.kind != "vthread"]
            if block.buffer.scope == "local":
                kinds = [k for k in kinds if not k.startswith("local")]
            for kind in sorted({k for k in kinds if kinds.count(k) > 1}):
                yield f"{block.name}: {kind} runs two loops around it"


def check_stores_in_bounds(program: Program) -> Iterator[str]:
    """Unguarded stores stay inside their buffer."""
    for block, path in paths(program.body):
        if block.guard is None:
            for problem in _outside(block.buffer, block.indices, _ranges(path)):
                yield f"{block.name}: stores {problem}"


def check_reads_in_bounds(program: Program) -> Iterator[str]:
    """Unconditional reads of unguarded blocks stay inside their buffer."""
    for block, path in paths(program.body):
        if block.guard is None:
            for load in certain_loads(block.value):
                for problem in _outside(load.buffer, load.indices, _ranges(path)):
                    yield f"{block.name}: reads {problem}"


def check_written_before_read(program: Program) -> Iterator[str]:
    """Every scratch buffer is written, before it is read; every output is written."""
    written: set[Buffer] = set()
    for block in blocks(program.body):
        for expr in (block.value, *block.indices):
            for load in loads(expr):
                if load.buffer not in written and load.buffer not in program.inputs:
                    yield f"{block.name}: reads {load.buffer} before it is written"
        written.add(block.buffer)
    for buffer in program.outputs:
        if buffer not in written:
            yield f"output {buffer} is not written"


CHECKS: tuple[Callable[[Program], Iterator[str]], ...] = (
    check_loops_bound_once,
    check_blocks_named_once,
    check_no_free_variables,
    check_buffers_declared,
    check_ranks,
    check_types,
    check_extents,
    check_reduce_loops,
    check_parallel_axes,
    check_stores_in_bounds,
    check_reads_in_bounds,
    check_written_before_read,
)
"""In order: later checks may assume what earlier ones establish."""


def _touched(block: Block) -> list[Buffer]:
    found = dict.fromkeys([block.buffer])
    found |= dict.fromkeys(load.buffer for e in expressions(block) for load in loads(e))
    return list(found)


def _shape(buffer: Buffer) -> str:
    return ", ".join(map(str, buffer.shape))


def _ranges(path: tuple[For, ...]) -> dict[Var, Range]:
    return {
        loop.var: Range(0, int(loop.extent.value) - 1)
        for loop in path
        if isinstance(loop.extent, Const)
    }


def _outside(
    buffer: Buffer, indices: tuple[Expr, ...], ranges: Mapping[Var, Range]
) -> Iterator[str]:
    """The fault of an access whose exact bounds are known."""
    for index, extent in zip(indices, buffer.shape, strict=True):
        settled = simplify(index, ranges)
        span = bounds(settled, ranges) if _is_exact(settled) else None
        if span is None or not isinstance(extent, Const):
            continue
        if span.low < 0 or span.high >= int(extent.value):
            yield f"{buffer}[{index}], in {span.low}..{span.high} of {extent}"


def _is_exact(expr: Expr) -> bool:
    """True when both ends of the expression's interval are attained."""
    match expr:
        case Var() | Const():
            return True
        case Binary("add" | "sub", a, b):
            return _is_exact(a) and _is_exact(b) and not variables(a) & variables(b)
        case Binary("mul" | "min" | "max" | "floordiv", a, b):
            return any(isinstance(c, Const) and _is_exact(d) for c, d in ((a, b), (b, a)))
        case _:
            return False
