"""The static estimate: what it prefers, and why."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.bundle.verify.rounding import FACTOR
from retune.core.dims import Size, assuming, dim_of
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.space import Space
from retune.search.defaults import DEFAULT_MAX_ERROR
from retune.targets.cost.conflicts import LINE_BYTES, WAY_BYTES, crowded
from retune.targets.cost.core import Core
from retune.targets.cost.cpu import cpu_cycles
from retune.targets.cost.estimate import MOST_ROUNDINGS, default_candidate, estimate
from retune.targets.cost.nests import kernels, moving, on
from retune.targets.cost.tiles import window_elements
from retune.targets.cpu.space import cpu_space
from retune.targets.cpu.winograd import cpu_winograd_families
from retune.targets.spaces import space_of
from retune.targets.tiling import LANE, REGISTER
from tests.support.dags import batched_product, conv2d, dense, packed_product, strip

SETS = WAY_BYTES // LINE_BYTES


def estimated(channels: int, outputs: int, **decided: tuple[int, ...]) -> float:
    """Of a 1x1 convolution on a map of 14 x 14."""
    dag = merge_axes(conv2d(1, 14, 14, channels, outputs, 1, pad=0))
    sketch = cpu_space(from_dag(dag, "net"), GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")
    names = {"pixels": "tile.out.yy_xx", "vectors": "tile.out.ff"}
    row = sketch.row({**{names[k]: v for k, v in decided.items()}, "unroll.conv": (1,)})
    return float(estimate(sketch, row[None], GENERIC_CPU)[0])


def test_pixels_that_share_a_cache_set_are_read_in_small_tiles():
    wide, narrow = {"pixels": (2, 14), "vectors": (1, 2)}, {"pixels": (4, 7), "vectors": (1, 2)}
    assert estimated(1024, 256, **wide) > 1.2 * estimated(1024, 256, **narrow)
    assert estimated(1008, 256, **wide) <= estimated(1008, 256, **narrow)


def test_as_many_pixels_as_the_cache_has_ways_still_fit():
    full, few = {"pixels": (3, 8), "vectors": (1, 2)}, {"pixels": (3, 7), "vectors": (1, 2)}
    assert estimated(1024, 256, **full) < 1.1 * estimated(1024, 256, **few)


def test_padding_is_rather_a_mask_than_a_nest_of_its_own():
    """Of equal tiles of a 3x3 convolution."""
    space = cpu_space(from_dag(conv2d(1, 14, 14, 512, 512, 3, pad=1), "net"), GENERIC_CPU)
    written, masked = (space.sketch(f"cpu.v16.loops.pixels_slow{m}") for m in ("", ".masked"))
    rows = written.sample(64, np.random.default_rng(0))
    same = np.array([masked.row({**written.decided(r), "unroll.conv": (1,)}) for r in rows])
    tiles = np.median(estimate(written, rows, GENERIC_CPU) / estimate(masked, same, GENERIC_CPU))
    assert tiles > 1.04


def test_a_default_serves_all_sizes():
    """Tiles that are the best for the sizes at hand leave much of a smaller map over."""
    side = dim_of(Size("side", 20, 128))
    fixed, open_ = (from_dag(conv2d(1, n, n, 32, 32, 3), "net") for n in (128, side))
    best = default_candidate(space_of(fixed, "conv2d", GENERIC_CPU, max_error=1e-5), GENERIC_CPU)
    with assuming({"side": 128}):
        space = space_of(open_, "conv2d", GENERIC_CPU, max_error=1e-5)
        own = default_candidate(space, GENERIC_CPU)
    sketch = space.sketch(own.sketch)
    assert best.sketch == own.sketch
    rows = np.stack([sketch.row(dict(c.decisions)) for c in (own, best)])
    ratios: list[float] = []
    for value in (128, 110, 90, 70, 50, 36):
        with assuming({"side": value}):
            ours, theirs = estimate(sketch, rows, GENERIC_CPU)
        ratios.append(ours / theirs)
    assert max(ratios) < 1.1
    assert np.prod(ratios) < 0.9


def test_tiles_of_a_group_find_their_data_near():
    """One core takes all groups, so nothing else speaks for small ones."""
    spec = replace(GENERIC_CPU, compute_units=1)
    rows, columns, deep = 8192, 1024, 256
    space = cpu_space(from_dag(dense(rows, deep, columns), "net"), spec)
    decided = dict(default_candidate(space, spec).decisions)
    (own,) = [name for name in decided if name.endswith(".i")]
    assert np.prod(decided[own]) * deep * 4 <= spec.l2_bytes


def in_both_orders(rows: int, columns: int) -> np.ndarray:
    """Estimates of equal tiles of several groups, pixels slow and channels slow. float64 [2, n]"""
    space = cpu_space(from_dag(dense(rows, 256, columns), "net"), GENERIC_CPU)
    orders = [space.sketch(f"cpu.v16.loops.{slow}_slow") for slow in ("pixels", "channels")]
    drawn = orders[0].sample(64, np.random.default_rng(0))
    same = np.array([orders[1].row(orders[0].decided(row)) for row in drawn])
    found = [estimate(o, rows, GENERIC_CPU) for o, rows in zip(orders, (drawn, same), strict=True)]
    several = found[0] != found[1]
    assert several.sum() > 32
    return np.stack(found)[:, several]


@pytest.mark.parametrize(("rows", "columns"), [(8192, 256), (256, 8192)])
def test_groups_come_back_to_the_operand_that_stays_near(rows: int, columns: int):
    """The other operand, beyond the cache, is read once."""
    assert 256 * 256 * 4 < GENERIC_CPU.l2_bytes < 8192 * 256 * 4
    pixels, channels = in_both_orders(rows, columns)
    assert ((pixels < channels) == (rows > columns)).all()


def test_what_no_cache_holds_is_read_once():
    assert 4096 * 256 * 4 < GENERIC_CPU.l3_bytes / 2 < 65536 * 256 * 4
    shared, memory = (np.divide(*in_both_orders(rows, 256)) for rows in (4096, 65536))
    assert np.median(memory) < 0.85 * np.median(shared) < 0.85


def test_windows_that_are_steps_apart_read_what_lies_between():
    """28 maps of 28 x 28 pixels are 22 MB, the pixels of one tap 5 MB."""
    spec = replace(GENERIC_CPU, vector_bits=256, vector_registers=16, compute_units=2)
    dag = conv2d(28, 28, 28, 256, 256, 3, stride=2)
    space = cpu_space(from_dag(dag, "net"), spec)
    assert "pixels_slow" in default_candidate(space, spec).sketch


def test_many_groups_are_better_than_one_for_each_core():
    few = estimated(512, 256, pixels=(28, 7), vectors=(4, 2))
    many = estimated(512, 256, pixels=(7, 7), vectors=(2, 2))
    assert few > 1.1 * many


def test_constants_beyond_the_cache_are_read_for_several_tiles():
    once = estimated(2048, 512, pixels=(1, 4), vectors=(1, 4))
    again = estimated(2048, 512, pixels=(7, 4), vectors=(1, 4))
    assert once > 1.2 * again


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_are_unpacked_for_many_rows(bits: int):
    """Tall tiles unpack less than wide ones of as many accumulators."""
    dag = packed_product(128, 33, bits, 1024, bits)
    sketch = cpu_space(from_dag(dag, "net"), GENERIC_CPU).sketch(
        "cpu.v16.loops.pixels_slow.partial"
    )
    tiles = [{"tile.out.i": (1, 12 // n), "tile.out.j": (16 // n, n)} for n in (1, 4)]
    rows = [sketch.row(tile) for tile in tiles]
    tall, wide = estimate(sketch, np.stack(rows), GENERIC_CPU)
    assert wide > 1.3 * tall


def test_a_single_row_reads_packed_weights_from_one_place_at_a_time():
    """By the default; tiles of several rows, or of floats, have several vectors."""
    spec = replace(GENERIC_CPU, instructions=("dot4.vnni",))
    for rows, integers in ((1, True), (1, False), (64, True)):
        dag = packed_product(rows, 18, 4, 768, 4, integers=integers)
        decisions = dict(default_candidate(cpu_space(from_dag(dag, "net"), spec), spec).decisions)
        alone = decisions["tile.out.j"][-1] == 1
        assert alone == (rows == 1 and integers), (rows, integers, decisions)


def test_a_tile_over_several_products_reads_both_operands_of_each():
    """Twelve products of two rows share less than four rows by two vectors of two products do."""
    dag = batched_product(12, 64, 32, 64)
    sketch = cpu_space(from_dag(dag, "net"), GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow")
    tiles = [
        {"tile.z.h": (1, products), "tile.z.i": (1, rows), "tile.z.j": (1, vectors)}
        for products, rows, vectors in [(12, 2, 1), (2, 4, 2)]
    ]
    drawn = np.stack([sketch.row({**tile, "unroll.y": (1,)}) for tile in tiles])
    many, few = estimate(sketch, drawn, GENERIC_CPU)
    assert many > 1.3 * few


def test_a_row_for_each_matrix_runs_along_its_rows():
    narrow = replace(GENERIC_CPU, vector_bits=256, vector_registers=16)
    for spec in (GENERIC_CPU, narrow):
        space = cpu_space(from_dag(batched_product(12, 1, 64, 512)), spec)
        tiles = dict(default_candidate(space, spec).decisions)
        assert tiles["tile.z.j"][1] >= 4 * tiles["tile.z.h"][1], spec


def test_places_of_a_transform_do_not_share_a_cache_set():
    """Of 4 x 16 tiles of 32 channels they lie 8192 bytes apart, of 5 x 10 tiles 6400 bytes."""
    program = from_dag(conv2d(1, 80, 320, 32, 32, 3), "net")
    made = Space(cpu_winograd_families(program, GENERIC_CPU)).sketches
    sketch = next(s for s in made if s.name.endswith("4"))
    blocks = [((1, 4), (4, 4)), ((1, 5), (2, 5))]
    rest = {"tile.out.ff": (1, 1, 1), "unroll.conv.product": (1,)}
    rows = [
        sketch.row({"tile.out.yy.0": high, "tile.out.xx.0": wide, **rest}) for high, wide in blocks
    ]
    crowded, spread = estimate(sketch, np.stack(rows), GENERIC_CPU)
    assert crowded > 1.2 * spread


INEXACT: dict[str, tuple[Dag, DeviceSpec, str]] = {
    "F(6x6, 3x3)": (conv2d(1, 56, 56, 64, 64), GENERIC_GPU, "gpu.winograd6"),
    "F(4, 7)": (strip(1, 17, 17, 128, 128, (1, 7)), GENERIC_CPU, "cpu.winograd4"),
    "F(4x4, 5x5)": (conv2d(1, 14, 14, 32, 64, 5, pad=2), GENERIC_CPU, "cpu.winograd4"),
}


@pytest.mark.parametrize("name", INEXACT)
def test_a_default_is_no_strategy_that_only_a_comparison_could_accept(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    dag, spec, prefix = INEXACT[name]
    space = space_of(from_dag(merge_axes(dag), "net"), "", spec, max_error=DEFAULT_MAX_ERROR)
    chosen = space.sketch(default_candidate(space, spec).sketch)
    assert chosen.roundings <= MOST_ROUNDINGS <= FACTOR
    monkeypatch.setattr("retune.targets.cost.estimate.MOST_ROUNDINGS", np.inf)
    assert default_candidate(space, spec).sketch.startswith(prefix), "it is faster, and allowed"


@given(
    st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from([0, 4, 64, 512, 1024, 4096, 7104, 14336])),
        min_size=1,
        max_size=3,
    )
)
def test_a_tile_is_crowded_by_the_lines_of_the_fullest_set(axes: list[tuple[int, int]]):
    places = {0}
    for copies, step in axes:
        places = {p + step * i for p in places for i in range(copies)}
    lines = {p // LINE_BYTES for p in places}
    fullest = max(sum(line % SETS == s for line in lines) for s in range(SETS))
    tile = [(np.array([float(n)]), np.array([float(step)])) for n, step in axes]
    for ways in (max(1, fullest - 1), fullest):
        assert crowded(tile, ways, 1).tolist() == [fullest > ways]


def test_crowded_of_many_tiles_is_that_of_each():
    copies, step = np.array([14.0, 7.0, 14.0]), np.array([4096.0, 4096.0, 2048.0])
    assert crowded([(copies, step)], 7, 3).tolist() == [True, False, False]
    assert crowded([(copies, step)], 6, 3).tolist() == [True, True, True]


@given(st.integers(1, 8), st.integers(1, 8), st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
def test_places_of_windows_are_counted_one_by_one(results: int, taps: int, steps: tuple[int, int]):
    stride, apart = steps
    read = Counter(i * stride + j * apart for i in range(results) for j in range(taps))
    every, once = window_elements(np.array([results]), np.array([taps]), stride / apart)
    assert (every, once) == (len(read), sum(times == 1 for times in read.values()))


def test_vectors_that_take_two_turns_are_left_where_they_do_not_fit():
    """24 channels are three vectors of 8, or two of 16 that overlap: a third more work."""
    dag = conv2d(1, 56, 56, 72, 24, window=1, pad=0)
    halves = replace(GENERIC_CPU, datapath_bits=256)
    lanes = [
        default_candidate(cpu_space(from_dag(dag), spec), spec).sketch.split(".")[1]
        for spec in (GENERIC_CPU, halves)
    ]
    assert lanes == ["v16", "v8"]


def test_traffic_of_private_arrays_takes_no_turns():
    families = cpu_winograd_families(from_dag(conv2d(1, 28, 28, 32, 32)), GENERIC_CPU)
    sketch = next(s for s in Space(families).sketches if s.name.endswith("4"))
    rows = sketch.sample(16, np.random.default_rng(0))

    def traffic(spec: DeviceSpec) -> np.ndarray:
        (kernel,) = kernels(sketch, rows)
        return cpu_cycles(kernel, spec) - cpu_cycles(kernel, spec, Core(private=0.0))

    assert (traffic(GENERIC_CPU) > 0.0).all()
    halves = replace(GENERIC_CPU, datapath_bits=256)
    np.testing.assert_allclose(traffic(halves), traffic(GENERIC_CPU))


def test_a_full_datapath_is_that_of_a_device_that_states_none():
    whole = replace(GENERIC_CPU, datapath_bits=512)
    sketch = cpu_space(from_dag(conv2d(1, 14, 14, 64, 64)), GENERIC_CPU).sketches[0]
    rows = sketch.sample(64, np.random.default_rng(0))
    assert (estimate(sketch, rows, whole) == estimate(sketch, rows, GENERIC_CPU)).all()


NARROW = replace(GENERIC_CPU, vector_bits=256, vector_registers=16)
"""A processor with AVX2."""


def test_lanes_of_a_group_read_the_same_data():
    """A tile of three vectors of one group's channels broadcasts as many numbers as one of one."""
    dag = conv2d(1, 14, 14, 272, 272, window=1, pad=0, groups=4)
    (nest, *_), *_ = kernels(
        sketch := cpu_space(from_dag(merge_axes(dag)), NARROW).sketches[0],
        sketch.sample(4, np.random.default_rng(0)),
    )
    (data,) = (o for o in nest.accesses.operands if not o.constant)
    lanes = on(nest.loops, LANE)
    assert lanes[0].var in data.moving and not moving(data, lanes)
    assert moving(data, on(nest.accesses.results, REGISTER)), "but other pixels are others"


def test_a_tile_of_all_registers_is_not_unrolled():
    """14 single vectors, a vector of constants and a broadcast take all 16 registers of AVX2."""
    dag = conv2d(1, 28, 28, 64, 64, window=1, pad=0)
    sketch = cpu_space(from_dag(merge_axes(dag)), NARROW).sketches[0]
    rows = sketch.sample(4096, np.random.default_rng(0))
    found = [tuple(sketch.decided(row).values()) for row in rows]
    times = dict(zip(found, estimate(sketch, rows, NARROW).tolist(), strict=True))
    spills = [
        (times[key] / times[whole], key[0][-1])
        for key in times
        if key[1][-1] == 1 and key[2] != (1,) and (whole := (*key[:2], (1,))) in times
    ]
    assert {tile for ratio, tile in spills if ratio > 1.0} == {14}
    assert min(ratio for ratio, _ in spills) == 1.0
