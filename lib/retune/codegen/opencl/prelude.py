"""The prelude of kernels in OpenCL C: functions and macros, each once in a program.

A kernel has those that its body uses: requests for lines ahead of their use, roundings that are one
instruction, extremes that keep a NaN, tables of 256 bytes, floats of packed bits, conversions of
floats that the language lacks. Read `once`.
"""

from collections.abc import Iterable, Sequence
from math import log

from retune.codegen.kernel import TABLE_LANES
from retune.codegen.opencl.types import type_name
from retune.core.dtypes import FLOAT32, INT32, INT64, DType
from retune.ir.functions import FUNCTIONS, Exponential, Rational, ScalarFunction


def once(name: str, *lines: str) -> list[str]:
    """The lines, of which a program of several kernels keeps the first with that name."""
    return [f"#ifndef {name}", *lines, "#endif", ""]


# -- lines of memory ahead of their use ----------------------------------------------------------

AHEAD, LATER = "AHEAD", "LATER"
"""Macros that ask for a line: for the nearest cache, and for the second one."""

FETCH_LINES = once(
    AHEAD,
    "#ifdef __clang__",
    f"#define {AHEAD}(address) __builtin_prefetch(address, 0, 3)",
    f"#define {LATER}(address) __builtin_prefetch(address, 0, 2)",
    "#else",
    f"#define {AHEAD}(address)",
    f"#define {LATER}(address)",
    "#endif",
)
"""The lines before a kernel that fetches."""


PAST = "STORE_PAST"
"""Macro that stores an aligned vector past the caches, where the compiler can."""
PAST_LINES = once(
    PAST,
    "#if defined(__clang__) && defined(__OPENCL_VERSION__)",
    f"#define {PAST}(lanes, type, value, address) \\",
    "  __builtin_nontemporal_store(value, (type*)(address))",
    "#else",
    f"#define {PAST}(lanes, type, value, address) vstore##lanes(value, 0, address)",
    "#endif",
)
"""The lines before a kernel that stores so."""


COPY, COMMIT, ARRIVED = "COPY_AHEAD", "COMMIT_COPIES", "COPIES_ARRIVED"
"""Macros of copies into local memory: those that start one, that end a batch, and that wait until
no more than so many batches are under way.

Source: PTX ISA, Data Movement: cp.async. A local address as an integer is that in its space.
"""
COPY_LINES = once(
    COPY,
    f"#define {COPY}(count, to, at, taken) \\",
    '  asm volatile("cp.async.ca.shared.global [%0], [%1], " #count ", %2;" \\',
    '    :: "r"((uint)(to)), "l"(at), "r"(taken))',
    f"#define {COPY}_16(to, at, taken) \\",
    '  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" \\',
    '    :: "r"((uint)(to)), "l"(at), "r"(taken))',
    f'#define {COMMIT}() asm volatile("cp.async.commit_group;")',
    f'#define {ARRIVED}(left) asm volatile("cp.async.wait_group " #left ";" ::: "memory")',
)
"""The lines before a kernel that copies ahead."""


# -- rounding ------------------------------------------------------------------------------------
# PoCL's `rint` of a vector is some twenty instructions, its `floor` and `ceil` are a dozen; x86 has
# had one since SSE4.1, Arm since version 8, and clang a function for each since version 14. Other
# compilers, and those for GPUs, whose functions are instructions already, get OpenCL's own.

_ROUNDS = "defined(__clang__) && (defined(__SSE4_1__) || defined(__aarch64__))"
"""Where rounding is an instruction."""


def macro_of(function: ScalarFunction) -> str:
    """The macro that stands for one of these functions."""
    return function.name.upper()


def rounding_lines(body: Iterable[str]) -> list[str]:
    """The lines before a kernel with such a body."""
    text = "\n".join(body)
    entries = [entry for entry in FUNCTIONS.values() if entry.builtin]
    return [line for e in entries if f"{macro_of(e)}(" in text for line in _rounding(e)]


