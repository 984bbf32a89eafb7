"""Every sketch for GPUs keeps the meaning, whatever the shape, and the device's limits."""

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.ir.merge import merge_axes
from retune.ir.stmt import For, blocks, from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.search.model.features import featurise
from retune.search.model.features.vectors import COLUMN
from retune.targets.cost.estimate import default_candidate
from retune.targets.gpu.space import gpu_space
from tests.support.dags import (
    batched_product,
    conv2d,
    dense,
    depthwise,
    elementwise,
    integers,
    joined,
    packed_product,
    pool,
    random_dag,
    reduction,
    softmax,
    standardised,
    total,
    transpose,
)
from tests.support.gpu import LIMITS, WITHOUT_LOCAL_MEMORY, assert_within_limits
from tests.support.oracle import assert_items_agree, assert_same_meaning
from tests.support.properties import chooser, quick
from tests.support.sampling import one_of_each
from tests.support.statements import walk
from tests.support.tests_fixtures import Golden

SHAPES: dict[str, Dag] = {
    "convolution": conv2d(1, 5, 6, 16, 8),
    "pixels and channels": conv2d(1, 5, 7, 16, 36, 1, pad=0),
    "odd sizes": conv2d(1, 7, 5, 8, 12, 3, stride=2),
    "colours": conv2d(2, 9, 8, 3, 17, 3, stride=2, residual=True),
    "groups": conv2d(1, 5, 5, 16, 32, groups=2),
    "sliced": conv2d(1, 2, 2, 32, 8, 1, pad=0),
    "sliced window": conv2d(1, 4, 3, 32, 8),
    "dense batch": dense(5, 32, 24),
    "dense row": dense(1, 67, 31),
    "packed row": packed_product(1, 3, 2, 20, 4),
    "packed rows": packed_product(3, 5, 1, 24, 4),
    "packed row of integers": packed_product(1, 3, 2, 32, 4, integers=True),
    "packed batch": packed_product(5, 2, 1, 33, 2),
    "packed batch of integers": packed_product(5, 2, 2, 32, 4, integers=True),
    "attention": batched_product(2, 9, 8, 11),
    "sum over a cache": batched_product(3, 2, 41, 8),
    "prime depth": batched_product(2, 5, 37, 8),
    "short fetch": dense(5, 28, 12),
    "short slices": conv2d(1, 3, 4, 136, 8, 1, pad=0),
    "gated": conv2d(2, 4, 5, 24, 12, 1, pad=0, gated=True),
    "gated window": conv2d(1, 5, 4, 16, 8, gated=True),
    "gated depthwise": depthwise(1, 5, 6, 12, gated=True),
    "depthwise": depthwise(1, 5, 6, 12, stride=2),
    "depthwise 5x5": depthwise(1, 7, 6, 8, window=5),
    "largest of a window": pool(2, 7, 11, 12, 3, 2, average=False),
    "mean of all pixels": pool(1, 7, 7, 40, 7, 7, average=True),
    "squeezed": conv2d(1, 1, 1, 96, 27, 1, pad=0),
    "mean of a map": pool(1, 14, 15, 12, 14, 15, average=True),
    "few columns": reduction(130, 5, "sum", first=True),
    "long rows": reduction(2, 301, "max", first=False),
    "softmax": softmax(3, 67),
    "standardised rows": standardised(3, 64),
    "one standardised row": standardised(1, 192),
    "columns": reduction(40, 35, "max", first=True),
    "elements": elementwise(6, 64),
    "concatenation": joined(3, 4, 8),
    "transposition": transpose(3, 4, 5),
    "integers": integers(3, 40),
    "one number": total(3, 40),
}


