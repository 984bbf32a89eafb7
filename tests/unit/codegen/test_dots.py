"""Dot products of bytes and of pairs: which loops become instructions, and their text."""

from dataclasses import replace

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import INT7, INT8, INT32, UINT8
from retune.core.errors import CodegenError, ScheduleError
from retune.core.target import GENERIC_CPU
from retune.intrinsics import intrinsic
from retune.ir.expr import cast
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from retune.targets.cpu.space import cpu_space
from tests.support.dags import byte_product, dense, packed_product, pair_product, product_of_bytes
from tests.support.oracle import assert_same_meaning


def tiled(dag: Dag, lanes: int, *, pack: bool = True, dot: str = "dot4") -> Schedule:
    """A tile of three rows by one vector of columns, with dot products inside."""
    s = Schedule(from_dag(dag, "net"))
    out = s.cache_write("y")
    i, j = s.loops(out)
    outer, rows = s.split(i, [3])
    columns, lane = s.split(j, [lanes])
    s.reorder(outer, columns, rows, lane)
    s.compute_at("y", columns)
    s.bind(outer, "group.0")
    far, near = s.split("y.k", [intrinsic(dot).k])
    s.reorder(far, "y.i", "y.j", near)
    s.tensorize(near, dot)
    for loop in ("y.j", lane):
        s.vectorize(loop)
    for loop in ("y.i", rows):
        s.unroll(loop)
    if pack:
        s.pack("w")
    return s


def test_lanes_of_dot_products(golden: object):
    s = tiled(byte_product(6, 32, 48), 16)
    assert f"{s.program}\n\n{lower(s.program, CPU).text}" == golden


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
@pytest.mark.parametrize("first", [INT8, UINT8])
def test_dot_products_keep_the_meaning(lanes: int, first: str):
    dag = byte_product(6, 12, 16, first=first)
    s = tiled(dag, lanes)
    assert_same_meaning(dag, s.program)
    kind = "us" if first == UINT8 else "ss"
    assert f" = dot4_{kind}_{lanes}(" in lower(s.program, CPU).text


def test_products_that_cannot_saturate_take_half_as_many_instructions():
    """Two products of uint8 and int7 fit 16 bits; those of int8 do not."""
    avx2 = replace(CPU, offers=("dot4.avx2_narrow", "dot4.avx2"))
    for first, second, name, way in (
        (UINT8, INT7, "un", "avx2_narrow"),
        (UINT8, INT8, "us", "avx2"),
        (INT8, INT7, "sn", "avx2"),
    ):
        s = tiled(byte_product(6, 12, 16, first=first, second=second), 8)
        assert_same_meaning(byte_product(6, 12, 16, first=first, second=second), s.program)
        text = lower(s.program, avx2).text
        assert f"// dot4.{way}\nstatic int8 dot4_{name}_8(" in text


def test_the_instructions_of_arm(golden: object):
    """Signed and unsigned bytes have each their own, of which a processor may lack one."""
    found: list[str] = []
    for first, way, other in ((INT8, "sdot", "usdot"), (UINT8, "usdot", "sdot")):
        s = tiled(byte_product(6, 12, 16, first=first), 4)
        text = lower(s.program, replace(CPU, offers=("dot4.usdot", "dot4.sdot"))).text
        found.append(text[: text.index("#endif")])
        assert f"// dot4.{way}\n" in text
        assert "// dot4.plain\n" in lower(s.program, replace(CPU, offers=(f"dot4.{other}",))).text
    assert "".join(found) == golden


def test_pairs(golden: object):
    """Each implementation's function, and a kernel of one of them."""
    found: list[str] = []
    for lanes, way in ((16, "avx512"), (4, "bfdot"), (16, "plain")):
        s = tiled(pair_product(6, 8, 16), lanes, dot="dot2")
        assert_same_meaning(pair_product(6, 8, 16), s.program)
        text = lower(s.program, replace(CPU, offers=(f"dot2.{way}",))).text
        assert f"// dot2.{way}\nstatic float{lanes} dot2_bb_{lanes}(" in text
        found.append(text[: text.index("#endif")])
    assert "".join((*found, text[text.index("#endif") :])) == golden