def _rounding(entry: ScalarFunction) -> list[str]:
    """The definition of the macro."""
    macro = macro_of(entry)
    return once(
        macro,
        f"#if {_ROUNDS}",
        f"#if __has_builtin({entry.builtin})",
        f"#define {macro}(x) {entry.builtin}(x)",
        "#endif",
        "#endif",
        f"#ifndef {macro}",
        f"#define {macro}(x) {entry.opencl}(x)",
        "#endif",
    )


# -- extremes of floats ----------------------------------------------------------------------------
# OpenCL's own are undefined for a NaN, and PoCL's return the other operand. x86's instruction
# returns its second operand where either is a NaN: it alone serves for a limit, and with a mask for
# two values.

_EXTREMES = {"max": ("AT_LEAST", "MAXIMUM", "<"), "min": ("AT_MOST", "MINIMUM", ">")}
"""Operator -> the functions of a value and a limit, and of two values, and when the second wins."""


def extreme(op: str, dtype: DType, lanes: int, *, limit: bool) -> str:
    """The name of the function of two values, or of a value and a `limit` that is not a NaN."""
    at_limit, of_two, _ = _EXTREMES[op]
    return f"{at_limit if limit else of_two}_{type_name(dtype, lanes).upper()}"


def extreme_lines(op: str, dtype: DType, lanes: int, *, limit: bool) -> list[str]:
    """Its definition: the extreme, or NaN where a value is one."""
    name, kind = extreme(op, dtype, lanes, limit=limit), type_name(dtype, lanes)
    beyond = _EXTREMES[op][2]
    if limit:
        body = f"return value {beyond} limit ? limit : value;"
        return _function(name, kind, f"const {kind} value, const {kind} limit", body)
    body = f"return b == b ? (a {beyond} b ? b : a) : b;"
    return _function(name, kind, f"const {kind} a, const {kind} b", body)


# -- functions of vectors that are not OpenCL's --------------------------------------------------


def of_vectors(function: ScalarFunction, dtype: DType, lanes: int) -> str:
    """The name of the function of vectors that stands for one of OpenCL C; empty for none."""
    own = function.near > 0 or (function.of_vectors is not None and dtype == FLOAT32)
    return f"{function.name}_{type_name(dtype, lanes)}".upper() if own and lanes > 1 else ""


def of_vectors_lines(function: ScalarFunction, dtype: DType, lanes: int) -> list[str]:
    """Its definition."""
    name, kind = of_vectors(function, dtype, lanes), type_name(dtype, lanes)
    match function.of_vectors:
        case Rational() as entry:
            return _rational_lines(entry, name, kind)
        case Exponential() as entry:
            return _exponential_lines(entry, name, kind, lanes)
        case None:
            pass
    truth = type_name(INT32 if dtype == FLOAT32 else INT64, lanes)
    limit = f"({kind})({function.near!r}f)"
    return _function(  # beyond is rare, and computed for itself
        name,
        kind,
        f"const {kind} value",
        f"const {truth} near = fabs(value) < {limit};",
        f"const {kind} found = {function.opencl}(near ? value : ({kind})(0.0f));",
        "if (all(near))",
        "  return found;",
        f"return near ? found : {function.opencl}(near ? {limit} : value);",
    )


def _rational_lines(entry: Rational, name: str, kind: str) -> list[str]:
    """Comparisons are false for a NaN, which so stays one."""
    low, high = (f"({kind})({sign}{entry.limit!r}f)" for sign in ("-", ""))
    p, q = _polynomial("sum", entry.p, kind), _polynomial("below", entry.q, kind)
    return _function(
        name,
        kind,
        f"const {kind} value",
        f"const {kind} least = value < {low} ? {low} : value;",
        f"const {kind} x = least > {high} ? {high} : least, t = x * x, t2 = t * t;",
        *p,
        *q,
        f"const {kind} found = x * sum / below, one = ({kind})(1.0f);",
        "return found > one ? one : found < -one ? -one : found;",
    )


