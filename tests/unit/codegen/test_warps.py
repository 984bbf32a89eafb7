"""Products that the items of a warp do together: which loops become calls, and their text."""

from dataclasses import replace

import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.dtypes import FLOAT16, FLOAT32, INT7, INT8, TF32, UINT8, DType
from retune.core.errors import CodegenError, ScheduleError
from retune.intrinsics import intrinsic
from retune.ir.expr import Expr, Var
from retune.ir.functions import call, rounding
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from tests.support.dags import byte_product
from tests.support.oracle import assert_items_agree

NVIDIA = replace(
    GPU, offers=("warp8.mma", "warp16.mma", "warp16s.mma", "warp16c.mma", "warp32.mma")
)


def shared_out(
    dag: Dag, *, pixels: int = 2, vectors: int = 1, items: tuple[int, int] = (4, 8)
) -> Schedule:
    """A warp for each tile: items by pixels and channels, with so many of both."""
    s = Schedule(from_dag(dag, "net"))
    out = s.cache_write("y")
    i, j = s.loops(out)
    tile, pixel, held = s.split(i, [items[0], pixels])
    strip, channel, vector, lane = s.split(j, [items[1], vectors, 4])
    s.reorder(tile, strip, channel, pixel, held, vector, lane)
    for loop, kind in ((strip, "group.0"), (tile, "group.1")):
        s.bind(loop, kind)
    s.bind(pixel, "local.0")
    s.bind(channel, "local.1")
    s.compute_at("y", pixel)
    for loop in (held, vector):
        s.unroll(loop)
    s.vectorize(lane)
    return s


def by_warps(
    dag: Dag, *, pixels: int = 2, vectors: int = 1, pack: bool = True, name: str = "warp8"
) -> Schedule:
    """The products of such a tile given to the instruction."""
    s, entry = shared_out(dag, pixels=pixels, vectors=vectors), intrinsic(name)
    packs = [entry.pack] if entry.pack > 1 else []
    deep, words, *word = s.split("y.k", [entry.k // entry.pack, *packs])
    held, row = s.split("y.i", [2])
    vector, lane = s.split("y.j", [4])
    s.reorder(deep, held, vector, row, words, lane, *word)
    for loop in (held, vector):
        s.unroll(loop)
    if pack:
        s.pack("w")
    s.tensorize(row, name)
    return s


def test_a_warp_multiplies(golden: object):
    s = by_warps(byte_product(32, 64, 64), pixels=4)
    assert f"{s.program}\n\n{lower(s.program, NVIDIA).text}" == golden


@pytest.mark.parametrize(("name", "dtype"), [("warp16", FLOAT16), ("warp32", FLOAT32)])
def test_a_warp_multiplies_floats(golden: object, name: str, dtype: DType):
    x, w = (placeholder(n, (32, 64), dtype, constant=n == "w") for n in "xw")
    k = reduce_axis("k", 64)
    rounded = {FLOAT32: lambda load: call(rounding(TF32), load)}.get(dtype, lambda load: load)

    def product(i: Var, j: Var) -> Expr:
        return rounded(x[i, k]) * rounded(w[j, k])

    dag = Dag((compute("y", (32, 32), product, [x, w], reduce=(k,)),))
    s = by_warps(dag, name=name)
    assert_items_agree(dag, s.program)
    assert lower(s.program, NVIDIA).text == golden


@pytest.mark.parametrize(("pixels", "vectors"), [(2, 1), (4, 2), (8, 1)])
@pytest.mark.parametrize(("first", "second"), [(UINT8, INT8), (INT8, INT7)])
def test_items_keep_the_meaning(pixels: int, vectors: int, first: str, second: str):
    dag = byte_product(8 * pixels, 64, 64 * vectors, first=first, second=second)
    s = by_warps(dag, pixels=pixels, vectors=vectors)
    assert_items_agree(dag, s.program)
    text = lower(s.program, NVIDIA).text
    assert f".s32.s8.{first[0].replace('i', 's')}8.s32" in text
    assert text.count("  WARP8_") == pixels // 2 * vectors
    shared = text.count("= x[") + text.count("= (x + ")
    assert shared == (pixels // 2 if vectors > 1 else 0), "neighbours share pixels"
    assert text.count("const int4 w_") == (2 * vectors if pixels > 2 else 0), "and channels"


def test_a_device_without_warps_exchanges_shares():
    text = lower(by_warps(byte_product(32, 64, 64)).program, GPU).text
    assert "// warp8.exchange" in text
    assert "__local int exchange[320]" in text
    assert "asm" not in text


def test_work_items_that_are_no_warp_are_refused():
    s = shared_out(byte_product(64, 64, 64), items=(8, 4))
    deep, words, word = s.split("y.k", [8, 4])
    s.reorder(deep, "y.i", words, "y.j", word)
    with pytest.raises(ScheduleError, match=r"4 items along local\.0 and 8 along local\.1"):
        s.tensorize("y.i", "warp8")


def test_operands_of_the_other_items_are_refused():
    """Items along local.0 have channels, and those along local.1 pixels."""
    s = Schedule(from_dag(byte_product(16, 64, 16)))
    out = s.cache_write("y")
    i, j = s.loops(out)
    pixel, held = s.split(i, [2])
    channel, lane = s.split(j, [4])
    s.reorder(pixel, channel, held, lane)
    s.bind(pixel, "local.1")
    s.bind(channel, "local.0")
    s.compute_at("y", channel)
    deep, words, word = s.split("y.k", [8, 4])
    s.reorder(deep, "y.i", words, "y.j", word)
    with pytest.raises(ScheduleError, match=r"expected x.* to be that of all items along local\.1"):
        s.tensorize("y.i", "warp8")


def test_copies_of_operands_in_local_memory_are_waited_for():
    """Items read them after all of their neighbours are done."""
    dag = byte_product(32, 64, 64)
    s = shared_out(dag)
    deep, words, word = s.split("y.k", [8, 4])
    s.reorder(deep, "y.i", words, "y.j", word)
    s.cache_read("x", deep, "local")
    s.pack("w")
    s.tensorize("y.i", "warp8")
    assert_items_agree(dag, s.program)
    text = lower(s.program, NVIDIA).text
    assert text.index("x_local[") < text.index("barrier(") < text.index("  WARP8_")


def test_words_that_lie_apart_are_refused():
    with pytest.raises(CodegenError, match=r"no warp8 over y\.i\.1 any more: expected w"):
        lower(by_warps(byte_product(32, 64, 64), pack=False).program, NVIDIA)


def test_a_guard_that_tells_items_apart_is_refused():
    dag = byte_product(10, 64, 32)
    s = Schedule(from_dag(dag))
    out = s.cache_write("y")
    i, j = s.loops(out)
    _, pixel, held = s.split(i, [4, 2], "guard")
    channel, lane = s.split(j, [4])
    s.reorder(pixel, held, lane)
    s.bind(channel, "local.1")
    s.bind(pixel, "local.0")
    s.compute_at("y", pixel)
    deep, words, word = s.split("y.k", [8, 4])
    s.reorder(deep, "y.i", words, "y.j", word)
    with pytest.raises(ScheduleError, match="expected"):
        s.tensorize("y.i", "warp8")
