"""Storage maps: every element has a place of its own, and arrays come back as they were."""

from collections.abc import Callable
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.dims import Size, assuming, dim_of
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import Buffer, Expr, Var, const
from retune.ir.flat import elements, flat_index, flat_terms
from retune.ir.simplify import Range, from_polynomial
from retune.ir.storage import Storage, row_major
from tests.support.properties import quick

NCHW16C = row_major((2, 40, 3, 5)).tiled(1, 16)
N, C0, C1, Y, X = (Var(name) for name in ("n", "c.0", "c.1", "y", "x"))


@st.composite
def storages(draw: st.DrawFn) -> Storage:
    """Some tiles, an order, and rooms that are wider than what lies in them."""
    found = row_major(tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))))
    for _ in range(draw(st.integers(0, 2))):
        part = draw(st.integers(0, len(found.parts) - 1))
        extent = found.parts[part].extent
        inner = found.parts[part].divisor * extent < found.shape[found.parts[part].dim]
        sizes = [n for n in range(1, extent + 2) if not inner or extent % n == 0]
        found = found.tiled(part, draw(st.sampled_from(sizes)))
    found = found.ordered(draw(st.permutations(range(len(found.parts)))))
    for part in range(len(found.parts)):
        first, after = draw(st.integers(0, 1)), draw(st.integers(0, 1))
        found = found.within(part, first, found.parts[part].room + first + after)
    return found


@quick(60)
@given(storages())
def test_every_element_has_an_address_of_its_own_and_arrays_come_back(storage: Storage):
    array = np.arange(1, 1 + int(np.prod(storage.shape))).reshape(storage.shape)
    flat = storage.pack(array)
    np.testing.assert_array_equal(storage.unpack(flat), array)
    points = list(product(*map(range, storage.shape)))
    places = [storage.address(point) for point in points]
    assert len(set(places)) == len(points)
    assert flat.shape == (storage.elements,)
    np.testing.assert_array_equal(flat[places], array.ravel())


@quick(60)
@given(storages())
def test_indices_as_expressions_have_the_same_addresses(storage: Storage):
    buffer = Buffer("x", tuple(map(const, storage.shape)), storage=storage)
    names: list[Expr] = [Var(f"i{dim}") for dim in range(len(storage.shape))]
    address = flat_index(buffer, names)
    for point in product(*map(range, storage.shape)):
        values = {name: at for name, at in zip(names, point, strict=True) if isinstance(name, Var)}
        assert evaluate_int(address, values) == storage.address(point)
    assert elements(buffer) == storage.elements


@quick(60)
@given(storages())
def test_spans_enclose_what_is_touched(storage: Storage):
    places = {storage.address(point) for point in product(*map(range, storage.shape))}
    spans = storage.spans()
    meant = {
        at
        for at in range(storage.elements)
        if all(first <= at % period < end for period, first, end in spans)
    }
    assert places <= meant
    tiles = [part.extent * part.divisor for part in storage.parts]
    if all(storage.shape[p.dim] % n == 0 for p, n in zip(storage.parts, tiles, strict=True)):
        assert places == meant


@pytest.mark.parametrize(
    ("storage", "strides", "offset", "size", "text"),
    [
        (row_major((2, 3, 4)), (12, 4, 1), 0, 24, ""),
        (row_major(()), (), 0, 1, ""),
        (row_major((2, 0, 4)), (0, 4, 1), 0, 0, ""),
        (row_major((2, 3, 4)).pitched(7), (21, 7, 1), 0, 42, "at0of7"),
        (row_major((2, 4)).columns(3, 8), (8, 1), 3, 16, "at3of8"),
        (row_major((2, 4)).columns(3, 8).columns(1, 10), (10, 1), 4, 20, "at4of10"),
        (row_major((3, 4)).within(0, 1, 5).columns(1, 6), (6, 1), 7, 30, "d0at1of5_at1of6"),
        (row_major((2, 8, 3, 5)).ordered((0, 2, 3, 1)), (120, 40, 8, 1), 0, 240, "d0_d2_d3_d1"),
        (NCHW16C, (720, 240, 80, 16, 1), 0, 1440, "d0_d1by16_d2_d3_d1"),
    ],
)
def test_the_ways_to_lie(
    storage: Storage, strides: tuple[int, ...], offset: int, size: int, text: str
):
    assert (storage.strides, storage.offset, storage.elements) == (strides, offset, size)
    assert str(storage) == text


