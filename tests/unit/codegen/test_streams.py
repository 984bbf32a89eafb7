"""Which constants are fetched ahead of their use, and where that is asked for."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.addresses import Address
from retune.codegen.kernel import Memory, Name
from retune.codegen.lower import lower
from retune.codegen.passes.streams import (
    AHEAD_BYTES,
    fetch,
    next_rows,
    share_of_next,
    starts_line,
    whole_lines,
)
from retune.codegen.target import CPU, GPU, Target
from retune.core.dims import Size, dim_of
from retune.core.dtypes import FLOAT32, INT32
from retune.core.target import GENERIC_CPU
from retune.ir.expr import Buffer, Expr, Var, as_expr, binary, const, equal
from retune.ir.stmt import For, Seq, from_dag
from retune.ir.te import Dag
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d, dense, depthwise


def text_of(dag: Dag, *, panels: bool = False, target: Target = CPU) -> str:
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    program = space.instantiate(default_candidate(space, GENERIC_CPU))
    return lower(program, target, panels=panels).text


def test_weights_larger_than_the_first_caches_are_fetched_once_for_each_line():
    """The copies of the loop for borders read under tests, and do not fetch."""
    lines = text_of(conv2d(1, 8, 8, 64, 64)).splitlines()
    reads = [line for line in lines if line.strip().startswith("const float16 k_")]
    fetches = [line.strip() for line in lines if line.strip().startswith("AHEAD(k ")]
    assert fetches and len(fetches) == len(reads)
    assert all(f"+ {AHEAD_BYTES // 4});" in fetch for fetch in fetches)
    assert lines.count("#ifndef AHEAD") == 1


def test_panels_that_a_single_row_reads_once_are_fetched():
    text = text_of(dense(1, 512, 256), panels=True)
    assert "AHEAD(" in text


def test_small_constants_and_data_are_not_fetched():
    assert "AHEAD" not in text_of(depthwise(1, 16, 16, 64))
    assert "AHEAD" not in text_of(conv2d(1, 32, 32, 16, 16))


def test_arrays_that_no_cache_holds_are_stored_past_the_caches():
    large, small = dense(1 << 14, 8, 512), dense(1 << 14, 8, 256)  # 32 MB, 16 MB
    assert "STORE_PAST(" in text_of(large) and "STORE_PAST(" not in text_of(small)
    assert "STORE_PAST(" in text_of(small, target=replace(CPU, past_bytes=1 << 24))
    assert "STORE_PAST(" not in text_of(large, target=GPU)


def test_parts_of_lines_are_stored_into_the_caches():
    """Rows of 20 floats do not begin with lines, and a kernel goes on in other rows."""
    assert "STORE_PAST(" not in text_of(dense(64, 8, 20), target=replace(CPU, past_bytes=0))


def stores(*offsets: int, lanes: int = 8, divisor: int = 16, step: int = 0) -> list[Address]:
    buffer = Buffer("y", (const(1 << 10),))
    terms = (((Var("i"),), step),) if step else ()
    base = Name("y_at", INT32)
    return [Address(buffer, base, o, lanes, divisor, terms) for o in offsets]


@pytest.mark.parametrize(
    ("places", "past"),
    [
        (stores(0, 8), 2),
        (stores(0, 8, 1024, 1032), 4),
        (stores(0, 8, 16), 0),
        (stores(0), 0),
        (stores(0, step=8), 1),
        (stores(0, step=16), 0),
        (stores(0, 8, divisor=8), 0),
        (stores(0, 8, divisor=4), 0),
        (stores(4, lanes=4, step=4), 1),
        (stores(0, 1, lanes=1, step=2), 0),
    ],
)
def test_vectors_that_fill_lines(places: list[Address], past: int):
    loops = [For(Var("i"), const(8), Seq(()))]
    assert len(whole_lines(places, loops)) == past


LINE = 16
"""Floats of a cache line."""
TOKENS = as_expr(dim_of(Size("past", 0, 63)) + 1)


def strips(passes: int, chunks: int, steps: int, vectors: int) -> tuple[list[For], list[Address]]:
    """Loops that read strips of a packed constant `passes` times each, and an iteration's reads."""
    strip, pixel, chunk, step = (Var(name) for name in ("strip", "pixel", "chunk", "step"))
    width = vectors * LINE
    extents = {strip: 3, pixel: passes, chunk: chunks, step: steps}
    loops = [For(var, const(extent), Seq(())) for var, extent in extents.items()]
    terms = (((strip,), chunks * steps * width), ((chunk,), steps * width), ((step,), width))
    buffer = Buffer("k", (const(3 * chunks * steps * width),))
    return loops, [
        Address(buffer, Name("k_at", INT32), v * LINE, LINE, terms=terms) for v in range(vectors)
    ]


