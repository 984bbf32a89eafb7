"""OpenCL C as a renderer: how types, values, statements and kernels are written.

Nothing here decides what to compute. Read `OPENCL` at the end, the table.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, isinf, isnan
from textwrap import wrap

import numpy as np

from retune.codegen.intrinsics import signature_of
from retune.codegen.kernel import (
    COPIED_BYTES,
    ROUNDED_LANES,
    Array,
    Asked,
    Assign,
    At,
    Commit,
    CopyAhead,
    Declare,
    ForLoop,
    GroupCall,
    If,
    Kernel,
    Lanes,
    Literal,
    LookedUp,
    Memory,
    MemoryLoad,
    Name,
    Number,
    Operation,
    Prefetch,
    Registers,
    Share,
    Store,
    SubArray,
    TileConfiguration,
    TileStep,
    Together,
    Value,
    Wait,
    parts,
)
from retune.codegen.opencl.attention import attention_functions
from retune.codegen.opencl.intrinsics import (
    function_lines,
    function_name,
    macro_name,
    reader_name,
)
from retune.codegen.opencl.kernels import kernel_lines
from retune.codegen.opencl.prelude import (
    AHEAD,
    ARRIVED,
    ASKED,
    COMMIT,
    COPY,
    COPY_LINES,
    FETCH_LINES,
    FLOAT_OF_BITS,
    LATER,
    LOOKUP,
    PAST,
    PAST_LINES,
    WARP_BARRIER,
    extreme,
    extreme_lines,
    halves_loader,
    halves_loader_lines,
    halves_storer,
    halves_storer_lines,
    has_range_of_float32,
    loader,
    loader_lines,
    macro_of,
    named_lines,
    of_vectors,
    of_vectors_lines,
    rounding_instruction_lines,
    rounding_lines,
    short_vector_lines,
    short_vectors,
    storer,
    storer_lines,
)
from retune.codegen.opencl.types import type_name
from retune.codegen.options import CHANNELS
from retune.codegen.printing import Printer, Renderer
from retune.core.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT4,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    DType,
)
from retune.intrinsics import intrinsic
from retune.ir.functions import FUNCTIONS, ScalarFunction
from retune.ir.operators import OPERATORS

_ALIGNMENT = 64
"""Bytes of a cache line: vectors of a private array that start on one do not cross it."""
_TEXEL_BITS = CHANNELS.bit_length() - 1
"""Elements are numbered by texels without these; shifts, as they are never negative."""
_CONFIGURATION = "matrices"
"""The array that says what matrix registers hold."""
_SHORT_BYTES = 2
_NAMES_A_LINE = 8
"""Registers that one line declares or sets."""
_WIDTH = 97
"""Characters of a comment's line."""

_SPACE: Mapping[str, str] = {
    "global": "__global", "constant": "__global", "local": "__local",
}  # fmt: skip
"""The qualifier of memory by a buffer's scope; registers and private arrays have none."""

_INFIX: Mapping[str, str] = {
    **{op: entry.opencl for op, entry in OPERATORS.items() if entry.symbol and entry.opencl},
    "rem": "%",
}  # fmt: skip
_NAMED: Mapping[str, str] = {
    op: entry.opencl for op, entry in OPERATORS.items() if not entry.symbol
}
"""Operators that are functions in OpenCL C."""

_BITS: Mapping[str, tuple[str, str, str]] = {
    FLOAT64: ("ulong", "0x7fffffffffffffffUL", "0x7ff0000000000000UL"),
    FLOAT32: ("uint", "0x7fffffffu", "0x7f800000u"),
}
"""Floats as bits: their type, the mask of all but the sign, and infinity."""

_WORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline
    int long register restrict return short signed sizeof static struct switch typedef union
    unsigned void volatile while bool half uchar ushort uint ulong size_t ptrdiff_t complex
    imaginary true false kernel global local constant private generic read_only write_only
    read_write uniform pipe image1d_t image2d_t image3d_t sampler_t event_t queue_t NULL NAN
    INFINITY HUGE_VALF MAXFLOAT INT_MIN INT_MAX LONG_MIN LONG_MAX fma select group get_group_id
    get_local_id get_global_id barrier CLK_LOCAL_MEM_FENCE main base at matrices item arena exchange
    tile0 tile1 tile2 tile3 tile4 tile5 tile6 tile7
