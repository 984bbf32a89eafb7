"""Every sketch for CPU devices keeps the meaning, whatever the shape."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dims import Size, assuming, dim_of
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.ir.expr import size_variables
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.row_reductions import RowReduction, find_row_reduction
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from retune.targets.fusion import accesses
from tests.support.dags import (
    attended,
    attended_by_heads,
    byte_conv2d,
    byte_product,
    conv2d,
    dense,
    depthwise,
    elementwise,
    exchanged,
    in_bfloat16,
    integers,
    interwoven,
    neighbours,
    packed_product,
    padded_squares,
    pair_product,
    pool,
    random_dag,
    reduction,
    softmax,
    standardised,
)
from tests.support.oracle import assert_items_agree
from tests.support.properties import chooser, quick

NARROW = replace(GENERIC_CPU, name="narrow", vector_bits=128, vector_registers=16)

SHAPES: dict[str, Dag] = {
    "one channel": conv2d(1, 7, 7, 1, 16),
    "colours": conv2d(2, 9, 8, 3, 17, 3, stride=2, residual=True),
    "prime channels": conv2d(1, 5, 7, 17, 67, 1, pad=0),
    "batch of three": conv2d(3, 5, 5, 4, 8, groups=2),
    "dilated": conv2d(1, 9, 9, 2, 16, dilation=2),
    "gated": conv2d(2, 4, 5, 24, 12, 1, pad=0, gated=True),
    "gated window": conv2d(1, 5, 4, 16, 8, gated=True),
    "gated depthwise": depthwise(1, 5, 6, 36, gated=True),
    "depthwise": depthwise(2, 7, 11, 67, stride=2),
    "dense row": dense(1, 67, 131),
    "dense batch": dense(3, 17, 10),
    "packed row": packed_product(1, 3, 2, 20, 4),
    "packed batch": packed_product(5, 2, 1, 33, 2),
    "largest of a window": pool(3, 7, 11, 17, 3, 2, average=False),
    "mean of a window": pool(2, 6, 6, 3, 2, 2, average=True),
    "softmax": softmax(3, 67),
    "standardised rows": standardised(3, 64),
    "softmax by lanes": softmax(3, 96),
    "few outputs": dense(1, 96, 10),
    "rows": reduction(5, 160, "max", first=False),
    "channel shuffle": interwoven(3, 4, 34),
    "colours last": interwoven(1, 3, 53),
    "transposed": interwoven(2, 19, 37),
    "outer axes exchanged": exchanged(3, 11, 2, 21),
    "a border around colours": conv2d(1, 30, 127, 3, 8, 3, stride=4),
    "padded rows": padded_squares(33, 67, 2, 2),
    "sums over neighbours": neighbours(21, 48, 2, 2),
    "sums over neighbours on one side": neighbours(2, 32, 0, 3),
    "sums over neighbours, uneven rows": neighbours(3, 37, 1, 2),
    "rows padded by more than a vector": padded_squares(33, 40, 20, 1),
}


def assert_space_is_right(dag: Dag, spec: DeviceSpec, candidates: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = cpu_space(from_dag(dag), spec)
    for sketch in space.sketches:
        verify(sketch.program)
        for row in sketch.sample(candidates, rng):
            program = sketch.instantiate(row)
            verify(program)
            assert_items_agree(dag, program)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("spec", [GENERIC_CPU, NARROW], ids=lambda s: s.name)
def test_every_sketch_of_awkward_shapes(name: str, spec: DeviceSpec):
    assert_space_is_right(SHAPES[name], spec, candidates=3, seed=len(name))


@quick(25)
@given(data=st.data(), merged=st.booleans())
def test_every_sketch_of_random_expressions(data: st.DataObject, merged: bool):
    dag = random_dag(chooser(data))
    assert_space_is_right(merge_axes(dag) if merged else dag, GENERIC_CPU, candidates=1, seed=0)


def test_every_sketch_has_a_candidate():
    for dag in SHAPES.values():
        for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches:
            assert len(sketch.sample(1, np.random.default_rng(0))), sketch.name


BYTES = {
    "bytes": byte_conv2d(5, 7, 8, 24),
    "one tap": byte_conv2d(6, 6, 12, 40, window=1),
    "words of colours": byte_conv2d(9, 9, 4, 16, window=3, stride=2),
    "words of colours in a wide image": byte_conv2d(30, 30, 4, 16, window=3, stride=2),
    "matrix": byte_product(6, 16, 24),
    "rows": byte_product(1, 64, 128),
}
VNNI = replace(GENERIC_CPU, instructions=("dot4.vnni",))
AVX2 = replace(NARROW, vector_bits=256, instructions=("dot4.avx2",))
AMX = replace(GENERIC_CPU, instructions=("dot4.vnni", "tile8.amx"))


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("spec", [VNNI, AVX2, NARROW], ids=["vnni", "avx2", "none"])
def test_bytes_are_summed_by_words_where_there_is_an_instruction(name: str, spec: DeviceSpec):
    dag = BYTES[name]
    assert_space_is_right(dag, spec, candidates=2, seed=len(name))
    sketches = cpu_space(from_dag(dag), spec).sketches
    assert all(s.name.endswith(".words") == bool(spec.instructions) for s in sketches)


BLOCKS = {
    "one row": (1, 3, 4, 40, 4),
    "several rows": (5, 2, 2, 33, 4),
    "bytes": (3, 2, 8, 17, 8),
    "one block of two bits": (2, 1, 1, 16, 2),
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("spec", [VNNI, NARROW], ids=["vnni", "none"])
def test_products_of_a_block_are_summed_in_registers(name: str, spec: DeviceSpec):
    dag = packed_product(*BLOCKS[name], integers=True)
    assert_space_is_right(dag, spec, candidates=2, seed=len(name))
    words = ".words" * bool(spec.instructions)
    for sketch in cpu_space(from_dag(dag), spec).sketches:
        assert sketch.name.endswith(f"{words}.partial")
        kept = {b.name: b.scope for b in sketch.program.scratch}
        assert kept["T_products"] == "register"
        assert kept["T_quantized"] == "private"


def test_rows_of_any_number_are_quantized_in_private_memory():
    rows = Size("rows", 1, 512)
    with assuming({"rows": 64}):
        dag = packed_product(dim_of(rows), 18, 4, 32, 4, integers=True)
        sketches = cpu_space(from_dag(dag), VNNI).sketches
    assert [s.name.rpartition(".")[2] for s in sketches] == ["partial"] * 2
    for sketch in sketches:  # of a group's own rows, however many there are
        made = [b for b in sketch.program.scratch if b.scope == "private"]
        assert made and not any(size_variables(extent) for b in made for extent in b.shape)


TILES = {
    "one tap": byte_conv2d(5, 14, 64, 32, window=1),
    "padded": byte_conv2d(6, 9, 64, 48),
    "strided": byte_conv2d(9, 21, 32, 24, stride=2),
    "matrix": byte_product(40, 256, 64),
    "rows of part of a tile": byte_product(7, 48, 128),
}
NO_TILES = {
    "few words": byte_conv2d(8, 8, 12, 32),
    "few channels": byte_conv2d(8, 8, 64, 8),
    "few pixels": byte_product(3, 64, 64),
    "floats": conv2d(1, 8, 8, 64, 64),
}


@pytest.mark.parametrize("name", TILES)
def test_matrix_registers_take_tiles_of_bytes(name: str):
    dag = TILES[name]
    assert_space_is_right(dag, AMX, candidates=2, seed=len(name))
    assert any(".matrix." in s.name for s in cpu_space(from_dag(dag), AMX).sketches)
    assert not any(".matrix." in s.name for s in cpu_space(from_dag(dag), VNNI).sketches)


BF16 = replace(GENERIC_CPU, instructions=("dot2.avx512", "tile16.amx"))
PAIRS = {
    "one tap": in_bfloat16(conv2d(1, 5, 14, 64, 32, 1, pad=0)),
    "padded": in_bfloat16(conv2d(1, 6, 9, 32, 48)),
    "strided": in_bfloat16(conv2d(1, 9, 21, 32, 32, stride=2)),
    "grouped": in_bfloat16(conv2d(1, 6, 9, 64, 64, groups=2)),
    "narrow groups": in_bfloat16(conv2d(1, 6, 9, 32, 32, groups=8)),
    "groups of part of a tile": in_bfloat16(conv2d(1, 9, 13, 48, 48, groups=2, stride=2)),
    "matrix": pair_product(40, 64, 48),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_bfloat16_are_summed_by_words_and_tiles(name: str):
    dag = PAIRS[name]
    assert_space_is_right(dag, BF16, candidates=1, seed=len(name))
    forms = {s.name.split(".", 2)[2] for s in cpu_space(from_dag(dag), BF16).sketches}
    assert any(f.endswith(".words") for f in forms), forms
    assert any(f.startswith("matrix.") for f in forms), forms
    assert all(f.endswith(".words") or f.startswith("matrix.") for f in forms), forms


RESTATED = {
    "every second pixel": (in_bfloat16(conv2d(1, 9, 15, 3, 32, 7, stride=2)), "strips3"),
    "every pixel": (in_bfloat16(conv2d(1, 6, 9, 3, 48, 3)), "strips4"),
    "patches": (in_bfloat16(conv2d(1, 8, 32, 3, 32, 8, stride=8, pad=0)), "strips3"),
    "an odd number of channels": (in_bfloat16(conv2d(1, 3, 8, 33, 32, 1, pad=0)), "lengthened36"),
    "values": (attended(20, 33, 48, keys=False), "lengthened36.laid"),
    "keys": (attended(20, 33, 48, keys=True), "lengthened36.laid"),
    "heads": (attended_by_heads(3, 18, 33, 32), "lengthened36.laid"),
}


@pytest.mark.parametrize("name", RESTATED)
def test_steps_that_come_in_no_packs_are_made_to(name: str):
    dag, form = RESTATED[name]
    assert_space_is_right(dag, BF16, candidates=1, seed=len(name))
    space = cpu_space(from_dag(dag), BF16)
    found = {s.name for s in space.sketches}
    assert f"cpu.v16.matrix.pixels_slow.by_columns.{form}" in found, found
    assert f"cpu.v16.loops.pixels_slow.{form}.words" in found, found
    assert not any(form in s.name for s in cpu_space(from_dag(dag), GENERIC_CPU).sketches)


@pytest.mark.parametrize("keys", [True, False])
def test_columns_that_are_no_constant_are_laid_out_by_packs(keys: bool):
    dag = attended(20, 32, 48, keys=keys)
    assert_space_is_right(dag, BF16, candidates=1, seed=keys)
    space = cpu_space(from_dag(dag), BF16)
    assert any(".laid.words" in s.name for s in space.sketches)
    assert not any(".laid" in s.name for s in cpu_space(from_dag(dag), GENERIC_CPU).sketches)
    large = cpu_space(from_dag(attended(256, 128, 128, keys=keys)), BF16)
    assert ".laid" in default_candidate(large, BF16).sketch


@pytest.mark.parametrize("name", NO_TILES)
def test_what_fills_no_tile_goes_by_vectors(name: str):
    sketches = cpu_space(from_dag(NO_TILES[name]), AMX).sketches
    assert not any(".matrix." in s.name for s in sketches)


def test_deep_products_go_by_matrix_registers_untuned():
    """An instruction makes 256 results of 64 products each; one on vectors 16 of four."""
    space = cpu_space(from_dag(byte_conv2d(28, 28, 128, 128)), AMX)
    assert ".matrix." in default_candidate(space, AMX).sketch


@pytest.mark.parametrize("channels", [32, 48])
def test_rows_of_matrix_tiles_are_one_block(channels: int):
    """Else compilers move what is the same for all rows away from where it is used."""
    dag = byte_conv2d(6, 8, 64, channels)
    space = cpu_space(from_dag(dag), AMX)
    sketch = next(s for s in space.sketches if ".matrix." in s.name)
    (row,) = sketch.sample(1, np.random.default_rng(0))
    text = lower(sketch.instantiate(row), target_of(AMX)).text
    (hint, extent) = re.findall(r"unroll_hint\((\d+)\)\)\)\n *for \(.* < (\d+);", text)[-1]
    assert hint == extent == "8"


@pytest.mark.parametrize(
    ("dag", "groups"),
    [(elementwise(1, 256), 1), (elementwise(4, 256), 2), (elementwise(512, 256), 16),
     (softmax(8192, 256), 16)],
)  # fmt: skip
def test_groups_have_enough_to_do(dag: Dag, groups: int):
    """More than taking one costs, and no more groups than keep two cores busy."""
    cores = replace(GENERIC_CPU, compute_units=2)
    space = cpu_space(from_dag(dag), cores)
    program = space.instantiate(default_candidate(space, cores))
    assert {launch.global_size for launch in lower(program, CPU).launches} == {(groups, 1, 1)}


@pytest.mark.parametrize(
    ("height", "width", "channels", "run"),
    [(38, 30, 4, True), (38, 126, 3, True), (38, 30, 3, False), (38, 29, 4, False),
     (5, 30, 4, False), (38, 30, 16, False)],
)  # fmt: skip
def test_a_border_around_few_channels_is_written_by_vectors_of_pixels(
    height: int, width: int, channels: int, run: bool
):
    """Where there are rows enough, of enough pixels beside those done by elements at both ends."""
    dag = byte_conv2d(height, width, channels, 16)
    sketch = cpu_space(from_dag(dag), VNNI).sketches[0]
    (row,) = sketch.sample(1, np.random.default_rng(0))
    text = lower(sketch.instantiate(row), CPU).kernels[0].text
    assert ("for (int padded_xx_0_inside" in text) == run
    assert "vstore16(" in text or not run


def test_bytes_of_odd_channels_are_words_of_rows():
    found = [s.name for s in cpu_space(from_dag(byte_conv2d(5, 5, 6, 16)), VNNI).sketches]
    assert [n for n in found if n.endswith(".words")] == [n for n in found if ".strips8" in n]
    single = cpu_space(from_dag(byte_conv2d(5, 5, 6, 16, window=1)), VNNI).sketches
    words = [s.name for s in single if s.name.endswith(".words")]
    assert words and all(".lengthened8." in name for name in words)


def test_a_way_that_takes_more_registers_leaves_fewer_accumulators():
    def largest(spec: DeviceSpec) -> int:
        (sketch, *_) = cpu_space(from_dag(byte_conv2d(8, 8, 8, 64)), spec).sketches
        texts = (
            lower(sketch.instantiate(row), target_of(spec)).text
            for row in sketch.sample(60, np.random.default_rng(0))
        )
        return max(len(set(re.findall(r"conv_\d+", text))) for text in texts)

    assert largest(AVX2) < largest(replace(AVX2, instructions=("dot4.vnni",)))


BY_ROWS = {
    "softmax": (softmax(3, 96), "total"),
    "an axis that no vector divides": (softmax(3, 67), "total"),
    "mean of pixels side by side": (reduction(64, 49 * 16, "sum", first=False), "y"),
    "few outputs": (dense(1, 96, 10), "y"),
}
NOT_BY_ROWS = {
    "many outputs: their constants are packed": (dense(1, 96, 64), "y"),
    "a product: operands serve several results": (dense(8, 96, 10), "y"),
    "lanes over channels": (pool(1, 8, 8, 64, 8, 8, average=True), "pool"),
    "a convolution": (conv2d(1, 8, 8, 32, 32), "conv"),
    "rows of one vector": (softmax(3, 4), "total"),
    "rows of less than two vectors": (softmax(3, 7), "total"),
    "types without vectors": (integers(5, 64), "y"),
}


def rows_of(dag: Dag, stage: str) -> RowReduction | None:
    return find_row_reduction(accesses(Schedule(from_dag(dag)), stage), GENERIC_CPU)


@pytest.mark.parametrize("name", BY_ROWS)
def test_row_reductions_take_lanes_along_the_row(name: str):
    dag, stage = BY_ROWS[name]
    axis = rows_of(dag, stage)
    assert axis is not None and axis.lanes >= 4
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    (sketch,) = (s for s in space.sketches if not s.name.endswith("fused"))
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    text = lower(program, CPU).text
    assert ".lo + lanes" in text or ".lo, lanes" in text


@pytest.mark.parametrize("name", NOT_BY_ROWS)
def test_other_reductions_keep_lanes_over_results(name: str):
    dag, stage = NOT_BY_ROWS[name]
    assert rows_of(dag, stage) is None