def test_tiles_of_tiles_are_digits_of_one_index():
    """Weights of dot products: blocks of 16 outputs and 16 inputs, four inputs side by side."""
    shape = (32, 64, 3, 3)
    storage = row_major(shape).tiled(0, 16).tiled(1, 4).tiled(1, 4).ordered((0, 1, 2, 3, 6, 4, 5))
    array = np.arange(np.prod(shape)).reshape(shape)
    blocks = array.reshape(2, 16, 4, 4, 4, 3, 3).transpose(0, 2, 5, 6, 3, 1, 4)
    np.testing.assert_array_equal(storage.pack(array), blocks.ravel())


def test_loops_over_tiles_and_places_make_a_tiled_address_affine():
    buffer = Buffer("x", tuple(map(const, NCHW16C.shape)), storage=NCHW16C)
    indices = (N, C0 * 16 + C1, Y, X)
    address = from_polynomial(flat_terms(buffer, indices, {C1: Range(0, 15)}))
    assert str(address) == "c.0*240 + c.1 + n*720 + x*16 + y*80"
    assert "c.1 // 16" in str(flat_index(buffer, indices))


def test_tiles_side_by_side_are_one_row():
    """Their quotient and remainder are joined again: no division is left."""
    storage = row_major((3, 32)).tiled(1, 8)
    assert str(flat_index(Buffer("x", (const(3), const(32)), storage=storage), (Y, X))) == (
        "x + y*32"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: row_major((2, 4)).columns(-1, 8), "4 from -1 on do not lie in a room of 8"),
        (lambda: row_major((2, 4)).columns(5, 8), "4 from 5 on do not lie in a room of 8"),
        (lambda: row_major((2, 4)).pitched(3), "4 from 0 on do not lie in a room of 3"),
        (lambda: row_major((2, 4)).ordered((0, 0)), "expected an order of 2 parts"),
        (lambda: row_major((2, 4)).pitched(5).tiled(1, 2), "alone in its room"),
        (lambda: row_major((12,)).tiled(0, 6).tiled(1, 4), "whole tiles of 4"),
    ],
)
def test_what_cannot_lie_so(wrong: object, message: str):
    with pytest.raises(ValueError, match=message):
        wrong()  # type: ignore[operator]


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[Storage, tuple[int, ...]]:
    """A storage of merged dimensions, and the dimensions that were merged: some of them single."""
    sides = draw(
        st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    whole = row_major(tuple(int(np.prod(side)) for side in sides))
    order = draw(st.permutations(range(len(sides))))
    return whole.ordered(order), tuple(n for side in sides for n in side)


@quick(60)
@given(reshapes())
def test_a_reshaped_storage_has_the_same_elements_at_the_same_addresses(
    case: tuple[Storage, tuple[int, ...]],
):
    storage, shape = case
    array = np.arange(int(np.prod(shape)))
    finer = storage.reshaped(shape)
    assert finer.covers
    np.testing.assert_array_equal(finer.pack(array.reshape(shape)), storage.pack(array))
    assert finer.reshaped(storage.shape).pack(array).tolist() == storage.pack(array).tolist()


def test_blocks_of_channels_stay_where_rows_and_columns_are_joined():
    image = row_major((1, 3, 5, 40)).tiled(3, 16).ordered((0, 3, 1, 2, 4))
    array = np.arange(600)
    joined = image.reshaped((15, 40))
    np.testing.assert_array_equal(joined.pack(array), image.pack(array))
    assert str(joined) == "d1by16_d0_d1"


@pytest.mark.parametrize(
    ("storage", "shape"),
    [
        (row_major((3, 5)), (4, 4)),
        (row_major((3, 5)).ordered((1, 0)), (15,)),
        (row_major((3, 5)).pitched(8), (15,)),
        (row_major((3, 32)).tiled(1, 16), (96,)),
    ],
    ids=["other elements", "turned", "gaps", "tiles"],
)
def test_what_cannot_be_reshaped(storage: Storage, shape: tuple[int, ...]):
    assert not storage.can_be(shape)
    with pytest.raises(ValueError, match="storage: "):
        storage.reshaped(shape)


@quick(60)
@given(storages(), st.data())
def test_a_section_stays_where_it_lies(storage: Storage, data: st.DataObject):
    dim = data.draw(st.integers(0, len(storage.shape) - 1))
    first = data.draw(st.integers(0, storage.shape[dim] - 1))
    extent = data.draw(st.integers(1, storage.shape[dim] - first))
    tile = storage.parts[storage.coarsest(dim)].divisor
    if first % tile or extent % tile:
        with pytest.raises(ValueError, match=f"whole tiles of {tile}"):
            storage.section(dim, first, extent)
        return
    section = storage.section(dim, first, extent)
    assert section.elements == storage.elements
    for point in product(*map(range, section.shape)):
        there = [i + first if d == dim else i for d, i in enumerate(point)]
        assert section.address(point) == storage.address(there)


def test_columns_stay_columns_under_other_rows():
    columns = row_major((2, 3, 4)).columns(1, 8)
    assert columns.reshaped((6, 4)) == row_major((6, 4)).columns(1, 8)
    assert columns.reshaped((6, 1, 4)).is_columns


@quick(60)
@given(storages())
def test_all_digits_of_every_index_are_there(storage: Storage):
    assert storage.covers
    others = tuple(part for part in storage.parts if part.dim)
    assert not Storage(storage.shape, others).covers


def test_a_single_column_of_a_wider_buffer_keeps_its_place():
    column = row_major((1, 1, 4, 1)).columns(2, 5)
    array = np.arange(4.0).reshape(1, 1, 4, 1)
    for shape in ((4, 1), (1, 4, 1), (2, 2, 1)):
        assert not column.can_be((4,))
        np.testing.assert_array_equal(
            column.reshaped(shape).pack(array.reshape(shape)), column.pack(array)
        )


ROWS, HEIGHT, TOKENS = (dim_of(Size(n, 1, 9)) for n in ("n", "h", "s"))
SIZED: dict[str, Callable[[int, int, int], Storage]] = {
    "blocks": lambda n, h, _: row_major((n, 50, h, 7)).tiled(1, 16),
    "NHWC": lambda n, h, _: row_major((n, 50, h, 7)).ordered((0, 2, 3, 1)),
    "joined": lambda n, h, s: row_major((n, h, s, 6)).reshaped((n * h * s, 6)),
    "joined in part": lambda n, h, s: row_major((n, h, s, 6)).reshaped((n, h * s, 6)),
    "apart": lambda n, h, s: row_major((n * h * s, 6)).reshaped((n, h, s, 6)),
    "heads": lambda n, _, s: row_major((n, s, 8)).reshaped((n, s, 2, 4)),
    "single": lambda n, _, s: row_major((n, s)).reshaped((n, 1, 1, s)),
    "columns": lambda n, h, s: row_major((n, h, s, 6)).columns(2, 9).reshaped((n * h * s, 6)),
    "halo": lambda n, h, s: row_major((n, h, s, 6)).within(1, 1, h + 2).within(2, 1, s + 2),
    "section": lambda n, _, s: row_major((n, s + 4, 6)).section(1, 2, s),
    "joined blocks": lambda n, h, s: row_major((n, 32, h, s)).tiled(1, 16).reshaped((n, 32, h * s)),
}


@pytest.mark.parametrize("name", SIZED)
def test_storages_of_sizes_are_those_of_their_values(name: str):
    with assuming({"n": 2, "h": 3, "s": 4}) as assumed:
        sized = SIZED[name](ROWS, HEIGHT, TOKENS)
        covers, columns = sized.covers, sized.is_columns
    assert assumed.conditions == ()
    for n, h, s in product((1, 2, 9), (1, 5), (1, 9)):
        fixed = SIZED[name](n, h, s)
        at = sized.at({"n": n, "h": h, "s": s})
        assert (at.elements, at.offset) == (fixed.elements, fixed.offset)
        data = np.arange(prod(fixed.shape)).reshape(fixed.shape)
        assert np.array_equal(at.pack(data), fixed.pack(data))
        assert (covers, columns) == (at.covers, at.is_columns)