"""
RESERVED = frozenset(
    (
        *_WORDS.split(),
        *_NAMED.values(),
        *(entry.opencl for entry in FUNCTIONS.values() if entry.opencl.isidentifier()),
        *(macro_of(entry) for entry in FUNCTIONS.values() if entry.builtin),
    )
)
"""Words that OpenCL C or the generated code uses; no name of ours may be one of them."""


def literal(value: float | bool, dtype: DType) -> str:
    """A literal that reads back as exactly the same value."""
    if dtype == BOOL:
        return "1" if value else "0"
    if dtype.elements > 1 and (dtype.is_float or dtype.elements > 4):  # the same in all words
        return f"({type_name(dtype)})({int(value)}u)"
    if not dtype.is_float:
        if dtype == INT64:
            return "LONG_MIN" if value == -(2**63) else f"{int(value)}L"
        if dtype.is_unsigned and not dtype.is_narrow:
            return f"{int(value)}{'u' if dtype == UINT32 else 'UL'}"
        return "INT_MIN" if value == -(2**31) and dtype == INT32 else str(int(value))
    if dtype == FLOAT32:
        return _float(value)
    if not isfinite(value):  # functions take arguments of one type alone
        return f"({type_name(dtype)}){_float(value)}"
    return _parenthesised(repr(float(value)))


def _float(value: float) -> str:
    """The float32 next to a number."""
    if isnan(value):
        return "NAN"
    if isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    return _parenthesised(str(np.float32(value)), "f")


def _parenthesised(text: str, suffix: str = "") -> str:
    """A decimal number as a literal, within parentheses if it has a sign."""
    whole = text if any(c in text for c in ".en") else f"{text}.0"
    return f"({whole}{suffix})" if whole.startswith("-") else f"{whole}{suffix}"


def bare(text: str) -> str:
    """The text without the parentheses that enclose all of it."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for found in _PARENTHESIS.finditer(text, 0, len(text) - 1):
        depth += 1 if found[0] == "(" else -1
        if not depth:
            return text
    return text[1:-1]


_PARENTHESIS = re.compile("[()]")


# -- values ------------------------------------------------------------------------------------


def _literal(value: Literal, _to: Printer) -> str:
    return literal(value.value, value.dtype)


def _name(value: Name, _to: Printer) -> str:
    return value.name


def _index(at: At, to: Printer) -> str:
    if at.base is None:
        return str(at.offset)
    base, sign = to.text(at.base), "-" if at.offset < 0 else "+"
    return f"{base} {sign} {abs(at.offset)}" if at.offset else base


def _pointer(at: At, to: Printer) -> str:
    index = _index(at, to)
    return at.memory.name if index == "0" else f"{at.memory.name} + {index}"


def _element(at: At, to: Printer, array: str = "") -> str:
    """One element, by the pointer to the first of its neighbours: clang adds an offset of an index
    as an instruction of its own where it cannot exclude that the sum overflows, and has that of a
    pointer in the address of the load (1x1 convolutions of 14 x 14 x 68 on AVX2 took 0.7 times as
    long)."""
    array = array or at.memory.name
    if at.base is None or not at.offset:
        return f"{array}[{_index(at, to)}]"
    return f"({array} + {to.text(at.base)})[{at.offset}]"


def _vector(memory: Memory, dtype: DType, lanes: int = 1) -> str:
    """The type of a value, or of an aligned vector, in that memory."""
    return f"{_SPACE.get(memory.scope, '__private')} {type_name(dtype, lanes)}"


def _load(value: MemoryLoad, to: Printer) -> str:
    at = value.at
    if at.memory.image is not None:
        return _texel(at, *at.memory.image, to)
    conversion = _conversion(at.memory.dtype)
    if conversion is not None and value.dtype.elements == 1:
        return conversion.load(at, to)
    return _read(at, value.dtype, to)