def _exponential_lines(entry: Exponential, name: str, kind: str, lanes: int) -> list[str]:
    """Where rounding is an instruction, see above; elsewhere, as on GPUs, exp is one or a few."""
    whole = type_name(INT32, lanes)
    rounded = macro_of(FUNCTIONS["round"])
    least, most = (f"({kind})({limit!r}f)" for limit in (entry.least, entry.most))
    own = _function(
        name,
        kind,
        f"const {kind} value",
        f"const {kind} n = {rounded}(value * {1 / log(2)!r}f);",
        f"const {kind} t = fma(n, ({kind})(-{log(2)!r}f), value), t2 = t * t;",
        *_polynomial("sum", entry.coefficients, kind),
        f"const {kind} found = as_{kind}(as_{whole}(sum) + (convert_{whole}(n) << 23));",
        f"const {kind} large = value > {most} ? ({kind})(INFINITY) : found;",
        f"return value < {least} ? ({kind})(0.0f) : large;",
    )
    other = once(name, f"#define {name} exp")
    return [*_rounding(FUNCTIONS["round"]), f"#if {_ROUNDS}", *own, "#endif", *other]


def _polynomial(name: str, coefficients: Sequence[float], kind: str) -> list[str]:
    """Statements that make it, in t and t2 = t * t: Horner's rule over pairs of coefficients, in
    which half as many operations wait for each other."""
    texts = [f"({kind})({c!r}f)" for c in coefficients]
    odd = texts[len(texts) & ~1 :]
    pairs = [f"fma({b}, t, {a})" for a, b in zip(texts[::2], texts[1::2], strict=False)]
    *others, value = [*pairs, *odd]
    return [
        f"{kind} {name} = {value};",
        *(f"{name} = fma({name}, t2, {pair});" for pair in others[::-1]),
    ]


# -- tables of 256 bytes, read at sixteen indices at once ----------------------------------------
# AVX-512 holds a table in four registers and takes a word of 16 bits from two of them for each
# lane; one for each byte then is one of two words, and half of it. Elsewhere each lane reads its
# own byte.

LOOKUP = f"lookup_{TABLE_LANES}"


def _quarter(number: int) -> str:
    """64 bytes of the table; `vload16` asks for no more than four bytes' alignment."""
    return f"__builtin_astype(vload16({number}, (__global const int*)table), words)"


def _half(first: int) -> str:
    """The words at these indices of 128 bytes of the table."""
    quarters = f"{_quarter(first)}, number, {_quarter(first + 1)}"
    return f"__builtin_astype(__builtin_ia32_vpermi2varhi512({quarters}), int16)"


_BYTES = ", ".join(f"table[places.s{n:x}]" for n in range(TABLE_LANES))
_LOOKUP_LINES = once(
    LOOKUP.upper(),
    f"#define {LOOKUP.upper()}",
    f"static uchar16 {LOOKUP}(__global const uchar* table, const int16 places) {{",
    "#ifdef __AVX512BW__",
    "  typedef short words __attribute__((__vector_size__(64)));",
    "  const words number = __builtin_astype(places >> 1, words);",
    f"  const int16 low = {_half(0)};",
    f"  const int16 high = {_half(2)};",
    "  const int16 word = places < 128 ? low : high;",
    "  return convert_uchar16((word >> ((places & 1) << 3)) & 255);",
    "#else",
    f"  return (uchar16)({_BYTES});",
    "#endif",
    "}",
)


# -- floats of packed bits ------------------------------------------------------------------------
# NVIDIA's GPUs convert fewer integers in a cycle than they do operations on bits, or on floats. A
# few bits, as the low ones of 2**23, are a float already, which one operation scales; those that
# lie too high for that are all shifted by as much, once for a word.

FLOAT_OF_BITS = "FLOAT_OF_BITS"
"""The macro, of a float type, words, a shift and a mask of at most a byte, that makes floats of
these bits. It is exact."""

_FLOAT_OF_BITS_LINES = once(
    FLOAT_OF_BITS,
    "#ifdef __NV_CL_C_VERSION",
    "#define BITS_BACK(shift, mask) (((uint)(mask) << (shift)) > 0x7fffffu ? 9 : 0)",
    f"#define {FLOAT_OF_BITS}(type, words, shift, mask) \\",
    "  fma(as_##type((((words) >> BITS_BACK(shift, mask)) \\",
    "      & ((mask) << ((shift) - BITS_BACK(shift, mask)))) | 0x4b000000), \\",
    "    (type)(1.0f / (1 << ((shift) - BITS_BACK(shift, mask)))), \\",
    "    (type)(-8388608.0f / (1 << ((shift) - BITS_BACK(shift, mask)))))",
    "#else",
    f"#define {FLOAT_OF_BITS}(type, words, shift, mask) \\",
    "  convert_##type(((words) >> (shift)) & (mask))",
    "#endif",
)

