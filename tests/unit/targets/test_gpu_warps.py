"""GPU tiles of bytes go by warps where the device has an instruction for them."""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.lower import lower
from retune.core.dtypes import FLOAT16, INT32
from retune.core.target import GENERIC_GPU
from retune.ir.expr import Expr, Var, cast
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.space import Sketch
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.devices import target_of
from retune.targets.gpu.space import gpu_space
from tests.support.dags import (
    Choose,
    byte_conv2d,
    byte_product,
    half_conv2d,
    half_product,
    half_products,
)
from tests.support.gpu_warps import SHAPES, random_product, rounded_product
from tests.support.oracle import assert_items_agree
from tests.support.properties import chooser, quick, seeded

_PANELS = "gpu.v4.warp.panels"
_AHEAD = (*(f"{_PANELS}.ahead{stages}" for stages in (2, 3, 4)), f"{_PANELS}.ahead3.deep")
NVIDIA = replace(
    GENERIC_GPU,
    compute_units=132,
    instructions=(
        "dot4.dp4a",
        "warp8.mma",
        "warp16.mma",
        "warp16s.mma",
        "warp16c.mma",
        "warp32.mma",
        "warp32c.mma",
        "copy.ahead",
    ),
    max_work_group=1024,
)


def named(sketch: Sketch, sizes: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """The sizes by decisions; of others the smallest."""
    return {d.name: sizes.get(d.name.partition(".")[0], [1]) for d in sketch.decisions}


def names(dag: Dag) -> list[str]:
    """The sketches by warps: all that there are, or none; panels have others beside them."""
    found = [sketch.name for sketch in gpu_space(from_dag(dag), NVIDIA).sketches]
    warps = [name for name in found if ".warp" in name]
    if _PANELS not in warps and not any("strips" in name for name in warps):
        assert warps in ([], found), "where there are some they are faster than words, always"
    return warps


@pytest.mark.parametrize("name", SHAPES)
def test_every_sketch_keeps_the_meaning(name: str):
    dag, rng = SHAPES[name], np.random.default_rng(len(name))
    space = gpu_space(from_dag(dag), NVIDIA)
    found = names(dag)
    direct = [f"gpu.v4.warp{form}" for form in ("", ".shared", ".joined32", ".strips4")]
    known = [*direct, _PANELS, *_AHEAD]
    assert found and found == [n for n in known if n in found]
    for sketch in map(space.sketch, found):
        for row in sketch.sample(1, rng):
            program = sketch.instantiate(row)
            verify(program)
            assert np.isfinite(estimate(sketch, row[None], NVIDIA)).all()
            assert_items_agree(dag, program)


def assert_products_keep_the_meaning(choose: Choose) -> None:
    """Of any size, types and operands that an instruction takes, by any sketch."""
    dag, program = random_product(choose, NVIDIA)
    verify(program)
    assert_items_agree(dag, program)


@quick(6)
@given(data=st.data())
def test_random_products_keep_the_meaning(data: st.DataObject):
    assert_products_keep_the_meaning(chooser(data))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_many_random_products_keep_the_meaning(seed: int):
    assert_products_keep_the_meaning(seeded(seed))


def test_a_window_with_slices_reads_where_bytes_are(golden: object):
    space = gpu_space(from_dag(SHAPES["window"]), NVIDIA)
    sketch = space.sketch("gpu.v4.warp.shared")
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    assert lower(program, target_of(NVIDIA)).text == golden


@pytest.mark.parametrize(
    ("dag", "sketches"),
    [
        (byte_conv2d(8, 8, 32, 32), ["gpu.v4.warp"]),  # one step: no slices
        (byte_product(9, 64, 32), ["gpu.v4.warp", "gpu.v4.warp.shared"]),
        (byte_conv2d(8, 8, 48, 32), ["gpu.v4.warp.strips48"]),  # no whole steps of a tap
        (byte_conv2d(8, 8, 64, 24), []),  # no whole warp of channels
        (byte_conv2d(8, 3, 64, 32), [_PANELS]),  # a warp's pixels are of several lines
        (byte_product(1, 64, 32), []),
    ],
    ids=["one step", "nine rows", "steps", "channels", "columns", "a single row"],
)
def test_what_fits_no_warp_goes_by_words(dag: Dag, sketches: list[str]):
    assert names(dag) == sketches


@pytest.mark.parametrize(
    ("channels", "groups", "joined"), [(64, 16, 32), (64, 8, 32), (96, 4, 96), (32, 16, 0)]
)
def test_narrow_groups_are_joined_to_whole_warps(channels: int, groups: int, joined: int):
    found = names(half_conv2d(8, 8, channels, channels, groups=groups))
    wanted = [f"gpu.v4.warp.joined{joined}"] if joined else []
    assert found[:1] == wanted, "not sixteen groups in one"


@pytest.mark.parametrize(
    ("channels", "window", "stride", "pixel"),
    [(3, 7, 2, 4), (3, 3, 1, 8), (3, 16, 16, 3), (24, 3, 1, 24), (3, 1, 1, 0)],
    ids=["stem", "every pixel", "patches", "24 channels", "one tap"],
)
def test_windows_over_few_channels_read_strips(channels: int, window: int, stride: int, pixel: int):
    found = names(half_conv2d(8 * stride, 8 * stride, channels, 32, window, stride))
    strips = [name for name in found if "strips" in name]
    assert [name.split(".")[3] for name in strips[:1]] == ([f"strips{pixel}"] if pixel else [])


def test_data_that_the_epilogue_reads_by_bytes_go_by_words():
    (y,) = byte_product(16, 64, 64).outputs
    x = next(t for t in Dag((y,)).placeholders if t.name == "x")
    dag = Dag((compute("z", y.shape, lambda i, j: y[i, j] + cast(x[i, j], INT32), [y, x]),))
    found = {sketch.name for sketch in gpu_space(from_dag(dag), NVIDIA).sketches}
    assert found and all(name.endswith(".words") for name in found)
    assert names(dag) == []


def test_without_the_instruction_there_are_none():
    words = replace(NVIDIA, instructions=("dot4.dp4a",))
    space = gpu_space(from_dag(SHAPES["window"]), words)
    assert not any(".warp" in sketch.name for sketch in space.sketches)


@pytest.mark.parametrize("name", ["byte scores", "scores", "values", "rounded scores", "tap of 24"])
def test_products_of_activations_go_by_panels(name: str):
    assert names(SHAPES[name])[0] == _PANELS


def test_panels_are_copied_from_where_parts_of_a_tensor_lie():
    """Query and key are slices of one tensor, and the key is turned before it is multiplied."""
    data = placeholder("data", (32, 3, 2, 32), FLOAT16)
    k = reduce_axis("k", 32)
    turned = compute("turned", (2, 32, 32), lambda h, n, t: data[t, 1, h, n], [data])

    def product(h: Var, i: Var, j: Var) -> Expr:
        return data[i, 0, h, k] * turned[h, k, j]

    dag = Dag((compute("y", (2, 32, 32), product, [data, turned], reduce=(k,)),))
    assert names(dag) == [_PANELS]
    sketch = gpu_space(from_dag(dag), NVIDIA).sketch(_PANELS)
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    assert_items_agree(dag, program)
    text = lower(program, target_of(NVIDIA)).text
    assert text.count("(__local ushort8*)") == 2, "sixteen bytes at once, of both"


def test_windows_without_epilogue_go_by_panels():
    (out,) = half_conv2d(5, 7, 64, 32, images=2).outputs
    assert out.op is not None
    dag = Dag((out.op.inputs[0],))
    found = [name for name in names(dag) if name in _AHEAD]
    assert found == list(_AHEAD[1:3])
    sketch = gpu_space(from_dag(dag), NVIDIA).sketch(found[0])
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    assert_items_agree(dag, program)


def test_steps_are_filled_up_with_zeros():
    """Sixty-four steps need none, and are copied by whole vectors; thirty-seven become 64."""
    whole, filled = (
        lower(sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0]), target_of(NVIDIA))
        for dag in (
            half_products(2, 32, 64, 64, turned=True),
            half_products(2, 32, 37, 64, turned=False),
        )
        for sketch in [gpu_space(from_dag(dag), NVIDIA).sketch(_PANELS)]
    )
    assert "? ((__global ushort*)" not in whole.text and "(__local ushort8*)" in whole.text
    assert "< 37) ? ((__global ushort*)" in filled.text