def _read(at: At, dtype: DType, to: Printer) -> str:
    """Elements, or words of them, as they lie in memory."""
    array, pointer = at.memory.name, _pointer(at, to)
    if dtype.elements > 1 and dtype != at.memory.dtype:  # a word starts on a multiple of its size
        array = f"((const {_vector(at.memory, dtype)}*){array})"
        pointer = f"{array} + {_index(at, to)}"
    if isinstance(dtype, Share):
        return f"{reader_name(dtype.op)}({pointer})"
    if at.aligned:
        return f"*(const {_vector(at.memory, dtype, at.lanes)}*)({pointer})"
    if _is_short_vector(at, dtype):
        load, _ = short_vectors(type_name(dtype, at.lanes))
        return f"{load}({_SPACE.get(at.memory.scope, '')}, {pointer})"
    return f"vload{at.lanes}(0, {pointer})" if at.lanes > 1 else _element(at, to, array)


def _is_short_vector(at: At, dtype: DType) -> bool:
    """Whether it is a vector of integers of 16 bits that may start at any of them."""
    short = dtype.itemsize == _SHORT_BYTES and dtype != FLOAT16
    return short and at.lanes > 1 and not at.aligned


def _texel(at: At, row: int, rows: int, to: Printer) -> str:
    """Four floats of an image, which start on a multiple of four; rows are powers of two long."""
    if at.base is None:
        first = at.offset // CHANNELS
        texel = f"{first % row}, {first // row}"
    elif rows == 1:
        texel = f"{_grouped(at, to)} >> {_TEXEL_BITS}, 0"
    else:
        index, bits = _grouped(at, to), _TEXEL_BITS + row.bit_length() - 1
        texel = f"({index} >> {_TEXEL_BITS}) & {row - 1}, {index} >> {bits}"
    return f"read_imagef({at.memory.name}, (int2)({texel}))"


def _grouped(at: At, to: Printer) -> str:
    """The index as an operand."""
    return f"({_index(at, to)})" if at.offset or not isinstance(at.base, Name) else at.base.name


def _looked_up(value: LookedUp, to: Printer) -> str:
    indices, table = to.text(value.indices), value.memory.name
    if value.dtype == UINT8:
        return f"{LOOKUP}({table}, {indices})"
    return f"as_char16({LOOKUP}((__global const uchar*){table}, {indices}))"


def _lanes(value: Lanes, to: Printer) -> str:
    text = to.text(value.value)
    whole = text if isinstance(value.value, Name) else f"({text})"
    return f"{whole}.s{''.join(f'{i:x}' for i in value.numbers)}"


def _operation(value: Operation, to: Printer) -> str:
    """What a table says: that of operators, and the others below; or else a function."""
    op = value.op
    args = [to.text(arg) for arg in value.args]
    if op in _INFIX:
        return f"({args[0]} {_INFIX[op]} {args[1]})"
    if op in _OTHERS:
        return _OTHERS[op](value, *args)
    if op in _FORMS:
        return _FORMS[op].format(*args)
    if op in _BETWEEN:
        text = _BETWEEN[op].join(args)
        return f"({text})" if op == "sum" else text
    if op in FUNCTIONS and FUNCTIONS[op].opencl:
        return _function(FUNCTIONS[op], value, args)
    name = _NAMED.get(op) or function_name(op, signature_of(value.args, value.lanes))
    return f"{name}({', '.join(args)})"


def _function(entry: ScalarFunction, value: Operation, args: Sequence[str]) -> str:
    """What its entry says."""
    if name := of_vectors(entry, value.dtype, value.lanes):
        return f"{name}({', '.join(args)})"
    if "{" not in entry.opencl:
        name = macro_of(entry) if entry.builtin else entry.opencl
        return f"{name}({', '.join(args)})"
    first = value.args[0]
    bits, magnitude, infinity = _BITS[first.dtype]
    bits += str(first.lanes) if first.lanes > 1 else ""
    texts = map(bare, args)
    return entry.opencl.format(*texts, bits=bits, magnitude=magnitude, infinity=infinity)


def _all(value: Operation, *args: str) -> str:
    return f"({_conjunction(value.args, args)})"


def _conjunction(tests: Sequence[Value], texts: Iterable[str]) -> str:
    pairs = zip(tests, texts, strict=True)
    return " && ".join(text if _either(test) else bare(text) for test, text in pairs)


def _either(test: Value) -> bool:
    return isinstance(test, Operation) and test.op == "or"


_FLOOR = macro_of(FUNCTIONS["floor"])