@given(st.integers(2, 9), st.integers(1, 12), st.integers(16, 64), st.integers(1, 4))
def test_all_passes_over_a_strip_together_fetch_the_next_one(
    passes: int, chunks: int, steps: int, vectors: int
):
    """Every line of it, and no more of them for one read than it reads lines itself."""
    loops, reads = strips(passes, chunks, steps, vectors)
    size = chunks * steps * vectors * LINE
    places = [place for read in reads if (place := share_of_next(read, loops))]
    if 4 * size < 1 << 14:
        assert not places
        return
    strip, *inner = (loop.var for loop in loops)
    fetched: set[int] = set()
    for place in places:
        assert place[strip,] == size
        for values in product(range(passes), range(chunks), range(steps)):
            index = place[()] + sum(
                place[var,] * value for var, value in zip(inner, values, strict=True)
            )
            fetched.add(index // LINE)
    assert fetched >= set(range(size // LINE, 2 * size // LINE))
    assert len(places) <= -(-vectors // passes)
    assert max(fetched) < 2.5 * size / LINE


def test_nothing_is_fetched_for_later_without_repetition_or_another_strip():
    loops, (read, *_) = strips(4, 8, 64, 2)
    assert share_of_next(read, loops) is not None
    assert share_of_next(read, [loop for loop in loops if loop.var.name != "pixel"]) is None
    alone = Address(Buffer("k", (const(8 * 64 * 2 * LINE),)), None, 0, LINE, terms=read.terms[1:])
    assert share_of_next(alone, loops[1:]) is None


@given(st.integers(2, 9), st.integers(32, 128), st.integers(2, 4))
def test_all_passes_over_a_tile_of_panels_fetch_those_of_the_next_one(
    passes: int, steps: int, vectors: int
):
    """Each vector of a tile has a panel of its own, a strip behind that of the one before it."""
    strip, pixel, step = (Var(name) for name in ("strip", "pixel", "step"))
    size = vectors * steps * LINE
    moved = binary("min", strip * 2, const(3))  # the last tile is moved back by one panel
    loops = [For(v, const(n), Seq(())) for v, n in ((strip, 2), (pixel, passes), (step, steps))]
    terms = (((moved,), size // 2), ((step,), LINE))
    buffer = Buffer("k", (const(4 * size),))
    fetched: set[int] = set()
    for v in range(vectors):
        read = Address(buffer, Name("k_at", INT32), v * steps * LINE, LINE, terms=terms)
        place = share_of_next(read, loops)
        if 4 * size < 1 << 14:
            assert place is None
            continue
        assert place is not None and place[moved,] == size // 2
        for number, at in product(range(passes), range(steps)):
            fetched.add((place[()] + place[pixel,] * number + place[step,] * at) // LINE)
    if fetched:
        assert fetched >= set(range(size // LINE, 2 * size // LINE))


@given(st.integers(2, 4), st.integers(1, 3), st.integers(1, 24))
def test_panels_side_by_side_are_fetched_in_the_tile_before(vectors: int, chunks: int, steps: int):
    """What lies behind a panel is another one that the tile reads; tiles too far ahead would not
    stay near, and a panel that is read again is there."""
    tile, chunk, step = (Var(name) for name in ("tile", "chunk", "step"))
    panel = chunks * steps * LINE
    extents = {tile: 4, chunk: chunks, step: steps}
    loops = [For(var, const(extent), Seq(())) for var, extent in extents.items()]
    terms = (((tile,), vectors * panel), ((chunk,), steps * LINE), ((step,), LINE))
    buffer, memory = Buffer("k", (const(4 * vectors * panel),)), Memory("k", FLOAT32, "global")
    plain = AHEAD_BYTES // vectors // 64 * LINE
    for v in range(vectors):
        read = Address(buffer, Name("k_at", INT32), v * panel, LINE, terms=terms)
        found = fetch(read, memory, vectors, loops)
        near = 4 * vectors * panel <= 20 << 10
        assert found is not None and found.beyond == (vectors * panel if near else plain)
        for passes in (3, 9):
            repeated = [*loops[:1], For(Var("pixel"), const(passes), Seq(())), *loops[1:]]
            again = fetch(read, memory, vectors, repeated)
            assert (again and again.beyond) == (plain if passes < 5 else None)


@pytest.mark.parametrize(
    ("length", "width", "offset", "ahead"),
    [
        (TOKENS, 192, 0, 8 * 192),
        (TOKENS, 192, LINE, 8 * 192),
        (TOKENS, 192, LINE // 2, None),
        (TOKENS, LINE, 0, None),
        (const(64), 192, 0, None),
    ],
)
def test_rows_of_a_cache_are_fetched_once_for_each_line(
    length: Expr, width: int, offset: int, ahead: int | None
):
    """Those of fixed lengths are not, nor rows that lie one behind the other."""
    token = Var("token")
    cache = Buffer("data", (length, const(width)))
    read = Address(cache, Name("data_at", INT32), offset, 8, terms=(((token,), width),))
    memory = Memory("data", FLOAT32, "global")
    made = next_rows(read, memory, [For(token, length, Seq(()))])
    assert (made and made.beyond) == ahead
    assert next_rows(read, memory, [For(Var("other"), length, Seq(()))]) is None
    part = replace(read, terms=(((token,), width // 2),))
    assert next_rows(part, memory, [For(token, length, Seq(()))]) is None


def test_a_line_that_several_steps_read_is_asked_for_once():
    """By the first of them, which only a loop that is written out tells from the others."""
    step = Var("step")
    buffer = Buffer("k", (const(1 << 16),))
    half, whole = (
        Address(buffer, Name("k_at", INT32), 0, lanes, terms=(((step,), lanes),))
        for lanes in (LINE // 2, LINE)
    )
    unrolled = For(step, const(240), Seq(()), unroll=const(2))
    assert starts_line(half, unrolled) == equal(step % 2, 0)
    assert starts_line(half, For(step, const(240), Seq(()))) is None
    assert starts_line(half, For(step, const(15), Seq(()), unroll=const(2))) is None
    assert starts_line(whole, unrolled) is None
