"""Winograd sketches for GPUs keep the meaning and the limits, and are ranked beside direct ones.

Those with slices of the channels are run in tests/device/test_gpu_winograd.py.
"""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.merge import merge_axes
from retune.ir.stmt import For, blocks, from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.space import Sketch, Space
from retune.schedule.trace import Trace
from retune.search.model.features import featurise
from retune.search.model.features.vectors import COLUMN
from retune.targets.cost.estimate import default_candidate
from retune.targets.gpu.winograd import PREFIX, gpu_winograd_families
from retune.targets.spaces import space_of
from tests.support.dags import conv2d
from tests.support.gpu import SMALL, WITHOUT_LOCAL_MEMORY, assert_within_limits
from tests.support.oracle import assert_items_agree, assert_same_meaning
from tests.support.statements import walk
from tests.support.winograd import OTHERS, nchw

SHAPES: dict[str, Dag] = {
    "gated": conv2d(1, 4, 5, 16, 16, gated=True),
    "odd": conv2d(1, 3, 5, 16, 16),
    "prime channels": conv2d(1, 2, 5, 17, 19, residual=True),
    "batch, no padding": conv2d(2, 4, 3, 16, 17, pad=0),
    "channels first": nchw(1, 16, 5, 4, 17),
}


def sketches(dag: Dag, spec: DeviceSpec = GENERIC_GPU) -> tuple[Sketch, ...]:
    return Space(gpu_winograd_families(from_dag(merge_axes(dag)), spec)).sketches


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("spec", [GENERIC_GPU, WITHOUT_LOCAL_MEMORY], ids=lambda s: s.name)
def test_every_sketch_keeps_the_meaning(name: str, spec: DeviceSpec):
    dag = merge_axes(SHAPES[name])
    made = sketches(dag, spec)
    assert {f"{PREFIX}2", f"{PREFIX}4"} <= {s.name[: len(PREFIX) + 1] for s in made}
    for sketch in made:
        verify(sketch.program)
        (row,) = sketch.sample(1, np.random.default_rng(len(name)))
        program = sketch.instantiate(row)
        verify(program)
        assert_items_agree(dag, program)


@pytest.mark.parametrize(("items", "local_bytes"), SMALL)
def test_small_devices(items: int, local_bytes: int):
    spec = replace(GENERIC_GPU, max_work_group=items, local_memory_bytes=local_bytes)
    dag = merge_axes(SHAPES["odd"])
    for sketch in sketches(dag, spec):
        (row,) = sketch.sample(1, np.random.default_rng(items))
        program = sketch.instantiate(row)
        assert_within_limits(program, spec)
        assert_items_agree(dag, program)


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_have_none(name: str):
    assert sketches(OTHERS[name]) == ()


def test_names_state_the_structure_and_errors_the_rounding():
    found = {s.name: s.error for s in sketches(conv2d(1, 14, 14, 128, 64))}
    names = {f"{PREFIX}{m}.local4{slices}" for m in (2, 4, 6) for slices in ("", ".sliced")}
    assert set(found) == names
    assert 0.0 < found[f"{PREFIX}2.local4"] < found[f"{PREFIX}4.local4"]
    assert found[f"{PREFIX}4.local4"] == found[f"{PREFIX}4.local4.sliced"] < 9e-6


def test_large_maps_have_no_slices():
    assert all("sliced" not in s.name for s in sketches(conv2d(1, 112, 112, 128, 128)))


def test_a_candidate_replays_from_its_trace():
    dag = SHAPES["odd"]
    for sketch in sketches(dag):
        (row,) = sketch.sample(1, np.random.default_rng(0))
        trace = Trace.from_json(sketch.trace.with_decisions(sketch.decided(row)).to_json())
        assert_same_meaning(dag, replay(from_dag(dag), trace).program)


@pytest.mark.parametrize(("size", "channels"), [(7, 512), (14, 256), (56, 64), (224, 64)])
def test_candidates_keep_to_the_limits(size: int, channels: int):
    for sketch in sketches(conv2d(1, size, size, channels, channels)):
        for row in sketch.sample(3, np.random.default_rng(0)):
            program = sketch.instantiate(row)
            launches = lower(program, GPU).launches
            assert len(launches) == 3
            for launch in launches:
                assert 1 < prod(launch.local_size) <= GENERIC_GPU.max_work_group
            local = {b.buffer for b in blocks(program.body) if b.buffer.scope == "local"}
            sizes = [4 * prod(evaluate_int(e) for e in b.shape) for b in local]
            assert len(local) == 2 and sum(sizes) <= GENERIC_GPU.local_memory_bytes


def test_without_local_memory_operands_are_read_by_vectors():
    for sketch in sketches(conv2d(1, 14, 14, 64, 64), WITHOUT_LOCAL_MEMORY):
        assert all(b.buffer.scope != "local" for b in blocks(sketch.program.body))
        assert any(n.kind == "vectorize" for n in walk(sketch.program.body) if isinstance(n, For))


def test_transforms_give_every_unit_work_even_on_small_maps():
    (sketch, *_) = sketches(conv2d(1, 14, 14, 512, 512))
    (row,) = sketch.sample(1, np.random.default_rng(0))
    first, _, last = lower(sketch.instantiate(row), GPU).launches
    for launch in (first, last):
        groups = prod(launch.global_size) // prod(launch.local_size)
        assert groups >= GENERIC_GPU.compute_units


def test_features_tell_its_three_nests_from_one():
    space = allowed(conv2d(1, 28, 28, 128, 128))
    population = space.sample(64, np.random.default_rng(0))
    found = featurise(space, population, GENERIC_GPU)
    assert np.isfinite(found).all()
    mine = np.array(["winograd" in space.sketches[i].name for i in population.sketch])
    assert mine.any()
    kernels = found[:, COLUMN["program.kernels"]]
    assert (kernels[mine] >= np.log2(4) - 1e-6).all()


def allowed(dag: Dag) -> Space:
    return space_of(from_dag(merge_axes(dag)), "conv2d_nhwc", GENERIC_GPU, max_error=1e-5)


@pytest.mark.parametrize(
    ("size", "depth", "made", "taken"),
    [(56, 256, 256, True), (28, 512, 512, True), (14, 512, 512, True), (14, 32, 32, False)],
)
def test_the_default_is_winograd_where_it_clearly_wins(
    size: int, depth: int, made: int, taken: bool
):
    chosen = default_candidate(allowed(conv2d(1, size, size, depth, made)), GENERIC_GPU)
    assert chosen.sketch.startswith(PREFIX) == taken