def _floordiv(value: Operation, a: str, b: str) -> str:
    """Rounding toward negative infinity, as numpy's does."""
    if value.dtype.is_float:
        return f"{_FLOOR}({a} / {b})"
    return f"(({a} - {_mod(value, a, b)}) / ({b}))"


def _mod(value: Operation, a: str, b: str) -> str:
    if value.dtype.is_float:
        return f"({a} - {_FLOOR}({a} / {b}) * {b})"
    return f"((({a}) % ({b}) + ({b})) % ({b}))"


def _convert(value: Operation, text: str) -> str:
    if value.dtype == UINT32 and value.args[0].dtype.is_float:  # a negative number wraps
        text = f"convert_{type_name(INT64, value.lanes)}({text})"
    return f"convert_{type_name(value.dtype, value.lanes)}({text})"


def _of_halves(value: Operation, words: str) -> str:
    return f"{halves_loader(value.lanes)}(__private, (const __private half*)&{words})"


def _float_of_bits(value: Operation, *args: str) -> str:
    words, shift, mask = map(bare, args)
    return f"{FLOAT_OF_BITS}({type_name(value.dtype, value.lanes)}, {words}, {shift}, {mask})"


def _bitcast(value: Operation, text: str) -> str:
    return f"as_{type_name(value.dtype, value.lanes)}({bare(text)})"


def _wrap(value: Operation, text: str) -> str:
    if value.lanes > 1:  # vectors of narrow types calculate in their own type
        return text
    return f"({type_name(value.dtype)})({bare(text)})"


def _wide(value: Operation, *args: str) -> str:
    return f"({type_name(value.dtype, value.lanes)})({', '.join(args)})"


def _extreme(value: Operation, *args: str) -> str:
    """Of floats, a function that keeps a NaN, see `prelude`."""
    if not value.dtype.is_float:
        return f"{_NAMED[value.op]}({', '.join(args)})"
    limit = _limit(value)
    args = args[::-1] if limit == 0 else args
    name = extreme(value.op, value.dtype, value.lanes, limit=limit is not None)
    return f"{name}({', '.join(args)})"


def _limit(value: Operation) -> int | None:
    """The argument of an extreme that is a number for sure, if any."""
    return next((i for i, arg in enumerate(value.args) if _is_number(arg)), None)


def _is_number(value: Value) -> bool:
    if isinstance(value, Operation) and value.op == "splat":
        (value,) = value.args
    return isinstance(value, Literal) and not isnan(value.value)


_OTHERS: Mapping[str, Callable[..., str]] = {
    "all": _all, "floordiv": _floordiv, "mod": _mod, "convert": _convert, "bitcast": _bitcast,
    "float_of_bits": _float_of_bits,
    "of_halves": _of_halves,
    "wrap": _wrap, "splat": _wide, "vector": _wide, "min": _extreme, "max": _extreme,
}  # fmt: skip
"""Operation -> its text by those of its arguments, where its type matters."""
_FORMS: Mapping[str, str] = {
    "choose": "({} ? {} : {})", "select": "select({2}, {1}, {0})", "long": "(long){}",
    "neg": "(-{})", "low": "{}.lo", "high": "{}.hi",
}  # fmt: skip
_BETWEEN: Mapping[str, str] = {"sum": " + ", "product": "*"}
"""Operation on any number of values -> what stands between them."""


# -- statements --------------------------------------------------------------------------------


def _bare(value: Value, to: Printer) -> str:
    return bare(to.text(value))


def _typed(name: Name) -> str:
    return type_name(name.dtype, name.lanes)


def _declare(s: Declare, to: Printer) -> list[str]:
    return [f"const {_typed(s.name)} {s.name.name} = {_bare(s.value, to)};"]


def _registers(s: Registers, _to: Printer) -> list[str]:
    return [
        f"{_typed(s.names[0])} {', '.join(n.name for n in some)};" for some in _lines_of(s.names)
    ]