def spaces(dag: Dag, spec: DeviceSpec):
    return gpu_space(from_dag(dag), spec).sketches


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("spec", [GENERIC_GPU, WITHOUT_LOCAL_MEMORY], ids=lambda s: s.name)
def test_every_sketch_keeps_the_meaning(name: str, spec: DeviceSpec):
    dag = merge_axes(SHAPES[name])
    rng = np.random.default_rng(len(name))
    for sketch in spaces(dag, spec):
        verify(sketch.program)
        for row in sketch.sample(1, rng):
            program = sketch.instantiate(row)
            verify(program)
            assert_items_agree(dag, program)


@quick(10)
@given(st.data())
def test_random_expressions(data: st.DataObject):
    dag = random_dag(chooser(data))
    for sketch in spaces(dag, GENERIC_GPU):
        for row in sketch.sample(1, np.random.default_rng(0)):
            program = sketch.instantiate(row)
            lower(program, GPU)
            assert_items_agree(dag, program)


LARGE: dict[str, Dag] = {
    "convolution": conv2d(1, 56, 56, 64, 64),
    "deep": conv2d(1, 7, 7, 512, 512),
    "dense row": dense(1, 2048, 1000),
    "depthwise": depthwise(1, 28, 28, 256),
    "mean of all pixels": pool(1, 7, 7, 2048, 7, 7, average=True),
    "classes": conv2d(1, 1, 1, 1280, 1000, 1, pad=0),
    "squeezed": conv2d(1, 1, 1, 960, 240, 1, pad=0),
    "mean of a large map": pool(1, 112, 112, 32, 112, 112, average=True),
    "long rows": reduction(4, 200_000, "max", first=False),
}


@pytest.mark.parametrize("name", LARGE)
def test_candidates_keep_to_the_limits(name: str):
    rng = np.random.default_rng(0)
    for sketch in spaces(merge_axes(LARGE[name]), GENERIC_GPU):
        for row in sketch.sample(3, rng):
            assert_within_limits(sketch.instantiate(row), GENERIC_GPU)
            for launch in lower(sketch.instantiate(row), GPU).launches:
                assert prod(launch.global_size) >= prod(launch.local_size) > 1


@pytest.mark.parametrize(("name", "limits"), one_of_each(SHAPES, LIMITS))
def test_small_devices(name: str, limits: tuple[int, int]):
    items, local_bytes = limits
    spec = replace(GENERIC_GPU, max_work_group=items, local_memory_bytes=local_bytes)
    dag = merge_axes(SHAPES[name])
    rng = np.random.default_rng(items)
    for sketch in spaces(dag, spec):
        (row,) = sketch.sample(1, rng)
        program = sketch.instantiate(row)
        assert_within_limits(program, spec)
        assert_items_agree(dag, program)


MANY: dict[str, Dag] = {
    "rows": dense(300_000, 8, 8),
    "long rows": reduction(300_000, 40, "max", first=False),
    "images": conv2d(70_000, 3, 3, 4, 4),
    "images in groups": conv2d(40_000, 3, 3, 8, 8, groups=2),
    "windows of images": depthwise(70_000, 3, 3, 4),
    "a long line": pool(1, 1, 300_000, 4, 1, 2, average=False),
    "elements": elementwise(300_000, 4),
    "small products": batched_product(4096, 2, 8, 2),
}


@pytest.mark.parametrize("name", MANY)
def test_groups_and_items_on_the_second_and_third_axis_are_few(name: str):
    dag = merge_axes(MANY[name])
    found = spaces(dag, GENERIC_GPU)
    assert any(s.name != "gpu.plain" for s in found) or name in ("long rows", "elements")
    for sketch in found:
        for row in sketch.sample(4, np.random.default_rng(0)):
            assert_within_limits(sketch.instantiate(row), GENERIC_GPU)


def test_many_images_in_one_axis_of_groups_keep_the_meaning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("retune.targets.gpu.tile.MOST_GROUPS", 16)
    dag = conv2d(3, 4, 5, 4, 8, groups=2)
    for sketch in spaces(dag, GENERIC_GPU):
        (row,) = sketch.sample(1, np.random.default_rng(0))
        program = sketch.instantiate(row)
        kinds = {n.kind for n in walk(program.body) if isinstance(n, For)}
        assert not kinds & {"group.1", "group.2"}
        assert_items_agree(dag, program)