def test_lanes_that_do_not_lie_side_by_side_are_put_together():
    dag = byte_product(6, 12, 16)
    s = tiled(dag, 4, pack=False)
    assert_same_meaning(dag, s.program)
    assert "dot4_us_4((uint4)(x[" in lower(s.program, CPU).text


def test_a_later_step_between_the_four_is_an_error():
    dag = byte_product(4, 8, 4)
    s = Schedule(from_dag(dag, "net"))
    near = s.split("y.k", [4])[1]
    s.tensorize(near, "dot4")
    s.reorder(near, "y.j")
    assert_same_meaning(dag, s.program)
    with pytest.raises(CodegenError, match=r"y: no dot4 over .* got 4 x 2 x 4"):
        lower(s.program, CPU)


def test_a_later_copy_of_an_operand_is_an_error():
    dag = pair_product(4, 8, 4)
    s = Schedule(from_dag(dag, "net"))
    s.tensorize(s.split("y.k", [2])[1], "dot2")
    s.cache_read("x", "y.i", "private")
    assert_same_meaning(dag, s.program)
    with pytest.raises(CodegenError, match=r"x.private is read by packs, but x.private of the sa"):
        lower(s.program, CPU)


def test_a_constant_that_is_never_packed_is_an_error_where_its_bytes_lie_apart():
    s = Schedule(from_dag(across(4, 8, 4), "net"))
    s.tensorize(s.split("y.k", [4])[1], "dot4")
    packed = replace(s.program, packed=("w",))
    assert "dot4_us_1(x[" in lower(packed, CPU).text
    with pytest.raises(CodegenError, match=r"elements of w\[.*\] must lie side by side"):
        lower(s.program, CPU)


def across(rows: int, inner: int, columns: int) -> Dag:
    """`int32(x) @ int32(w)`: the second operand is read down its columns."""
    x, k = placeholder("x", (rows, inner), UINT8), reduce_axis("k", inner)
    w = placeholder("w", (inner, columns), INT8, constant=True)
    product = lambda i, j: cast(x[i, k], INT32) * cast(w[k, j], INT32)  # noqa: E731
    return Dag((compute("y", (rows, columns), product, [x, w], reduce=(k,), axes=("i", "j")),))


@pytest.mark.parametrize("inner", [4, 8])
def test_bytes_that_the_nest_makes_are_read_by_packs(inner: int):
    """Whether the nest makes one pack or several, they are an array, not registers."""
    x, w = placeholder("x", (4, inner), INT8), placeholder("w", (5, inner), INT8, constant=True)
    turned = compute("turned", (4, inner), lambda i, j: x[i, inner - 1 - j], [x])
    dag = product_of_bytes(turned, w)
    s = Schedule(from_dag(dag, "net"))
    s.compute_at("turned", "y.i", "private")
    s.tensorize(s.split("y.k", [4])[1], "dot4")
    assert_same_meaning(dag, s.program)
    text = lower(s.program, CPU).text
    assert text.count("char turned[") == 1
    assert f"++y_i) {{\n    char turned[{inner}]" in text, "where both nests see it"
    assert "((const __private int*)turned)[" in text


def test_weights_of_four_bits_stay_packed(golden: object):
    """A word is read once; a shift and a mask leave four values of it, one in each byte."""
    dag = packed_product(2, 2, 4, 32, 4, integers=True)
    spec = replace(GENERIC_CPU, instructions=("dot4.vnni",))
    sketch = cpu_space(from_dag(dag, "net"), spec).sketches[0]
    tile = {"tile.out.i": (1, 2), "tile.out.j": (1, 2)}
    program = sketch.instantiate(sketch.row(tile))
    assert_same_meaning(dag, program)
    assert lower(program, replace(CPU, offers=("dot4.vnni",))).text == golden