def _array(s: Array, _to: Printer) -> list[str]:
    space = f"{_SPACE[s.memory.scope]} " if s.memory.scope in _SPACE else ""
    size = f"{s.memory.name}[{s.elements}]"
    kind, aligned = type_name(s.memory.dtype), f"__attribute__((aligned({_ALIGNMENT})))"
    if s.memory.dtype == FLOAT16:  # only pointers to them are of every device
        name = s.memory.name
        bits = f"{space}ushort {name}_bits[{s.elements}] {aligned};"
        return [bits, f"{space}{kind}* {name} = ({space}{kind}*){name}_bits;"]
    return [f"{space}{kind} {size} {aligned};"]


def _part(s: SubArray, _to: Printer) -> list[str]:
    pointer = f"{_vector(s.memory, s.memory.dtype)}*"
    return [f"{pointer} {s.memory.name} = ({pointer})(arena + {s.first});"]


def _lines_of(names: Sequence[Name]) -> list[Sequence[Name]]:
    return [names[i : i + _NAMES_A_LINE] for i in range(0, len(names), _NAMES_A_LINE)]


def _assign(s: Assign, to: Printer) -> list[str]:
    value = to.text(s.value)
    if len(s.targets) == 1:
        return [f"{s.targets[0].name} = {bare(value)};"]
    return [f"{' = '.join(n.name for n in some)} = {value};" for some in _lines_of(s.targets)]


def _store(s: Store, to: Printer) -> list[str]:
    at = s.at
    if (moved := _moved(s.value, at.memory.dtype)) is not None:
        return _written(_bits(at), _bare(moved, to), to)
    value = _bare(s.value, to)
    if s.past:
        vector = _vector(at.memory, at.memory.dtype, at.lanes)
        return [f"{PAST}({at.lanes}, {vector}, {value}, {_pointer(at, to)});"]
    if (conversion := _conversion(at.memory.dtype)) is not None:
        return conversion.store(at, value, to)
    return _written(at, value, to)


def _moved(value: Value, dtype: DType) -> Value | None:
    """A value of a float of 16 bits as these bits, where it is one that lies in memory, a number,
    or a choice between such: no conversion is needed. None for others."""
    if not dtype.is_small_float or dtype.bits != UINT16.bits:
        return None
    match value:
        case MemoryLoad(at) if at.memory.dtype == dtype:
            return MemoryLoad(_bits(at), UINT16)
        case Literal(number):
            return Literal(int(np.asarray(number, dtype.numpy).view(np.uint16)), UINT16)
        case Operation("splat", (part,)) if (bits := _moved(part, dtype)) is not None:
            return replace(value, args=(bits,), dtype=UINT16)
        case Operation("choose" | "select" as op, (test, *ends)):
            first, second = (_moved(end, dtype) for end in ends)
            if first is None or second is None:
                return None
            if op == "select":
                test = Operation("convert", (test,), INT16, value.lanes)
            return replace(value, args=(test, first, second), dtype=UINT16)
        case _:
            return None


def _bits(at: At) -> At:
    """The address in its array, seen as one of integers."""
    memory, name = at.memory, at.memory.name
    if type_name(memory.dtype) != type_name(UINT16):
        name = f"(({_vector(memory, UINT16)}*){name})"
    return replace(at, memory=replace(memory, name=name, dtype=UINT16))


def _written(at: At, value: str, to: Printer) -> list[str]:
    """Elements set to a value of the type that lies in memory."""
    if at.aligned:
        vector = _vector(at.memory, at.memory.dtype, at.lanes)
        return [f"*({vector}*)({_pointer(at, to)}) = {value};"]
    if _is_short_vector(at, at.memory.dtype):
        _, store = short_vectors(type_name(at.memory.dtype, at.lanes))
        return [f"{store}({_SPACE.get(at.memory.scope, '')}, {_pointer(at, to)}, {value});"]
    if at.lanes > 1:
        return [f"vstore{at.lanes}({value}, 0, {_pointer(at, to)});"]
    return [f"{_element(at, to)} = {value};"]


def _copy_ahead(s: CopyAhead, to: Printer) -> list[str]:
    count = s.to.lanes * s.to.memory.dtype.itemsize
    past = count == COPIED_BYTES[-1] and not s.near  # shorter ones all go through that cache
    name = f"{COPY}_16(" if past else f"{COPY}({count}, "
    taken = str(count) if s.test is None else f"{to.text(s.test)} ? {count} : 0"
    return [f"{name}{_pointer(s.to, to)}, {_pointer(s.source, to)}, {taken});"]