# -- barriers of a warp ---------------------------------------------------------------------------

WARP_BARRIER = "WARP_BARRIER"
"""The macro by which the items of a warp wait for each other, and may for all of their group."""

_WARP_BARRIER_LINES = once(
    WARP_BARRIER,
    "#ifdef __NV_CL_C_VERSION",
    f'#define {WARP_BARRIER}() asm volatile("bar.warp.sync 0xffffffff;" ::: "memory")',
    "#else",
    f"#define {WARP_BARRIER}() barrier(CLK_LOCAL_MEM_FENCE)",
    "#endif",
)


ASKED = "READS_ASKED"
"""The macro that no read is moved across. NVIDIA's compiler keeps them before what a warp waits at;
the items that come to it together go on at once."""

_ASKED_LINES = once(
    ASKED,
    "#ifdef __NV_CL_C_VERSION",
    f"#define {ASKED}() {{ \\",
    "  uint items; \\",
    '  asm volatile("activemask.b32 %0;" : "=r"(items)); \\',
    '  asm volatile("bar.warp.sync %0;" :: "r"(items) : "memory"); }',
    "#else",
    f"#define {ASKED}()",
    "#endif",
)


_NAMED = {
    ASKED: _ASKED_LINES,
    LOOKUP: _LOOKUP_LINES,
    FLOAT_OF_BITS: _FLOAT_OF_BITS_LINES,
    WARP_BARRIER: _WARP_BARRIER_LINES,
}


def named_lines(body: Sequence[str]) -> list[str]:
    """The lines before a kernel with such a body: those of the macros that it names."""
    named = [n for n in _NAMED if any(f"{n}(" in line for line in body)]
    return [line for name in named for line in _NAMED[name]]


# -- vectors of float16 --------------------------------------------------------------------------
# NVIDIA's compiler reads and writes the elements of `vloada_half4` and the like one by one (H200:
# 3.7 TB/s in fours, 1.0 in eights); read as words and converted in registers, they come at once
# (3.7 and 4.0 TB/s).

_WORDS_OF_HALVES = {2: "uint", 4: "uint2", 8: "uint4"}
"""Lanes -> the type of words that hold so many float16."""


def halves_loader(lanes: int) -> str:
    """The macro, of an address space and a pointer, that makes float32 of aligned float16."""
    return f"LOAD_HALVES_{lanes}"


def halves_storer(lanes: int) -> str:
    """The macro, of an address space, a pointer and a vector, that rounds to aligned float16."""
    return f"STORE_HALVES_{lanes}"


def halves_loader_lines(lanes: int) -> list[str]:
    """Its definition."""
    name, plain = halves_loader(lanes), f"vloada_half{lanes}(0, at)"
    return once(
        name,
        *_in_words(
            lanes,
            [
                f"static float{lanes} {name.lower()}(const WORDS words) {{",
                f"  return vload_half{lanes}(0, (const half*)&words);",
                "}",
                f"#define {name}(space, at) {name.lower()}(*(const space WORDS*)(at))",
            ],
            [f"#define {name}(space, at) {plain}"],
        ),
    )


def halves_storer_lines(lanes: int) -> list[str]:
    """Its definition."""
    name, plain = halves_storer(lanes), f"vstorea_half{lanes}(value, 0, at)"
    return once(
        name,
        *_in_words(
            lanes,
            [
                f"static WORDS {name.lower()}(const float{lanes} value) {{",
                "  WORDS words;",
                f"  vstore_half{lanes}(value, 0, (half*)&words);",
                "  return words;",
                "}",
                f"#define {name}(space, at, value) *(space WORDS*)(at) = {name.lower()}(value)",
            ],
            [f"#define {name}(space, at, value) {plain}"],
        ),
    )


