"""attention: softmax of scaled products of queries and keys, times values, as one kernel.

    out[i, e] = sum over j of softmax over j of (scale * sum over d of q[i, d] * k[j, d]
                                                 + bias[i, j])[i, j] * v[j, e]

A work-group makes some rows of one head. It goes over the keys in steps and holds a maximum, a sum
and a row of results for each query, which shrink when the maximum grows (the online softmax), so
that no scores are stored. With `causal`, query i sees keys up to i + `last` alone. A query that
sees none makes NaN.

Warps have sixteen rows, or a few times as many; some of them share these and take turns with the
keys (`parts`). Keys and values go through local memory, `keys` of each part at a time. Products are
those of mma.sync, whose sums of scores are the first operand of the next product as they lie in
registers. It multiplies 16-bit floats, or float32 rounded to TF32.

Sources: Milakov and Gimelshein, "Online normalizer calculation for softmax" (2018); Dao,
"FlashAttention-2" (2023); PTX ISA, mma.sync.m16n8k16 and .m16n8k8, ldmatrix, cp.async, shfl.sync.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, TF32, DType
from retune.core.target import WARP

MMA, PLAIN = "attention.mma", "attention.plain"
"""Names of the texts: the first one is among what a device may offer, the other needs nothing."""
ROWS = 16
"""Of the first operand of mma.sync."""
CHUNK_BYTES = 16
"""What operands are copied by."""
_STEP_BYTES = 32
"""Of an operand's row that mma.sync multiplies at once."""
_LOG2E = "1.44269504f"
_MMA = {
    FLOAT16: "m16n8k16.row.col.f32.f16.f16.f32",
    BFLOAT16: "m16n8k16.row.col.f32.bf16.bf16.f32",
    FLOAT32: "m16n8k8.row.col.f32.tf32.tf32.f32",
}
"""Type of the operands -> the instruction; those of float32 are rounded to TF32."""
_PAIRS = {FLOAT16: "f16", BFLOAT16: "bf16"}
"""Types of which a word holds two."""
_HALF = 1 << (FLOAT32.mantissa - TF32.mantissa - 1)
"""Of the last bit that is read of a float32."""


