"""Images as an alternative: where a device reads constants faster so, and within its limits."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.device.profiles import profile_names, read_profile
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.replay import replay
from retune.schedule.space import Space
from retune.schedule.trace import Trace
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.devices import target_of
from retune.targets.gpu.space import gpu_space
from tests.support.dags import batched_product, conv2d, dense, depthwise, integers, pool
from tests.support.oracle import assert_items_agree

READS = replace(GENERIC_GPU, image_width=16_384, image_height=16_384, image_reads=1)
MALI = replace(READS, local_memory_bytes=0, max_work_group=384, compute_units=4)
SHAPES: dict[str, Dag] = {
    "window": conv2d(1, 4, 5, 8, 16, residual=True),
    "1x1": conv2d(1, 5, 7, 16, 36, 1, pad=0),
    "depthwise": depthwise(1, 5, 6, 12, stride=2),
    "dense": dense(6, 32, 24),
    "groups": conv2d(1, 5, 5, 16, 32, groups=2),
}


def space(dag: Dag, spec: DeviceSpec = READS) -> Space:
    return gpu_space(from_dag(merge_axes(dag)), spec)


def images(found: Space) -> list[str]:
    return [sketch.name for sketch in found.sketches if sketch.name.endswith(".image")]


@pytest.mark.parametrize("name", SHAPES)
def test_each_is_beside_one_that_reads_arrays(name: str):
    found = space(SHAPES[name])
    names = [sketch.name for sketch in found.sketches]
    assert images(found)
    assert {n.removesuffix(".image") for n in images(found)} <= set(names)
    assert not any("local" in n or "winograd" in n for n in images(found))


@pytest.mark.parametrize("name", SHAPES)
def test_candidates_read_texels_and_keep_the_meaning(name: str):
    found, dag = space(SHAPES[name]), merge_axes(SHAPES[name])
    for sketch in found.sketches:
        if sketch.name in images(found):
            (row,) = sketch.sample(1, np.random.default_rng(1))
            program = sketch.instantiate(row)
            source = lower(program, target_of(READS))
            assert "read_imagef(" in source.text, source.text
            assert any(spec.image for spec in source.buffers)
            assert_items_agree(dag, program)


@pytest.mark.parametrize(
    "dag",
    [
        batched_product(2, 9, 8, 12),
        integers(3, 40),
        conv2d(1, 5, 5, 8, 9),
        pool(2, 7, 11, 12, 3, 2, average=False),
        dense(1, 67, 31),
    ],
    ids=["no constant", "no floats", "channels that are no texels", "no weights", "one row"],
)
def test_nothing_else_is_an_image(dag: Dag):
    assert not images(space(dag))


@pytest.mark.parametrize("name", profile_names())
def test_only_where_the_profile_says_that_they_are_faster(name: str):
    spec = read_profile(name).spec
    assert bool(images(space(SHAPES["window"], spec))) == bool(spec.image_reads)


def test_a_device_that_does_not_say_so_has_none():
    assert not images(space(SHAPES["window"], replace(READS, image_reads=0)))
    assert not images(space(SHAPES["window"], GENERIC_GPU))


def test_an_image_has_no_more_rows_than_the_device_allows():
    """Weights of 9 * 32 * 128 floats are nine rows of 1024 texels, or 36 of 256."""
    dag = conv2d(1, 4, 4, 32, 128)
    for spec, allowed in (
        (replace(READS, image_height=9), True),
        (replace(READS, image_height=8), False),
        (replace(READS, image_width=300, image_height=36), True),
        (replace(READS, image_width=300, image_height=35), False),
        (replace(READS, image_width=0, image_height=0), False),
    ):
        assert bool(images(space(dag, spec))) == allowed, spec


def test_rows_of_a_packed_constant_depend_on_the_tiles():
    """Columns of tiles that overlap are in the image twice: a condition on each candidate."""
    dag, spec = dense(16, 31, 36), replace(READS, image_width=16, image_height=24)
    sketch = space(dag, spec).sketch("gpu.v4.direct.image")
    assert any("31" in str(c) and "24" in str(c) for c in sketch.constraints)
    free = space(dag).sketch("gpu.v4.direct.image")
    rows = free.sample(300, np.random.default_rng(0))
    assert 0 < sketch.valid(rows).sum() < free.valid(rows).sum()
    for row in sketch.sample(8, np.random.default_rng(1)):
        held = lower(sketch.instantiate(row), target_of(spec)).buffer("w")
        assert held.image == 16 and held.elements <= 24 * 16 * 4


def test_it_is_traced_and_replayed():
    found, dag = space(SHAPES["dense"]), merge_axes(SHAPES["dense"])
    sketch = found.sketch("gpu.v4.direct.image")
    (row,) = sketch.sample(1, np.random.default_rng(2))
    decided = sketch.decided(row)
    trace = Trace.from_json(sketch.trace.to_json())
    assert "s.read_as_image(buffer='w', texels=1024)" in str(trace)
    again = replay(from_dag(dag), trace, decided).program
    target = target_of(READS)
    assert lower(again, target).text == lower(sketch.instantiate(row), target).text


def test_it_is_the_default_where_all_else_is_equal():
    found = space(SHAPES["1x1"], MALI)
    assert found.trace(default_candidate(found, MALI)).steps
    arrays, texels = (found.sketch(f"gpu.v4.direct{end}") for end in ("", ".image"))
    rows = texels.sample(50, np.random.default_rng(0))
    assert (estimate(texels, rows, MALI) < estimate(arrays, rows, MALI)).all()


def test_the_text_of_a_convolution(golden):
    sketch = space(conv2d(1, 4, 6, 32, 64), MALI).sketch("gpu.v4.direct.image")
    chosen = {
        "tile.out.yy": (2, 1), "tile.out.xx": (2, 2), "tile.out.ff": (1, 8),
        "depth.conv": (4,), "unroll.conv": (4,),
    }  # fmt: skip
    program = sketch.instantiate(sketch.row(chosen))
    assert golden == f"{program}\n\n{lower(program, target_of(MALI)).text}"