def _commit(_s: Commit, _to: Printer) -> list[str]:
    return [f"{COMMIT}();"]


def _wait(s: Wait, _to: Printer) -> list[str]:
    arrived = [] if s.pending is None else [f"{ARRIVED}({s.pending});"]
    barrier = f"{WARP_BARRIER}()" if s.in_warp else "barrier(CLK_LOCAL_MEM_FENCE)"
    return [*arrived, f"{barrier};"]


def _asked(_s: Asked, _to: Printer) -> list[str]:
    return [f"{ASKED}();"]


def _prefetch(s: Prefetch, to: Printer) -> list[str]:
    fetch = LATER if s.later else AHEAD
    return [f"{fetch}({s.at.memory.name} + {_index(s.at, to)} + {s.beyond});"]


def _number(s: Number, _to: Printer) -> list[str]:
    notes = "".join(f"; {key}: {value}" for key, value in s.notes)
    number = f"group.{'xyz'[s.axis]}" if s.passed else f"get_{s.kind}_id({s.axis})"
    return [f"const int {s.name.name} = {number};  // of {s.extent}{notes}"]


def _loop(s: ForLoop, to: Printer) -> list[str]:
    name = s.name.name
    hint = [f"__attribute__((opencl_unroll_hint({s.unroll})))"] if s.unroll > 1 else []
    extent = str(s.extent) if isinstance(s.extent, int) else to.text(s.extent)
    return [
        *(f"// {key}: {value}" for key, value in s.notes),
        *hint,
        f"for (int {name} = 0; {name} < {extent}; ++{name}) {{",
        *to.inside(s.body),
        "}",
    ]


def _tile_configuration(s: TileConfiguration, _to: Printer) -> list[str]:
    """What configures them, where they need that, and their declarations."""
    registers = [f"{macro_name(s.function, 'REGISTER')}({n});" for n in range(len(s.shapes))]
    configuration = intrinsic(s.function.op).configuration
    if configuration is None:
        return registers
    numbers = ", ".join(map(str, configuration(s.shapes)))
    return [
        *wrap(
            f"const uchar {_CONFIGURATION}[64] __attribute__((aligned(64))) = {{{numbers}}};",
            _WIDTH,
            subsequent_indent="    ",
        ),
        f"{macro_name(s.function, 'CONFIGURE')}({_CONFIGURATION});",
        *registers,
    ]


def _tile_step(s: TileStep, to: Printer) -> list[str]:
    at = [] if s.at is None else [_pointer(s.at, to)]
    arguments = ", ".join(map(str, (*s.registers, *at, *s.sizes)))
    return [f"{macro_name(s.function, s.step)}({arguments});"]


def _together(s: Together, to: Printer) -> list[str]:
    """A macro's call: whether it needs memory by which to exchange is up to the implementation."""
    name = function_name(s.function.op, s.function.signature).upper()
    arguments = [*(target.name for target in s.targets), *(_bare(v, to) for v in s.values)]
    return [f"{name}({', '.join(arguments)});"]


def _group_call(s: GroupCall, to: Printer) -> list[str]:
    """The bias of a call without one is any pointer."""
    query, key, value, *bias = (_pointer(at, to) for at in s.starts)
    pointers = [query, key, value, _pointer(s.to, to), *(bias or [query])]
    numbers = [_bare(v, to) for v in s.values]
    items = s.function.tile.items
    own = ["item", f"1 + get_local_id(0) / {items}"] if s.beside else ["get_local_id(0)", "1"]
    return [f"{s.function.name}({', '.join([*pointers, *numbers, s.memory.name, *own])});"]


def _if(s: If, to: Printer) -> list[str]:
    tests = _conjunction(s.tests, map(to.text, s.tests))
    otherwise = ["else {", *to.inside(s.otherwise), "}"] if s.otherwise else []
    return [f"if ({tests}) {{", *to.inside(s.then), "}", *otherwise]


# -- types that are only stored ----------------------------------------------------------------


def _load_half(at: At, to: Printer) -> str:
    if at.lanes == 1:
        return f"vload_half({_index(at, to)}, {at.memory.name})"
    if at.aligned:
        return f"{halves_loader(at.lanes)}({_SPACE[at.memory.scope]}, {_pointer(at, to)})"
    return f"vload_half{at.lanes}(0, {_pointer(at, to)})"


