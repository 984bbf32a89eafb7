"""GPU tiles of bytes go by words where the device has an instruction for them."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_GPU, DeviceSpec
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.rules.devices import target_of
from retune.rules.gpu.space import gpu_space
from retune.schedule.schedule import Schedule
from tests.dags import byte_conv2d, byte_product, dense
from tests.oracle import assert_items_agree, assert_same_meaning

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