@pytest.mark.parametrize("name", LARGE)
def test_the_untuned_candidate_uses_the_device(name: str):
    space = gpu_space(from_dag(merge_axes(LARGE[name])), GENERIC_GPU)
    program = space.instantiate(default_candidate(space, GENERIC_GPU))
    launches = lower(program, GPU).launches
    assert max(prod(each.global_size) for each in launches) >= 32 * GENERIC_GPU.compute_units


@pytest.mark.parametrize(
    ("name", "groups"),
    [("classes", 125), ("squeezed", 30), ("mean of a large map", 32), ("long rows", 60)],
)
def test_few_results_of_deep_reductions_are_spread_over_units(name: str, groups: int):
    space = gpu_space(from_dag(merge_axes(LARGE[name])), GENERIC_GPU)
    first, *_ = lower(space.instantiate(default_candidate(space, GENERIC_GPU)), GPU).launches
    assert prod(first.global_size) // prod(first.local_size) >= groups


def test_a_row_reads_weights_in_blocks_in_one_kernel():
    """Products of blocks, each kept for a second kernel, took 1.3 to 14 times as long (H200)."""
    space = gpu_space(from_dag(packed_product(1, 64, 4, 2048, 4)), GENERIC_GPU)
    best = default_candidate(space, GENERIC_GPU)
    assert best.sketch.endswith(".shared.partial")
    assert len(lower(space.instantiate(best), GPU).launches) == 1


def test_a_row_with_weights_in_one_block_has_nothing_to_share():
    space = gpu_space(from_dag(packed_product(1, 1, 1, 8, 2)), GENERIC_GPU)
    assert default_candidate(space, GENERIC_GPU).sketch.endswith(".direct.partial")


def test_items_share_a_decoders_sums_over_its_cache():
    space = gpu_space(from_dag(batched_product(32, 1, 1024, 64)), GENERIC_GPU)
    assert default_candidate(space, GENERIC_GPU).sketch == "gpu.rows"


def test_a_device_without_local_memory_gets_no_copies():
    sketches = spaces(conv2d(1, 14, 14, 64, 64), WITHOUT_LOCAL_MEMORY)
    assert sketches
    for sketch in sketches:
        assert all(b.buffer.scope != "local" for b in blocks(sketch.program.body))
        assert any(n.kind == "vectorize" for n in walk(sketch.program.body) if isinstance(n, For))


@pytest.mark.parametrize(("stride", "window"), [(1, 3), (2, 3), (1, 5)])
def test_an_item_reads_what_its_window_covers_once(stride: int, window: int):
    dag = depthwise(1, 112, 112, 96, stride=stride, window=window)
    space = gpu_space(from_dag(dag), GENERIC_GPU)
    sketch = space.sketch("gpu.v1.direct.halo")
    tile = {"tile.out.yy": (4, 2), "tile.out.xx": (4, 3), "tile.out.ff": (1, 8)}
    text = lower(sketch.instantiate(sketch.row(tile)), GPU).text
    code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
    covered = (stride + window) * (2 * stride + window)
    read = [len(re.findall(rf"\b{name}\[{name}_at|\({name} \+ {name}_at", code)) for name in "xk"]
    assert read == [covered, window * window]
    assert "if (" not in code


@pytest.mark.parametrize("stride", [1, 2])
def test_padded_windows_start_with_what_reads_once(stride: int):
    space = gpu_space(from_dag(depthwise(1, 112, 112, 96, stride=stride)), GENERIC_GPU)
    assert default_candidate(space, GENERIC_GPU).sketch.endswith(".halo")