def test_a_small_image_takes_slices():
    """Seven by seven pixels make sixteen warps for a layer of 64 channels, on 132 units."""
    space = gpu_space(from_dag(byte_conv2d(7, 7, 512, 64)), NVIDIA)
    best = [
        min(estimate(sketch, sketch.sample(64, np.random.default_rng(0)), NVIDIA))
        for sketch in space.sketches[:2]
    ]
    assert best[1] < 0.7 * best[0]


def test_products_of_tf32_are_of_float32_by_other_tiles():
    """What instructions do not multiply is not rounded either; float32 has no such instruction."""
    dag = rounded_product(4, 48, 32, constant=True)
    assert names(dag) == []
    sketch = gpu_space(from_dag(dag), NVIDIA).sketches[0]
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    assert "round_to_tf32" not in str(program)
    text = lower(program, target_of(NVIDIA)).text
    assert "fma(" in text and "0x" not in text


@pytest.mark.parametrize(
    "dag", [half_product(64, 128, 256), rounded_product(64, 64, 256, constant=True)]
)
def test_panels_are_copied_and_read_by_sixteen_bytes(dag: Dag):
    """Also those of float32, whose rounding to TF32 is no condition on what is read."""
    sketch = gpu_space(from_dag(dag), NVIDIA).sketch(_AHEAD[0])
    decided = {n: [2] for n in ("warps", "across", "pixels")}
    program = sketch.instantiate(sketch.row(named(sketch, decided)))
    assert_items_agree(dag, program)
    text = lower(program, target_of(NVIDIA)).text
    assert "reqd_work_group_size(4, 16, 2)" in text, "two warps beside each other, in two rows"
    assert (
        text.count("COPY_AHEAD_16(") == 7 and "COPY_AHEAD(4," not in text.partition("__kernel")[2]
    )
    assert "ldmatrix.sync.aligned.m8n8.x4" in text and text.count("_READ(((const") == 5


