"""GPU tiles of bytes go by words where the device has an instruction for them."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.ir.expr import const, maximum
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cost.nests import kernels, on, parallel_extent
from retune.targets.devices import target_of
from retune.targets.gpu.space import gpu_space
from retune.targets.tiling import ITEM, PACK
from tests.support.dags import byte_conv2d, byte_product, conv2d, dense
from tests.support.oracle import assert_items_agree, assert_same_meaning

NVIDIA = replace(GENERIC_GPU, instructions=("dot4.dp4a",))
MALI = replace(NVIDIA, local_memory_bytes=0, instructions=("dot4.packed",))

SHAPES: dict[str, Dag] = {
    "window": byte_conv2d(5, 7, 16, 24),
    "one tap": byte_conv2d(6, 6, 64, 32, window=1),
    "words of colours": byte_conv2d(9, 9, 4, 16, stride=2),
    "matrix": byte_product(6, 64, 24),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("spec", [NVIDIA, MALI], ids=["nvidia", "mali"])
def test_every_sketch_keeps_the_meaning(name: str, spec: DeviceSpec):
    dag, rng = SHAPES[name], np.random.default_rng(len(name))
    space = gpu_space(from_dag(dag), spec)
    assert all(sketch.name.endswith(".words") for sketch in space.sketches)
    for sketch in space.sketches:
        for row in sketch.sample(1, rng):
            program = sketch.instantiate(row)
            verify(program)
            assert_items_agree(dag, program)


def test_local_copies_are_of_bytes_and_read_by_words():
    (sketch,) = (
        s
        for s in gpu_space(from_dag(SHAPES["one tap"]), NVIDIA).sketches
        if s.name == "gpu.v4.local16.words"
    )
    program = sketch.instantiate(sketch.sample(1, np.random.default_rng(0))[0])
    text = lower(program, target_of(NVIDIA)).text
    assert text.count("__local uchar x_local[") == 1
    assert "((const __local uint*)x_local)[" in text
    assert "// dot4.dp4a" in text


def test_without_an_instruction_there_are_no_words():
    space = gpu_space(from_dag(SHAPES["window"]), GENERIC_GPU)
    assert not any(sketch.name.endswith(".words") for sketch in space.sketches)


@pytest.mark.parametrize("name", SHAPES)
def test_the_form_by_words_keeps_the_meaning_and_lays_constants_out(name: str):
    dag = SHAPES[name]
    s = Schedule(from_dag(dag))
    stage = next(n for n in s.blocks() if s.block(n).reducer)
    (made,) = s.restate(stage, "words", [4])
    assert_same_meaning(dag, s.program)
    s.precompute(made)
    assert_same_meaning(dag, s.program)


def test_steps_that_no_word_divides_are_refused():
    s = Schedule(from_dag(dense(3, 6, 5)))
    with pytest.raises(ScheduleError, match="expected steps that 4 divides, got 6 steps"):
        s.restate("y", "words", [4])


def estimated(dag: Dag, items: int, spec: DeviceSpec = NVIDIA, depth: int = 64) -> float:
    """Of a product's tile by rows: 32 items side by side, four columns each, `items` times."""
    sketch = gpu_space(from_dag(dag), spec).sketch("gpu.v4.local16.words")
    rows, columns = (d.name for d in sketch.decisions if d.name.startswith("tile."))
    others = {"depth.y": (depth,), "unroll.y": (4,)}
    row = sketch.row({rows: (items, 2), columns: (1, 32), **others})
    return float(estimate(sketch, row[None], spec)[0])


def test_a_few_warps_too_many_keep_one_scheduler_as_busy_as_all_of_them():
    """A group for each unit: nine warps on four schedulers are as slow as twelve, not as eight."""
    eight, nine, twelve = (
        estimated(byte_product(2 * n * NVIDIA.compute_units, 1024, 128), n) for n in (8, 9, 12)
    )
    assert eight < 0.85 * nine
    assert nine == pytest.approx(twelve, rel=0.05)


def test_an_instruction_at_half_the_rate_takes_longer():
    """dp4a: half as many a second as multiply-adds of floats."""
    dag = byte_product(16 * NVIDIA.compute_units, 1024, 128)
    full = estimated(dag, 8, replace(NVIDIA, instructions=("dot4.packed",)))
    assert 1.15 * full < estimated(dag, 8) < 2.0 * full


def test_what_is_made_of_the_sums_counts():
    """Three instructions for each of a unit's 2,048 results; it starts four of 32 at once."""
    sums = byte_product(16 * NVIDIA.compute_units, 16, 128)
    y = sums.outputs[0]
    code = compute("z", y.shape, lambda i, j: maximum(y[i, j] * 5 + 3, const(0)), [y])
    before, after = (estimated(made, 8, depth=4) for made in (sums, Dag((code,))))
    assert after >= before + 3 * 2048 / (4 * 32)


def test_the_choice_for_floats_is_what_it_was_before_words_were_counted(golden):
    """The figures of the estimate were fitted to floats: what counts words leaves them alone."""
    layers = {
        "1x1": merge_axes(conv2d(1, 28, 28, 128, 512, 1, pad=0)),
        "3x3": conv2d(1, 14, 14, 256, 256),
        "dense": dense(1, 2048, 1000),
    }
    lines: list[str] = []
    for name, dag in layers.items():
        chosen = default_candidate(gpu_space(from_dag(dag), NVIDIA), NVIDIA)
        lines += [f"{name}: {chosen.sketch}", *(f"  {k} = {v}" for k, v in chosen.decisions)]
    assert "\n".join(lines) == golden


def test_groups_of_words_leave_room_for_others():
    space = gpu_space(from_dag(byte_conv2d(28, 28, 128, 256)), NVIDIA)
    for sketch in space.sketches:
        rows = sketch.sample(256, np.random.default_rng(0))
        for kernel in kernels(sketch, rows):
            if any(on(nest.loops, PACK) for nest in kernel):
                assert parallel_extent(kernel, ITEM).max() <= 256, sketch.name