@dataclass(frozen=True, slots=True, order=True)
class AttentionTile:
    """What a work-group makes, and how."""

    warps: int
    """Warps with rows of their own."""
    tiles: int
    """Sixteens of rows of a warp."""
    parts: int
    """Warps that share rows: each takes other keys."""
    keys: int
    """Keys of a part at a time."""
    stages: int
    """1: items wait for keys and values; 2: the next ones are copied meanwhile."""

    @staticmethod
    def of(text: str) -> "AttentionTile":
        """The tile of that text, see `str`."""
        return AttentionTile(*map(int, text.split(".")))

    def __str__(self) -> str:
        return ".".join(map(str, self.sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """All that states it, in order."""
        return astuple(self)

    @property
    def rows(self) -> int:
        """Rows of results of a work-group."""
        return ROWS * self.warps * self.tiles

    @property
    def items(self) -> int:
        """Work-items of a work-group."""
        return WARP * self.warps * self.parts

    @property
    def step(self) -> int:
        """Keys of a work-group at a time."""
        return self.keys * self.parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One function: the types and extents that its text depends on."""

    dtype: DType
    """Of queries, keys and values."""
    made: DType
    """Of results."""
    bias: DType | None
    """Of what is added to scores; None: nothing is."""
    width: int
    """Elements of a query and of a key."""
    values: int
    """Elements of a value."""
    causal: bool
    tile: AttentionTile

    @property
    def name(self) -> str:
        """The name of the function, unique among those of other texts."""
        kinds = (self.dtype, self.made, *([self.bias] if self.bias else []))
        sizes = (self.width, self.values, *self.tile.sizes)
        parts = ("attention", *kinds, *(["causal"] if self.causal else []), *sizes)
        return "_".join(map(str, parts))

    @property
    def depth(self) -> int:
        """Elements of a row that the instruction multiplies at once."""
        return _STEP_BYTES // self.dtype.itemsize

    @property
    def chunk(self) -> int:
        """Elements that are copied at once."""
        return CHUNK_BYTES // self.dtype.itemsize

    def pitch(self, elements: int) -> int:
        """Bytes from one row in local memory to the next. Rows lie sixteen bytes further apart than
        they are long, so that what is read at once of several rows is in different banks."""
        return self.dtype.itemsize * elements + CHUNK_BYTES

    @property
    def stage_bytes(self) -> int:
        """Local memory of keys and values of one step."""
        return self.tile.step * (self.pitch(self.width) + self.pitch(self.values))

    @property
    def local_bytes(self) -> int:
        """Local memory of a work-group: at last it holds what parts add up."""
        t = self.tile
        summed = (t.parts - 1) * t.warps * t.tiles * (self.values // 2 + 4) * WARP * 4
        return max(t.stages * self.stage_bytes, summed)


PARAMETERS = (
    *("rows", "keys", "last"),
    *("q_row", "k_row", "v_row", "out_row", "bias_row", "bias_key"),
)
"""Integers that a function takes behind its pointers, before the scale: how many queries there are
from the group's first one on, and keys; the last key that the first query sees; elements between
rows, and between elements of the bias in a row."""


def attention_lines(a: Attention, kinds: Sequence[str], text: str) -> list[str]:
    """The function's definition in OpenCL C by one of the texts. `kinds` are the names of the
    types of operands, results and bias in memory."""
    kind, made, bias = kinds
    pointers = [f"__global const {kind}* {x}" for x in "qkv"]
    pointers += [f"__global {made}* out", f"__global const {bias}* bias"]
    given = ", ".join(
        [
            *pointers,
            *(f"const int {p}" for p in PARAMETERS),
            "const float scale",
            "__local int* held",
        ]
    )
    lines = _mma_lines(a) if text == MMA else _plain_lines(a)
    own = "const int item, const int group"
    return [f"static void {a.name}({given}, {own}) {{", *_in(lines), "}"]


def _in(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _read(dtype: DType, pointer: str, index: str) -> str:
    """An element of memory as a float32."""
    if dtype == FLOAT16:
        return f"vload_half({index}, {pointer})"
    if dtype == BFLOAT16:
        return f"as_float((uint){pointer}[{index}] << 16)"
    return f"{pointer}[{index}]"


def _each(name: str, count: int | str, *lines: str) -> list[str]:
    """A loop that is written out."""
    head = f"for (int {name} = 0; {name} < {count}; ++{name})"
    return ["#pragma unroll", head + " {", *_in(lines), "}"]


# -- any device ------------------------------------------------------------------------------------


def _plain_lines(a: Attention) -> list[str]:
    """Each item makes rows for itself."""
    seen = "min(keys, row + last + 1)" if a.causal else "keys"
    bias = f" + {_read(a.bias, 'bias', 'row * bias_row + j * bias_key')}" if a.bias else ""
    query = _read(a.dtype, "q", "row * q_row + d")
    return [
        f"const int end = min(rows, {a.tile.rows});",
        f"for (int row = item; row < end; row += {a.tile.items}) {{",
        f"  float most = -INFINITY, sum = 0.0f, o[{a.values}];",
        f"  for (int e = 0; e < {a.values}; ++e) o[e] = 0.0f;",
        f"  for (int j = 0; j < {seen}; ++j) {{",
        "    float s = 0.0f;",
        f"    for (int d = 0; d < {a.width}; ++d)",
        f"      s += {query} * {_read(a.dtype, 'k', 'j * k_row + d')};",
        f"    s = s * scale{bias};",
        "    const float next = fmax(most, s), from = isinf(next) ? 0.0f : next;",
        "    const float shrunk = exp(most - from), p = exp(s - from);",
        "    most = next, sum = sum * shrunk + p;",
        f"    for (int e = 0; e < {a.values}; ++e)",
        f"      o[e] = o[e] * shrunk + p * {_read(a.dtype, 'v', 'j * v_row + e')};",
        "  }",
        f"  for (int e = 0; e < {a.values}; ++e) {{",
        "    const float x = o[e] / sum;",
        f"    {_plain_store(a.made)}",
        "  }",
        "}",
    ]


def _plain_store(made: DType) -> str:
    if made == FLOAT16:
        return "vstore_half(x, row * out_row + e, out);"
    if made == BFLOAT16:
        bits = "as_uint(x) + 0x7fff + (as_uint(x) >> 16 & 1)"
        return f"out[row * out_row + e] = isnan(x) ? 0x7fc0 : ({bits}) >> 16;"
    return "out[row * out_row + e] = x;"


# -- warps that multiply matrices ------------------------------------------------------------------


def _mma_lines(a: Attention) -> list[str]:
    t, deep, wide = a.tile, a.width // a.depth, a.values // 8
    last = [f"const int limit = min(keys, {t.rows} + last);"]
    return [
        f"const int lane = item % {WARP}, warp = item / {WARP};",
        f"const int g = lane / 4, t = lane % 4, part = warp / {t.warps};",
        f"const int top = warp % {t.warps} * {ROWS * t.tiles};",
        *(last if a.causal else ["const int limit = keys;"]),
        f"const int steps = (limit + {t.step - 1}) / {t.step};",
        f"uint qs[{t.tiles}][{deep}][4];",
        f"float o[{t.tiles}][{wide}][4], most[{t.tiles}][2], sum[{t.tiles}][2];",
        *_each("m", t.tiles, *_start(a)),
        *_offsets(a),
        *_loop(a),
        *_sums(a),
        *(_added_up(a) if t.parts > 1 else []),
        *_stored(a),
    ]


def _start(a: Attention) -> list[str]:
    """Queries are in registers throughout."""
    words = 4 // a.dtype.itemsize
    at = f"q + row * q_row + {a.depth} * d + {words} * (t + x / 2 * 4)"
    read = _each(
        "x",
        4,
        "const int row = min(top + 16 * m + g + x % 2 * 8, rows - 1);",
        f"qs[m][d][x] = {_word(a, f'*(__global const uint*)({at})')};",
    )
    return [
        *_each("d", a.width // a.depth, *read),
        *_each("e", a.values // 8, *_each("x", 4, "o[m][e][x] = 0.0f;")),
        "most[m][0] = most[m][1] = -INFINITY, sum[m][0] = sum[m][1] = 0.0f;",
    ]


def _offsets(a: Attention) -> list[str]:
    """Where a lane's row of what ldmatrix reads starts in local memory, in bytes."""
    keys, values = a.pitch(a.width), a.pitch(a.values)
    row, start = f"part * {a.tile.keys} + lane % 8", a.tile.step * keys
    key = f"const uint k_at = (uint)held + ({row} + lane / 16 * 8) * {keys} + lane / 8 % 2 * 16;"
    if a.dtype not in _PAIRS:
        offset = f"(part * {a.tile.keys} + 2 * t) * {values} + g * 4"
        return [key, f"__local const char* v_at = (__local const char*)held + {start} + {offset};"]
    return [
        key,
        f"const uint v_at = (uint)held + {start} + ({row} + lane / 8 % 2 * 8)"
        f" * {values} + lane / 16 * 16;",
    ]


def _loop(a: Attention) -> list[str]:
    wait = 'asm volatile("cp.async.wait_group 0;" ::: "memory");'
    barrier = _wait(a)
    if a.tile.stages == 1:
        ends = [*_copied(a, "n", "0"), wait, barrier]
        body = [barrier, *ends, *_step(a, "0")]
        return ["for (int n = 0; n < steps; ++n) {", *_in(body), "}"]
    ahead = ["if (n + 1 < steps) {", *_in(_copied(a, "(n + 1)", f"(n + 1) % 2 * {a.stage_bytes}"))]
    body = [wait, barrier, *ahead, "}", *_step(a, f"n % 2 * {a.stage_bytes}")]
    return [*_copied(a, "0", "0"), "for (int n = 0; n < steps; ++n) {", *_in(body), "}"]


def _wait(a: Attention) -> str:
    """A barrier of the group's items alone: a larger group may run several such groups at once."""
    given = f'"r"(group), "n"({a.tile.items})'
    return f'asm volatile("bar.sync %0, %1;" :: {given} : "memory");'


def _copied(a: Attention, step: str, at: str) -> list[str]:
    """Copies of keys and values of a step into local memory; zeros behind the last ones."""
    t, lines = a.tile, list[str]()
    start = 0
    for name, elements in (("k", a.width), ("v", a.values)):
        chunks = elements // a.chunk
        count = t.step * chunks
        copy = [
            f"const int c = item + x * {t.items}, j = {step} * {t.step} + c / {chunks};",
            f"const uint to = (uint)held + {at} + {start} + c / {chunks} * {a.pitch(elements)}"
            f" + c % {chunks} * 16;",
            f"__global const void* from = {name} + min(j, keys - 1) * {name}_row"
            f" + c % {chunks} * {a.chunk};",
            'asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"',
            '    :: "r"(to), "l"(from), "r"(j < keys ? 16 : 0));',
        ]
        whole = count % t.items == 0
        body = copy if whole else [copy[0], f"if (c < {count}) {{", *_in(copy[1:]), "}"]
        lines += _each("x", -(-count // t.items), *body)
        start = t.step * a.pitch(a.width)
    return [*lines, 'asm volatile("cp.async.commit_group;" ::: "memory");']


def _step(a: Attention, at: str) -> list[str]:
    """One step over keys: scores, their softmax so far, and sums of values."""
    t = a.tile
    return [
        f"const int j0 = n * {t.step} + part * {t.keys};",
        f"float s[{t.tiles}][{t.keys // 8}][4];",
        *_each("m", t.tiles, *_each("j", t.keys // 8, *_each("x", 4, "s[m][j][x] = 0.0f;"))),
        *_scores(a, at),
        *_softmax(a),
        *_values(a, at),
    ]


def _product(a: Attention, sums: str, first: str, second: tuple[str, str]) -> list[str]:
    return [
        f'asm("mma.sync.aligned.{_MMA[a.dtype]} "',
        '    "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"',
        f"    : {', '.join(f'{chr(34)}+f{chr(34)}({sums}[{x}])' for x in range(4))}",
        f"    : {', '.join(f'{chr(34)}r{chr(34)}({first}[{x}])' for x in range(4))}, "
        + ", ".join(f'"r"({word})' for word in second)
        + ");",
    ]


def _matrices(at: str, *, turned: bool) -> list[str]:
    """Four matrices of 8 x 8 from local memory, as second operands of two products."""
    how = "x4.trans" if turned else "x4"
    return [
        "uint b0, b1, b2, b3;",
        f'asm volatile("ldmatrix.sync.aligned.m8n8.{how}.shared.b16 {{%0, %1, %2, %3}}, [%4];"',
        f'    : "=r"(b0), "=r"(b1), "=r"(b2), "=r"(b3) : "r"({at}));',
    ]


def _word(a: Attention, word: str) -> str:
    """What the instruction reads of a word: of float32 the upper 19 bits, so that half of what is
    left out is added before."""
    return word if a.dtype in _PAIRS else f"{word} + {_HALF:#x}u"


def _scores(a: Attention, at: str) -> list[str]:
    t, pitch = a.tile, a.pitch(a.width)
    first, second, third, fourth = (_word(a, f"b{n}") for n in range(4))
    products = [
        *_product(a, "s[m][2 * j]", "qs[m][d]", (first, second)),
        *_product(a, "s[m][2 * j + 1]", "qs[m][d]", (third, fourth)),
    ]
    read = _matrices(f"k_at + {at} + j * {16 * pitch} + d * 32", turned=False)
    inner = _each("j", t.keys // 16, *read, *_each("m", t.tiles, *products))
    return _each("d", a.width // a.depth, *inner)


def _softmax(a: Attention) -> list[str]:
    """Scores become exponentials; maxima, sums and results so far go with them."""
    t = a.tile
    hidden = f"j0 + {t.keys} > keys"
    unseen = "col >= keys"
    if a.causal:
        hidden += f" || j0 + {t.keys - 1} > top + last"
        unseen += " || col > row + last"
    offsets = [
        "const int row = top + 16 * m + g + x / 2 * 8, col = j0 + 8 * j + 2 * t + x % 2;",
    ]
    added = _read(
        a.bias or FLOAT32, "bias", "min(row, rows - 1) * bias_row + min(col, keys - 1) * bias_key"
    )
    biased = _each_score(a, *offsets, f"s[m][j][x] = (s[m][j][x] * scale + {added}) * {_LOG2E};")
    masked = _each_score(a, *offsets, f"if ({unseen}) s[m][j][x] = -INFINITY;")
    return [
        *(biased if a.bias else []),
        f"if ({hidden}) {{",
        *_in(masked),
        "}",
        f"const float factor = {_factor(a)};",
        *_each("m", t.tiles, *_each("r", 2, *_row(a))),
    ]


def _each_score(a: Attention, *lines: str) -> list[str]:
    inner = _each("j", a.tile.keys // 8, *_each("x", 4, *lines))
    return _each("m", a.tile.tiles, *inner)


def _row(a: Attention) -> list[str]:
    """The row r of tile m, which four neighbouring lanes share."""
    at = "s[m][j][2 * r{}]"
    first, second = at.format(""), at.format(" + 1")
    return [
        "float next = most[m][r];",
        *_each("j", a.tile.keys // 8, f"next = fmax(next, fmax({first}, {second}));"),
        *(f"next = fmax(next, {_neighbour('next', n)});" for n in (1, 2)),
        "const float from = next == -INFINITY ? 0.0f : next * factor;",
        "const float shrunk = native_exp2(most[m][r] * factor - from);",
        "float more = 0.0f;",
        *_each(
            "j",
            a.tile.keys // 8,
            f"{first} = native_exp2(fma({first}, factor, -from));",
            f"{second} = native_exp2(fma({second}, factor, -from));",
            f"more += {first} + {second};",
        ),
        "most[m][r] = next, sum[m][r] = sum[m][r] * shrunk + more;",
        *_each("e", a.values // 8, "o[m][e][2 * r] *= shrunk;", "o[m][e][2 * r + 1] *= shrunk;"),
    ]


def _neighbour(value: str, distance: int) -> str:
    return f"ATTENTION_LANE({value}, {distance})"


def _values(a: Attention, at: str) -> list[str]:
    return _values_by_pairs(a, at) if a.dtype in _PAIRS else _values_by_words(a, at)


def _values_by_words(a: Attention, at: str) -> list[str]:
    """Lane t has the keys 2 * t and 2 * t + 1 of eight as the instruction's steps t and t + 4, as
    scores lie; `ldmatrix` turns no words, so that values are read one by one."""
    t, pitch = a.tile, a.pitch(a.values)
    score = _word(a, "as_uint(s[m][j][x / 2 + x % 2 * 2])")
    offset = f"v_at + {at} + (8 * j + y) * {pitch} + e * 32"
    word = _word(a, f"*(__local const uint*)({offset})")
    inner = _each(
        "e",
        a.values // 8,
        "uint b[2];",
        *_each("y", 2, f"b[y] = {word};"),
        *_each("m", t.tiles, *_product(a, "o[m][e]", "ps[m]", ("b[0]", "b[1]"))),
    )
    scores = _each("m", t.tiles, *_each("x", 4, f"ps[m][x] = {score};"))
    return _each("j", t.keys // 8, f"uint ps[{t.tiles}][4];", *scores, *inner)


def _values_by_pairs(a: Attention, at: str) -> list[str]:
    t, pitch = a.tile, a.pitch(a.values)
    scores = [[f"s[m][2 * j + {x // 2}][{x % 2 * 2 + y}]" for y in (0, 1)] for x in range(4)]
    rounded = [f"ps[m][{x}] = {_pair(a.dtype, *pair)};" for x, pair in enumerate(scores)]
    products = [
        *_product(a, "o[m][2 * e]", "ps[m]", ("b0", "b1")),
        *_product(a, "o[m][2 * e + 1]", "ps[m]", ("b2", "b3")),
    ]
    read = _matrices(f"v_at + {at} + j * {16 * pitch} + e * 32", turned=True)
    inner = _each("e", a.values // 16, *read, *_each("m", t.tiles, *products))
    return _each(
        "j", t.keys // 16, f"uint ps[{t.tiles}][4];", *_each("m", t.tiles, *rounded), *inner
    )


def _pair(dtype: DType, low: str, high: str) -> str:
    """Two floats as a word of two small ones."""
    return f"ATTENTION_{str(dtype).upper()}({low}, {high})"


def _sums(a: Attention) -> list[str]:
    shared = (f"sum[m][r] += {_neighbour('sum[m][r]', n)};" for n in (1, 2))
    return _each("m", a.tile.tiles, *_each("r", 2, *shared))


def _added_up(a: Attention) -> list[str]:
    """The results of all parts together, in the items of the first one."""
    t = a.tile
    return [
        "__local float* sums = (__local float*)held;",
        _wait(a),
        "if (part > 0) {",
        *_in(_each("m", t.tiles, _offset(a, "part - 1"), *_handed_over(a))),
        "}",
        _wait(a),
        "if (part > 0) return;",
        f"for (int p = 0; p < {t.parts - 1}; ++p) {{",
        *_in(_each("m", t.tiles, _offset(a, "p"), *_taken_over(a))),
        "}",
    ]


def _offset(a: Attention, part: str) -> str:
    """Where an item's maxima, sums and results of a part start."""
    t, held = a.tile, a.values // 2 + 4
    rows = f"(({part}) * {t.warps} + warp % {t.warps}) * {t.tiles} + m"
    return f"const int at = ({rows}) * {held * WARP} + lane;"


def _handed_over(a: Attention) -> list[str]:
    most = f"sums[at + r * {WARP}] = most[m][r], sums[at + (2 + r) * {WARP}] = sum[m][r];"
    result = f"sums[at + (4 + 4 * e + x) * {WARP}] = o[m][e][x];"
    return [*_each("r", 2, most), *_each("e", a.values // 8, *_each("x", 4, result))]


def _taken_over(a: Attention) -> list[str]:
    return _each(
        "r",
        2,
        f"const float other = sums[at + r * {WARP}], next = fmax(most[m][r], other);",
        f"const float factor = {_factor(a)};",
        "const float from = next == -INFINITY ? 0.0f : next * factor;",
        "const float own = native_exp2(most[m][r] * factor - from);",
        "const float theirs = native_exp2(other * factor - from);",
        f"sum[m][r] = sum[m][r] * own + sums[at + (2 + r) * {WARP}] * theirs;",
        "most[m][r] = next;",
        *_each(
            "e",
            a.values // 8,
            *_each(
                "x",
                2,
                "o[m][e][2 * r + x] = o[m][e][2 * r + x] * own",
                f"    + sums[at + (4 + 4 * e + 2 * r + x) * {WARP}] * theirs;",
            ),
        ),
    )


def _factor(a: Attention) -> str:
    """What scores are multiplied by in exponents of two: those with a bias were already."""
    return "1.0f" if a.bias else f"scale * {_LOG2E}"


def _stored(a: Attention) -> list[str]:
    low, high = (f"o[m][e][2 * r{x}] * part_of" for x in ("", " + 1"))
    at = "out + row * out_row + 8 * e + 2 * t"
    if a.made == FLOAT32:
        store = f"vstore2((float2)({low}, {high}), 0, {at});"
    else:
        store = f"*(__global uint*)({at}) = {_pair(a.made, low, high)};"
    row = [
        "const int row = top + 16 * m + g + 8 * r;",
        "if (row < rows) {",
        "  const float part_of = 1.0f / sum[m][r];",
        *_in(_each("e", a.values // 8, store)),
        "}",
    ]
    return _each("m", a.tile.tiles, *_each("r", 2, *row))


PRELUDE = (
    "static float ATTENTION_LANE(const float value, const int distance) {",
    "  float found;",
    '  asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"',
    '      : "=f"(found) : "f"(value), "r"(distance));',
    "  return found;",
    "}",
    *(
        line
        for dtype, kind in _PAIRS.items()
        for line in (
            f"static uint ATTENTION_{str(dtype).upper()}(const float low, const float high) {{",
            "  uint found;",
            f'  asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(found) : "f"(high), "f"(low));',
            "  return found;",
            "}",
        )
    ),
)
"""What stands before functions by `MMA`: a lane's value, and conversions of pairs."""