def _store_half(at: At, value: str, to: Printer) -> list[str]:
    if at.lanes == 1:
        return [f"vstore_half({value}, {_index(at, to)}, {at.memory.name});"]
    if at.aligned:
        space = _SPACE[at.memory.scope]
        return [f"{halves_storer(at.lanes)}({space}, {_pointer(at, to)}, ({value}));"]
    return [f"vstore_half{at.lanes}({value}, 0, {_pointer(at, to)});"]


def _load_small_float(at: At, to: Printer) -> str:
    dtype, read = at.memory.dtype, _read(at, at.memory.dtype, to)
    if has_range_of_float32(dtype):
        lanes = str(at.lanes) if at.lanes > 1 else ""
        return f"as_float{lanes}(convert_uint{lanes}({read}) << {FLOAT32.bits - dtype.bits})"
    return f"{loader(dtype, at.lanes)}({read})"


def _store_small_float(at: At, value: str, to: Printer) -> list[str]:
    return _written(at, f"{storer(at.memory.dtype, at.lanes)}({value})", to)


def _loader_lines(at: At) -> list[str]:
    dtype = at.memory.dtype
    return [] if has_range_of_float32(dtype) else loader_lines(dtype, at.lanes)


def _storer_lines(at: At) -> list[str]:
    return storer_lines(at.memory.dtype, at.lanes)


def _halves_loader_lines(at: At) -> list[str]:
    return halves_loader_lines(at.lanes) if at.aligned else []


def _halves_storer_lines(at: At) -> list[str]:
    return halves_storer_lines(at.lanes) if at.aligned else []


def _load_int4(at: At, to: Printer) -> str:
    """The lower half of a byte with its sign; numpy leaves the upper half empty."""
    read = f"({_read(at, at.memory.dtype, to)} << 4)"
    return f"({read if at.lanes > 1 else f'(char){read}'} >> 4)"


def _store_int4(at: At, value: str, to: Printer) -> list[str]:
    return _written(at, f"({value}) & {'(char)' * (at.lanes > 1)}15", to)


def _load_truth(at: At, to: Printer) -> str:
    read = _read(at, at.memory.dtype, to)
    return f"(convert_{type_name(INT32, at.lanes)}({read}) != 0)" if at.lanes > 1 else read


def _store_truth(at: At, value: str, to: Printer) -> list[str]:
    kind = type_name(at.memory.dtype, at.lanes)
    return _written(at, f"convert_{kind}(({value}) & 1)" if at.lanes > 1 else value, to)


@dataclass(frozen=True, slots=True)
class Conversion:
    """How what lies in memory is converted to the compute type and back."""

    load: Callable[[At, Printer], str]
    """Elements as values of the compute type."""
    store: Callable[[At, str, Printer], list[str]]
    """Elements set to the text of such a value."""
    load_lines: Callable[[At], list[str]] | None = None
    """What stands before kernels that load from such an address."""
    store_lines: Callable[[At], list[str]] | None = None
    """The same for stores."""


CONVERSIONS: Mapping[DType, Conversion] = {
    FLOAT16: Conversion(_load_half, _store_half, _halves_loader_lines, _halves_storer_lines),
    INT4: Conversion(_load_int4, _store_int4),
    BOOL: Conversion(_load_truth, _store_truth),
}
"""Types that OpenCL converts itself, or that are not floats."""
_SMALL_FLOAT = Conversion(_load_small_float, _store_small_float, _loader_lines, _storer_lines)


def _conversion(dtype: DType) -> Conversion | None:
    """None for what lies in memory as it is computed with."""
    return CONVERSIONS.get(dtype, _SMALL_FLOAT if dtype.is_small_float else None)


