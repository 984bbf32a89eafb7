"""Four-element dot products as OpenCL C: loops of kind `dot4` become calls of `dot4_*`.

The functions are chosen where the text is compiled, by what that compiler says of its device: the
x86 instruction, OpenCL 3.0's integer dot product, or plain arithmetic. All are exact.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from retune.codegen import opencl
from retune.core.errors import CodegenError
from retune.ir.dot import WIDTH, dot_operands, dot_problem, word_index
from retune.ir.expr import Buffer, Call, Expr, Load, Var, const
from retune.ir.flat import elements
from retune.ir.reduction import path_to
from retune.ir.stmt import Block, For, Stmt, blocks, rewrite

_MOST_CALLS = 4
"""Lanes that are worth a call each; more are plain arithmetic on vectors."""
FUNCTION = "dot4"
"""Name of the call that stands for the sum of four products of bytes."""


def dots_to_calls(nest: Stmt) -> Stmt:
    """The nest with `dot4(words, words)` for each `dot4` loop.

    Raises: CodegenError where a primitive after `tensorize` left nothing to do it with.
    """

    def rule(node: Stmt) -> Stmt | None:
        if not isinstance(node, For) or node.kind != "dot4":
            return None
        if problem := dot_problem(nest, node):
            names = ", ".join(block.name for block in blocks(node))
            raise CodegenError(f"{names}: no dot product over {node.var} any more: {problem}")
        assert isinstance(node.body, Block)
        return replace(node.body, value=_call(node.body, node.var))

    return rewrite(nest, rule)


def _call(block: Block, var: Var) -> Expr:
    operands = dot_operands(block, var)
    assert operands is not None
    words: list[Expr] = []
    for load in (operands.a, operands.b):
        index = word_index(load, var)
        assert index is not None
        size = elements(load.buffer)
        buffer = Buffer(
            load.buffer.name, (const(-(-size // WIDTH)),), f"{load.dtype}x4", load.buffer.scope
        )
        words.append(Load(buffer, (index,)))
    return Call(FUNCTION, tuple(words), "int32")


@dataclass(frozen=True, slots=True, order=True)
class DotFunction:
    """One of the functions: the types and lanes that it is for."""

    unsigned: bool
    """Whether the first operand's bytes are unsigned; the second one's are signed."""
    lanes: int

    @property
    def name(self) -> str:
        """Its name in OpenCL C."""
        return f"{FUNCTION}_{'us' if self.unsigned else 'ss'}_{self.lanes}"


def dot_function(call: Call, lanes: int) -> DotFunction:
    """The function for a call whose words come in so many lanes."""
    return DotFunction(call.args[0].dtype == "uint8x4", lanes)


def used_functions(nest: Stmt, lanes: Mapping[Var, int]) -> list[DotFunction]:
    """The functions that the text of a nest calls; `lanes` are its loops run as vector lanes."""
    found: set[DotFunction] = set()
    for block in blocks(nest):
        if isinstance(block.value, Call) and block.value.function == FUNCTION:
            width = [lanes[p.var] for p in path_to(nest, block) or [] if p.var in lanes]
            found.add(dot_function(block.value, width[0] if width else 1))
    return sorted(found)


def definitions(functions: Iterable[DotFunction]) -> list[str]:
    """The lines that define the functions, each one once in a program of several kernels."""
    return [line for function in functions for line in (*_definition(function), "")]


def _definition(f: DotFunction) -> list[str]:
    first = opencl.type_name("uint8x4" if f.unsigned else "int8x4", f.lanes)
    word, guard = opencl.type_name("int32", f.lanes), f.name.upper()
    return [
        f"#ifndef {guard}",
        f"#define {guard}",
        f"static {word} {f.name}(const {first} a, const {word} b, const {word} sum) {{",
        *_chosen([*_x86(f, word), *_standard(f, word)], _plain(f, word)),
        "}",
        "#endif",
    ]


def _chosen(ways: list[tuple[str, list[str]]], plain: list[str]) -> list[str]:
    """The first way whose macros are defined, else the plain one."""
    lines: list[str] = []
    for test, body in ways:
        lines += [f"#{'elif' if lines else 'if'} {test}", *body]
    return [*lines, "#else", *plain, "#endif"] if lines else plain


_X86 = {
    16: ("defined(__AVX512VNNI__)", 512),
    8: ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", 256),
    4: ("defined(__AVX512VNNI__) && defined(__AVX512VL__)", 128),
}
"""By lanes: how a compiler says that it has the instruction, and the instruction's bits."""


def _x86(f: DotFunction, word: str) -> list[tuple[str, list[str]]]:
    if not f.unsigned or f.lanes not in _X86:
        return []
    test, bits = _X86[f.lanes]
    values = ", ".join(f"__builtin_astype({name}, lanes)" for name in ("sum", "a", "b"))
    body = [
        f"  typedef int lanes __attribute__((__vector_size__({4 * f.lanes})));",
        f"  return __builtin_astype(__builtin_ia32_vpdpbusd{bits}(",
        f"      {values}), {word});",
    ]
    return [(test, body)]


def _standard(f: DotFunction, word: str) -> list[tuple[str, list[str]]]:
    """OpenCL C's own function takes one word of each."""
    if f.lanes > _MOST_CALLS:
        return []
    parts = [""] if f.lanes == 1 else [f".s{i}" for i in range(f.lanes)]
    first = "a{0}" if f.unsigned else "(uint)a{0}"
    call = f"dot_4x8packed_{'us' if f.unsigned else 'ss'}_int({first}, (uint)b{{0}})"
    calls = [call.format(part) for part in parts]
    if f.lanes == 1:
        body = [f"  return sum + {calls[0]};"]
    else:
        body = [f"  return sum + ({word})(", *(f"      {c}," for c in calls[:-1])]
        body.append(f"      {calls[-1]});")
    return [("defined(__opencl_c_integer_dot_product_input_4x8bit_packed)", body)]


def _plain(f: DotFunction, word: str) -> list[str]:
    """Products of bytes: each byte shifted up, and down again with its sign where it has one."""
    convert = f"convert_{word}" if f.unsigned else ""
    products = [f"{convert}({_high('a', i)}) * ({_high('b', i)})" for i in range(WIDTH)]
    return [
        f"  return sum + {products[0]}",
        *(f"      + {p}" for p in products[1:-1]),
        f"      + {products[-1]};",
    ]


def _high(word: str, byte: int) -> str:
    shift = 24 - 8 * byte
    return f"({word} << {shift}) >> 24" if shift else f"{word} >> 24"