def _in_words(lanes: int, words: Sequence[str], plain: Sequence[str]) -> list[str]:
    """Lines for NVIDIA's compiler, and those for others."""
    if lanes not in _WORDS_OF_HALVES:
        return [*plain]
    kind = _WORDS_OF_HALVES[lanes]
    own = (line.replace("WORDS", kind) for line in words)
    return ["#ifdef __NV_CL_C_VERSION", *own, "#else", *plain, "#endif"]


# -- vectors of 16-bit elements --------------------------------------------------------------------
# PoCL's `vload` and `vstore` of them take parts of a vector: loads are four, stores one for each
# element. Through a pointer to vectors that may start at any element they are one instruction.


def short_vectors(kind: str) -> tuple[str, str]:
    """The macros that load and store a vector of that type.

    They take the address space and the address; the second one takes the value, too.
    """
    return f"LOAD_{kind.upper()}", f"STORE_{kind.upper()}"


def short_vector_lines(kind: str, lanes: int) -> list[str]:
    """Their definitions."""
    load, store = short_vectors(kind)
    return once(
        load,
        "#ifdef __clang__",
        f"typedef {kind} loose_{kind} __attribute__((aligned(2)));",
        f"#define {load}(space, at) (*(const space loose_{kind}*)(at))",
        f"#define {store}(space, at, value) *(space loose_{kind}*)(at) = value",
        "#else",
        f"#define {load}(space, at) vload{lanes}(0, at)",
        f"#define {store}(space, at, value) vstore{lanes}(value, 0, at)",
        "#endif",
    )


# -- floats that OpenCL lacks ----------------------------------------------------------------------
# The text follows from the bits of exponent and mantissa, for one element and for vectors.

_INFINITY, _NAN = 0x7F800000, 0x7FC00000
"""Bits of a float32."""


def loader(dtype: DType, lanes: int) -> str:
    """What the function is called that makes float32 of so many elements."""
    return f"FROM_{dtype.upper()}_{lanes}"


def storer(dtype: DType, lanes: int) -> str:
    """The same of the function that rounds them."""
    return f"TO_{dtype.upper()}_{lanes}"


def has_range_of_float32(dtype: DType) -> bool:
    """Whether its elements are the upper bits of a float32."""
    return dtype.exponent == FLOAT32.exponent and dtype.specials == FLOAT32.specials


def loader_lines(dtype: DType, lanes: int) -> list[str]:
    """The function that makes float32 of elements, exactly; a NaN stays one."""
    n = str(lanes) if lanes > 1 else ""
    mantissa = dtype.mantissa
    shift, sign, least = FLOAT32.mantissa - mantissa, dtype.bits - 1, 1 - dtype.bias - mantissa
    match dtype.specials:
        case "ieee":
            top = ((1 << dtype.exponent) - 1) << mantissa
            special = f"size >= {top:#x}u ? (size << {shift}) | {_INFINITY:#x}u"
        case "fn":
            special = f"size == {(1 << sign) - 1:#x}u ? (uint{n})({_NAN:#x}u)"
        case "fnuz":
            special = f"bits == {1 << sign:#x}u ? (uint{n})({_NAN:#x}u)"
    return _function(
        loader(dtype, lanes),
        f"float{n}",
        f"const {type_name(dtype, lanes)} value",
        f"const uint{n} bits = convert_uint{n}(value);",
        f"const uint{n} size = bits & {(1 << sign) - 1:#x}u;",
        f"const uint{n} normal = (size << {shift}) + {_moved(dtype):#x}u;",
        f"const uint{n} small = as_uint{n}(convert_float{n}(size) * {float(2.0**least).hex()}f);",
        f"const uint{n} number = size < {1 << mantissa:#x}u ? small : normal;",
        f"const uint{n} found = {special} : number;",
        f"return as_float{n}(found | ((bits >> {sign}) << 31));",
    )