def _storage_lines(kernel: Kernel, nodes: Sequence[MemoryLoad | Store]) -> list[str]:
    """The conversions that the kernel's loads and stores need."""
    used = {
        (type(n) is MemoryLoad, n.at.memory.dtype, n.at.lanes, n.at.aligned): n.at for n in nodes
    }
    lines: list[str] = []
    for (is_load, dtype, *_), at in used.items():
        if (conversion := _conversion(dtype)) is None:
            continue
        maker = conversion.load_lines if is_load else conversion.store_lines
        if not is_load and dtype in kernel.converts and at.lanes in ROUNDED_LANES[dtype]:
            lines += rounding_instruction_lines(dtype, at.lanes)
        elif maker is not None:
            lines += maker(at)
    addresses = [at for n in nodes for at in _addresses(n)]
    short = [at for at in addresses if _is_short_vector(at, at.memory.dtype)]
    for kind, lanes in dict.fromkeys((type_name(a.memory.dtype, a.lanes), a.lanes) for a in short):
        lines += short_vector_lines(kind, lanes)
    return lines


def _addresses(node: MemoryLoad | Store) -> list[At]:
    """What a load or store touches, as it does."""
    if not isinstance(node, Store) or (moved := _moved(node.value, node.at.memory.dtype)) is None:
        return [node.at]
    return [_bits(node.at), *(part.at for part in parts(moved) if isinstance(part, MemoryLoad))]


def _extreme_lines(operations: Sequence[Operation]) -> list[str]:
    """The functions that the kernel's minima and maxima of floats need."""
    found = dict.fromkeys(
        (each.op, each.dtype, each.lanes, _limit(each) is not None)
        for each in operations
        if each.op in ("min", "max") and each.dtype.is_float
    )
    return [
        line
        for op, dtype, lanes, limit in found
        for line in extreme_lines(op, dtype, lanes, limit=limit)
    ]


def _vector_function_lines(operations: Sequence[Operation]) -> list[str]:
    """The functions of vectors that the kernel needs instead of OpenCL's."""
    used = dict.fromkeys((v.op, v.dtype, v.lanes) for v in operations if v.op in FUNCTIONS)
    found = [(FUNCTIONS[op], dtype, lanes) for op, dtype, lanes in used]
    return [line for each in found if of_vectors(*each) for line in of_vectors_lines(*each)]


# -- kernels -----------------------------------------------------------------------------------


def _kernel(kernel: Kernel, body: list[str]) -> list[str]:
    """What it calls, what it computes as a comment, and its functions."""
    found = list(parts(kernel.body))  # once: a kernel may have a million of them
    nodes = [part for part in found if isinstance(part, MemoryLoad | Store)]
    past = any(isinstance(part, Store) and part.past for part in nodes)
    ahead = (
        *(FETCH_LINES if kernel.fetches else ()),
        *(PAST_LINES if past else ()),
        *(COPY_LINES if kernel.copies_ahead else ()),
    )
    operations = [part for part in found if isinstance(part, Operation)]
    calls = dict.fromkeys(part.function for part in found if isinstance(part, GroupCall))
    functions = [
        *_storage_lines(kernel, nodes),
        *(n for o in operations if o.op == "of_halves" for n in halves_loader_lines(o.lanes)),
        *rounding_lines(body),
        *_extreme_lines(operations),
        *_vector_function_lines(operations),
        *named_lines(body),
        *function_lines(kernel.functions),
        *attention_functions(calls, kernel.attention),
    ]
    comment = [part for line in kernel.comment for part in _comment_lines(line)]
    return [*ahead, *functions, *comment, *kernel_lines(kernel, body)]


def _comment_lines(text: str) -> list[str]:
    """A line of text as comment; broken where it is long."""
    if len(text) <= _WIDTH - len("// "):
        return [f"// {text}"]
    return wrap(text, _WIDTH, initial_indent="// ", subsequent_indent="//     ")


OPENCL = Renderer(
    values={
        Literal: _literal,
        Name: _name,
        MemoryLoad: _load,
        LookedUp: _looked_up,
        Lanes: _lanes,
        Operation: _operation,
    },
    statements={
        Declare: _declare,
        Registers: _registers,
        Array: _array,
        SubArray: _part,
        Assign: _assign,
        Store: _store,
        CopyAhead: _copy_ahead,
        Commit: _commit,
        Wait: _wait,
        Asked: _asked,
        Prefetch: _prefetch,
        Number: _number,
        ForLoop: _loop,
        If: _if,
        TileConfiguration: _tile_configuration,
        TileStep: _tile_step,
        Together: _together,
        GroupCall: _group_call,
    },
    kernel=_kernel,
    reserved=RESERVED,
)