def test_copies_come_between_products():
    """The first product waits for no copy, and the last copies are away before half of them."""
    dag = half_product(16, 2048, 64)
    sketch = gpu_space(from_dag(dag), NVIDIA).sketch(_AHEAD[-1])
    decided = {"pixels": [4], "vectors": [2]}
    program = sketch.instantiate(sketch.row(named(sketch, decided)))
    assert_items_agree(dag, program)
    loop = lower(program, target_of(NVIDIA)).text.partition("barrier(")[2]
    found = re.findall(r"COPY_AHEAD_16|WARP16C_FLOAT16FLOAT16_1|COMMIT_COPIES", loop)
    kinds = "".join({"COPY": "c", "WARP": "p", "COMM": "."}[word[:4]] for word in found)
    assert kinds.startswith("pc") and kinds.count("p") == 8 and kinds.count("c") == 20
    assert kinds.endswith("..pppp"), "batches end where the second half starts"


def test_kernels_may_declare_more_than_drivers_state():
    """Tiles of 128 x 256 whose copies run ahead: 354 us on an H100, of 128 x 128 in 48 KB 397."""
    more = replace(NVIDIA, instructions=(*NVIDIA.instructions, "local.160k"))
    assert more.declared_local_bytes == 160 << 10
    dag = half_product(4096, 4096, 4096)
    space = gpu_space(from_dag(dag), more)
    best = default_candidate(space, more)
    assert best.sketch == _AHEAD[-1]
    text = lower(space.instantiate(best), target_of(more)).text
    assert sum(map(int, re.findall(r"__local ushort \w+\[(\d+)\]", text))) * 2 == 144 << 10