def test_operands_whose_channels_come_first_are_copied_with_channels_last():
    space = gpu_space(from_dag(dense(64, 784, 128)), GENERIC_GPU)
    program = space.sketch("gpu.v4.local4").program
    (weights,) = (b for b in program.scratch if b.name == "w.local")
    assert str(weights.shape[0]).startswith("depth")
    assert program.packed == ("w",)


def test_a_prime_depth_is_fetched_in_parts_of_which_the_last_is_short():
    space = gpu_space(from_dag(batched_product(3, 197, 197, 64)), GENERIC_GPU)
    chosen = default_candidate(space, GENERIC_GPU)
    assert chosen.sketch == "gpu.v4.local4.short"
    (depth,) = dict(chosen.decisions)["depth.y"]
    text = lower(space.instantiate(chosen), GPU).text
    code = [line for line in text.splitlines() if not line.startswith("//")]
    assert any(f"y_k_0_inside < {197 // depth};" in line for line in code)
    tests = [number for number, line in enumerate(code) if "< 197" in line]
    assert min(tests) > max(number for number, line in enumerate(code) if "_inside" in line)


@pytest.mark.parametrize(
    "dag",
    [
        conv2d(1, 14, 14, 96, 64, 1, pad=0, gated=True),
        conv2d(1, 14, 14, 64, 64, gated=True),
        depthwise(1, 28, 28, 64, gated=True),
    ],
    ids=["1x1", "3x3", "depthwise"],
)
def test_what_is_before_a_convolution_is_computed_where_its_data_is_copied(dag: Dag):
    """Where nothing is copied it is a kernel before: each item would compute it anew."""
    for sketch in spaces(merge_axes(dag), GENERIC_GPU):
        (row,) = sketch.sample(1, np.random.default_rng(0))
        apart = not any(part in sketch.name for part in (".local", ".halo"))
        adds_up = sketch.name.endswith(".sliced")
        assert len(lower(sketch.instantiate(row), GPU).launches) == 1 + apart + adds_up, sketch.name


def test_features_see_local_memory():
    space = gpu_space(from_dag(conv2d(1, 28, 28, 64, 64)), GENERIC_GPU)
    population = space.sample(64, np.random.default_rng(0))
    found = featurise(space, population, GENERIC_GPU)
    assert np.isfinite(found).all()
    shares = found[:, COLUMN["program.local_share"]]
    fetched = np.array(["local" in space.sketches[i].name for i in population.sketch])
    assert ((shares > 0) == fetched).all()
    assert shares.max() <= 1.0


def test_shared_slices_add_up_in_local_memory():
    space = gpu_space(from_dag(conv2d(1, 14, 14, 64, 64)), GENERIC_GPU)
    sketch = space.sketch("gpu.v4.local4.halo.shared")
    (row,) = sketch.sample(1, np.random.default_rng(0))
    assert len(lower(sketch.instantiate(row), GPU).launches) == 1
    assert any(b.name == "conv.part" and b.scope == "local" for b in sketch.program.scratch)


def test_traces_make_the_same_programs():
    dag = dense(16, 32, 24)
    space = gpu_space(from_dag(dag), GENERIC_GPU)
    population = space.sample(8, np.random.default_rng(0))
    for index in range(len(population)):
        candidate = space.candidate(population, index)
        again = replay(from_dag(dag), space.trace(candidate), dict(candidate.decisions))
        assert_same_meaning(dag, again.program)


def test_the_text_of_a_convolution(golden: Golden):
    space = gpu_space(from_dag(conv2d(1, 8, 8, 16, 32), "layer"), GENERIC_GPU)
    sketch = space.sketch("gpu.v4.local4.halo")
    chosen = {
        "tile.out.yy": (2, 2), "tile.out.xx": (4, 2), "tile.out.ff": (1, 8),
        "depth.conv": (8,), "unroll.conv": (4,),
    }  # fmt: skip
    program = sketch.instantiate(sketch.row(chosen))
    assert golden == f"{program}\n\n{lower(program, GPU).text}"