def storer_lines(dtype: DType, lanes: int) -> list[str]:
    """The function that rounds float32 to the nearest, halves to even; a NaN stays one.

    What is too large is infinite, or a NaN where nothing is. Between the least numbers, addition of
    a float32 whose last bit weighs as much as theirs rounds.
    """
    if has_range_of_float32(dtype):
        return _upper_half_lines(dtype, lanes)
    n = str(lanes) if lanes > 1 else ""
    mantissa = dtype.mantissa
    shift, sign = FLOAT32.mantissa - mantissa, dtype.bits - 1
    last = 1 - dtype.bias - mantissa + FLOAT32.mantissa
    normal = (
        f"const uint{n} normal = (moved + {(1 << (shift - 1)) - 1:#x}u + "
        f"((moved >> {shift}) & 1u)) >> {shift};"
    )
    largest = (1 << sign) - 1
    top = ((1 << dtype.exponent) - 1) << mantissa
    signed = f"(bits >> 31) << {sign}"
    match dtype.specials:
        case "ieee":
            nan, limited = top | 1 << (mantissa - 1), f"min(number, (uint{n})({top:#x}u))"
        case "fn":
            nan, limited = largest, f"min(number, (uint{n})({largest:#x}u))"
        case "fnuz":
            nan = largest + 1
            limited = f"number > {largest:#x}u ? (uint{n})({nan:#x}u) : number"
            signed = f"(found == 0u || found == {nan:#x}u ? (uint{n})(0u) : ({signed}))"
    small = [
        f"const uint{n} small = as_uint{n}(as_float{n}(size) + {float(2.0**last).hex()}f) - "
        f"{(last + FLOAT32.bias) << FLOAT32.mantissa:#x}u;",
        f"const uint{n} number = size < {_moved(dtype) + (1 << FLOAT32.mantissa):#x}u ? small : "
        "normal;",
    ]
    return _function(
        storer(dtype, lanes),
        type_name(dtype, lanes),
        f"const float{n} value",
        f"const uint{n} bits = as_uint{n}(value);",
        f"const uint{n} size = bits & 0x7fffffffu;",
        f"const uint{n} moved = size - {_moved(dtype):#x}u;",
        normal,
        *small,
        f"const uint{n} finite = {limited};",
        f"const uint{n} found = size > {_INFINITY:#x}u ? (uint{n})({nan:#x}u) : finite;",
        f"return convert_{type_name(dtype, lanes)}(found | ({signed}));",
    )


def rounding_instruction_lines(dtype: DType, lanes: int) -> list[str]:
    """The same of bfloat16 by an instruction, which takes the least numbers of float32 for zero.

    As assembly, which compilers take for processors that they do not know, or misname.

    Source: Intel's Instruction Set Reference, VCVTNEPS2BF16.
    """
    kind, size = type_name(dtype, lanes), 2 * lanes
    return _function(
        storer(dtype, lanes),
        kind,
        f"const float{lanes} value",
        f"typedef float wide __attribute__((__vector_size__({2 * size})));",
        f"typedef int made __attribute__((__vector_size__({size})));",
        "const wide x = __builtin_astype(value, wide);",
        "made y;",
        '__asm__("vcvtneps2bf16 %1, %0" : "=v"(y) : "v"(x));',
        f"return __builtin_astype(y, {kind});",
    )


def _upper_half_lines(dtype: DType, lanes: int) -> list[str]:
    """The same of the upper bits of a float32: what rounding carries goes to the exponent."""
    n, shift = str(lanes) if lanes > 1 else "", FLOAT32.mantissa - dtype.mantissa
    below = (1 << (shift - 1)) - 1
    return _function(
        storer(dtype, lanes),
        type_name(dtype, lanes),
        f"const float{n} value",
        f"const uint{n} bits = as_uint{n}(value), upper = bits >> {shift};",
        f"const uint{n} rounded = (bits + {below:#x}u + (upper & 1u)) >> {shift};",
        f"const uint{n} nan = upper | {1 << (dtype.mantissa - 1):#x}u;",
        f"return convert_{type_name(dtype, lanes)}(",
        f"    (bits & 0x7fffffffu) > {_INFINITY:#x}u ? nan : rounded);",
    )


def _moved(dtype: DType) -> int:
    """What the exponent in a float32 is greater by, at its bits."""
    return (FLOAT32.bias - dtype.bias) << FLOAT32.mantissa


def _function(name: str, made: str, parameters: str, *body: str) -> list[str]:
    """The function of that name in lower case, whose value is of the type `made`."""
    return once(
        name,
        f"#define {name} {name.lower()}",
        f"static {made} {name}({parameters}) {{",
        *(f"  {line}" for line in body),
        "}",
    )
