"""Intrinsics in OpenCL C: a function for each signature, such as `dot4_us_8`, or macros such as
`TILE8_US_1_LOAD` of steps on tile registers, which are named by literal numbers."""

from collections.abc import Iterable

from retune.codegen.intrinsics import EXCHANGE, joining
from retune.codegen.kernel import Function
from retune.codegen.opencl.prelude import once
from retune.codegen.opencl.types import type_name
from retune.core.dtypes import DType, packed
from retune.intrinsics import (
    TILE_STEPS,
    Implementation,
    Intrinsic,
    MatrixOperand,
    Signature,
    intrinsic,
    intrinsics,
)

LANGUAGE = "OpenCL C"
"""What the texts of implementations are found under."""


def function_name(op: str, signature: Signature) -> str:
    """The name of the function."""
    return f"{op}_{signature}"


def function_lines(functions: Iterable[Function]) -> list[str]:
    """The lines that define the functions, each one once in a program of several kernels."""
    return [line for function in functions for line in _definition(function)]


def implementations_in(text: str) -> frozenset[str]:
    """The full names of the implementations that a program's text defines."""
    names = {e.full_name(x) for e in intrinsics() for x in e.implementations[:-1]}
    return frozenset(name for name in names if f"\n// {name}\n" in text)


def macro_name(function: Function, step: str) -> str:
    """The name of a step on tile registers."""
    return f"{function_name(function.op, function.signature).upper()}_{step}"


def _definition(f: Function) -> list[str]:
    entry = intrinsic(f.op)
    chosen = entry.implementation_named(f.implementation)
    name, text = function_name(f.op, f.signature), chosen.text[LANGUAGE](f.signature)
    body, full = (*(f"  {line}" for line in text), "}"), f"// {entry.full_name(chosen)}"
    match entry.residence:
        case "register tile":
            lines = [f"#define {macro_name(f, line)}" for line in text]
            return once(macro_name(f, TILE_STEPS[0]), full, *lines)
        case "vector lane":
            lanes = f.signature.lanes
            result = type_name(entry.accumulator, lanes)
            operands = zip(entry.operands, f.signature.dtypes, strict=True)
            given = [f"const {_packs(o, dtype, lanes)} {o.name}" for o, dtype in operands]
            head = f"static {result} {name}({', '.join(given)}, const {result} sum) {{"
            lines = once(name.upper(), f"#define {name.upper()}", full, head, *body)
            return [*lines, *_joined(entry, chosen, lanes)]
        case "warp":
            given, taken, passed = _warp_arguments(f, entry, exchanged=chosen.exchanged > 0)
            inline = "__attribute__((always_inline)) " if chosen.exchanged else ""  # for PoCL
            head = f"static {inline}void {name}({given}) {{"
            macro = f"#define {name.upper()}({taken}) {name}({passed})"
            return [*_reader(entry, chosen), *once(name.upper(), full, head, *body, macro)]


def _joined(entry: Intrinsic, chosen: Implementation, lanes: int) -> list[str]:
    """The function that makes sums of so many lanes of what these hold of them, if that differs."""
    if not entry.most:
        return []
    kind = type_name(entry.accumulator, lanes)
    name = function_name(joining(entry), Signature((entry.accumulator,), lanes))
    body = (*(f"  {line}" for line in chosen.joined[LANGUAGE]), "}")
    head = f"static {kind} {name}(const {kind} sum) {{"
    return once(name.upper(), f"#define {name.upper()}", head, *body)


def reader_name(op: str) -> str:
    """The name of what an item of a warp reads operands by."""
    return f"{op.upper()}_READ"


def _reader(entry: Intrinsic, chosen: Implementation) -> list[str]:
    """Defines it, for instructions whose operands are read so."""
    if not entry.reads_locally:
        return []
    name, macro = f"{entry.name}_read", reader_name(entry.name)
    if not chosen.read:
        return once(macro, f"#define {macro}(at) *(at)")
    body = (f"  {line}" for line in chosen.read[LANGUAGE])
    head = f"static uint4 {name}(__local const uint4* at) {{"
    return once(macro, head, *body, "}", f"#define {macro}(at) {name}(at)")


def _packs(operand: MatrixOperand, dtype: DType, lanes: int) -> str:
    """The type of packs of an operand in so many lanes."""
    return type_name(packed(dtype, operand.pack), lanes)


def _warp_arguments(f: Function, entry: Intrinsic, *, exchanged: bool) -> tuple[str, str, str]:
    """What a function of a warp is given, what its macro takes, and what that passes on.

    The function takes the addresses of sums, and the macro takes them by their names. Packs of
    which an item reads all rows are lanes of vectors.
    """
    assert entry.warp is not None, "it is one of a warp"
    sums = [f"y{n}" for n in range(entry.m)]
    given, packs = [f"{type_name(entry.accumulator, entry.n)}* {y}" for y in sums], list[str]()
    for operand, dtype in zip(entry.operands, f.signature.dtypes, strict=True):
        fragment = operand.fragment
        assert fragment is not None, "it is one of a warp"
        count = fragment.reads
        names = [operand.name + ("" if count == 1 else str(n)) for n in range(count)]
        lanes = 1 if fragment.rows else entry.n
        given += [f"const {_packs(operand, dtype, lanes)} {name}" for name in names]
        packs += names
    passed = [*(f"&{y}" for y in sums), *packs]
    if exchanged:
        given += ["__local int* all", "const int item"]
        row = "(get_local_id(1) + get_local_size(1) * get_local_id(2))"
        item = f"get_local_id(0) + {entry.warp.first} * {row}"
        passed += [EXCHANGE, item]
    return ", ".join(given), ", ".join([*sums, *packs]), ", ".join(passed)