@pytest.mark.parametrize(("bits", "name", "way"), [(4, "ms", "avx2_narrow"), (8, "us", "avx2")])
def test_what_a_mask_leaves_is_narrow(bits: int, name: str, way: str):
    """Two products of a value of four bits and an int8 fit 16 bits; those of eight bits do not."""
    dag = packed_product(2, 2, 4, 32, bits, integers=True)
    spec = replace(GENERIC_CPU, instructions=("dot4.avx2_narrow", "dot4.avx2"), vector_bits=256)
    program = cpu_space(from_dag(dag, "net"), spec).sketches[0]
    program = program.instantiate(program.row({"tile.out.i": (1, 2), "tile.out.j": (1, 2)}))
    assert_same_meaning(dag, program)
    text = lower(program, replace(CPU, offers=("dot4.avx2_narrow", "dot4.avx2"))).text
    assert f"// dot4.{way}\nstatic int8 dot4_{name}_8(" in text


@pytest.mark.parametrize(
    ("bits", "words", "fits"), [(4, 4, True), (4, 8, False), (2, 4, True), (8, 1, False)]
)
def test_sums_that_fit_halves_of_lanes_are_held_there(bits: int, words: int, fits: bool):
    """Those of a block of 32 values of four bits do: 32 * 15 * 128 < 2 * 2**15."""
    dag = packed_product(2, 2, words, 32, bits, integers=True)
    names = ("dot4.avx2_narrow", "dot4.avx2", "dot4_halves.avx2")
    spec = replace(GENERIC_CPU, instructions=names, vector_bits=256)
    sketch = cpu_space(from_dag(dag, "net"), spec).sketches[0]
    program = sketch.instantiate(sketch.row({"tile.out.i": (1, 2), "tile.out.j": (1, 2)}))
    assert_same_meaning(dag, program)
    text = lower(program, replace(CPU, offers=names)).text
    assert ("// dot4_halves.avx2\nstatic int8 dot4_halves_ms_8(" in text) == fits
    assert ("T_products_0 = dot4_halves_joined_int32_8(T_products_0);" in text) == fits


def test_the_faster_instruction_holds_the_sums():
    dag = packed_product(2, 2, 4, 32, 4, integers=True)
    names = ("dot4.vnni", "dot4_halves.avx2")
    spec = replace(GENERIC_CPU, instructions=names, vector_bits=256)
    sketch = cpu_space(from_dag(dag, "net"), spec).sketches[0]
    assert "intrinsic='dot4')" in str(sketch.trace)


def test_the_unsigned_operand_is_the_first_whichever_side_it_stands_on():
    x, w = placeholder("x", (3, 8), INT8), placeholder("w", (5, 8), UINT8)
    dag = product_of_bytes(x, w)
    s = Schedule(from_dag(dag, "net"))
    s.tensorize(s.split("y.k", [4])[1], "dot4")
    assert_same_meaning(dag, s.program)
    text = lower(s.program, CPU).text
    assert "dot4_us_1(w[" in text and ", x[" in text


@pytest.mark.parametrize(
    ("dag", "factor", "intrinsic", "message"),
    [
        (byte_product(4, 8, 4), 4, "mma", r"no intrinsic 'mma'; there are dot2, dot4"),
        (byte_product(4, 8, 4), 2, "dot4", r"a nest of 4 steps around one block, got 2"),
        (
            dense(4, 8, 4, epilogue=False),
            4,
            "dot4",
            r"int32 sums of .* with a of uint8 or int8",
        ),
        (
            byte_product(4, 8, 4, second=INT7),
            4,
            "dot4_halves",
            r"products of magnitudes up to 65535 in a sum, got 2 x 4 of up to 16320",
        ),
        (
            byte_product(4, 10, 4),
            4,
            "dot4",
            r"int32 sums of .* with a of uint8 or int8",
        ),
    ],
)
def test_what_is_no_dot_product_is_refused(dag: Dag, factor: int, intrinsic: str, message: str):
    s = Schedule(from_dag(dag, "net"))
    near = s.split("y.k", [factor], "guard")[1]
    with pytest.raises(ScheduleError, match=message):
        s.tensorize(near, intrinsic)


def test_rows_that_start_inside_a_word_are_refused():
    x, w = placeholder("x", (4, 6), UINT8), placeholder("w", (5, 4), INT8, constant=True)
    s = Schedule(from_dag(product_of_bytes(x, w), "net"))
    with pytest.raises(ScheduleError, match=r"4 elements of x\[y.i, y.k\] must lie side by side"):
        s.tensorize("y.k", "dot4")