@pytest.mark.parametrize(
    ("dag", "sketch"),
    [
        (half_product(4096, 4096, 4096), f"{_PANELS}.ahead3"),
        (rounded_product(197, 1536, 384, constant=True), "gpu.v4.warp.shared"),
        (rounded_product(197, 384, 1536, constant=True), "gpu.v4.warp.shared"),
    ],
)
def test_estimate_puts_what_was_fastest_first(dag: Dag, sketch: str):
    # H100: 398 us, where two stages take 470. 9 us each, where panels took 20 and 25: they came
    # first while each of the four loads by which TF32 is written counted as a read of its own.
    assert default_candidate(gpu_space(from_dag(dag), NVIDIA), NVIDIA).sketch == sketch


def test_what_few_warps_read_takes_time():
    """H200, 3136 pixels of 304 channels: items of 2 pixels take 30 us, of 8 pixels 77."""
    sketch = gpu_space(from_dag(half_conv2d(112, 28, 304, 152)), NVIDIA).sketch("gpu.v4.warp")
    rows = [sketch.row(named(sketch, {"pixels": [pixels]})) for pixels in (2, 8)]
    small, large = estimate(sketch, np.array(rows), NVIDIA)
    assert small < 0.9 * large


def test_few_results_of_an_item_read_what_is_beside_them():
    """H200, 50176 x 64 x 256 with a residual: 49 us in tiles of 16 x 2 pixels and vectors of an
    item, 30 in those of 4 x 2; without a residual 23 and 21."""
    sketches = [
        gpu_space(from_dag(half_product(50176, 64, 256, beside=b)), NVIDIA).sketch("gpu.v4.warp")
        for b in (False, True)
    ]
    sizes = [{"pixels": [n], "vectors": [2], "unroll": [1]} for n in (16, 4)]
    plain, beside = (
        estimate(s, np.array([s.row(named(s, row)) for row in sizes]), NVIDIA) for s in sketches
    )
    assert beside[0] > beside[1] and beside[0] / beside[1] > 1.05 * plain[0] / plain[1]


def test_windows_take_longer_to_copy_than_products():
    """Of as many rows and steps: their places take time, and the way through another cache."""
    window, product = half_conv2d(56, 56, 64, 64, images=4), half_product(4 * 3136, 576, 64)
    times = [
        estimate(s, np.array([s.row(named(s, {"warps": [2], "pixels": [16]}))]), NVIDIA)[0]
        for s in (gpu_space(from_dag(d), NVIDIA).sketch(_AHEAD[1]) for d in (window, product))
    ]
    assert 1.02 < times[0] / times[1] < 1.3


@pytest.mark.parametrize(("window", "near"), [(3, True), (1, False)])
def test_copies_of_windows_stay_in_the_first_level_cache(window: int, near: bool):
    """H100, 64 channels at batch 16: 20 us, 27 past that cache. Each tap reads the pixels again."""
    dag = half_conv2d(8, 8, 128, 64, window)
    sketch = gpu_space(from_dag(dag), NVIDIA).sketch(_AHEAD[1])
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    loop = lower(program, target_of(NVIDIA)).text.partition("COPIES_ARRIVED(2);")[2]
    assert ("COPY_AHEAD(16," in loop) == near and ("COPY_AHEAD_16(" in loop) != near


@pytest.mark.parametrize("columns", [64, 512])
def test_deeper_products_take_longer_by_each_sketch(columns: int):
    spaces = [gpu_space(from_dag(half_product(256, n, columns)), NVIDIA) for n in (256, 1024)]
    for name in names(half_product(256, 256, columns)):
        shallow, deep = (
            estimate(sketch, sketch.sample(64, np.random.default_rng(0)), NVIDIA)
            for sketch in (space.sketch(name) for space in spaces)
        )
        assert shallow.min() < deep.min() and shallow.max() < deep.max()
