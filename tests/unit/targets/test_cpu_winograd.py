"""Winograd sketches keep the meaning, apply where they may, and are ranked beside direct ones."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.ir.evaluate import evaluate_int
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, from_dag, is_compile_time, loops
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.replay import replay
from retune.schedule.space import Sketch, Space
from retune.schedule.trace import Trace
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.winograd import PREFIX, cpu_winograd_families
from retune.targets.devices import target_of
from retune.targets.spaces import space_of
from tests.support.dags import conv2d, in_bfloat16, strip
from tests.support.oracle import assert_items_agree, assert_same_meaning
from tests.support.sampling import one_of_each
from tests.support.winograd import OTHERS, nchw

NARROW = replace(GENERIC_CPU, name="narrow", vector_bits=128, vector_registers=16)

SHAPES: dict[str, Dag] = {
    "odd": conv2d(1, 7, 9, 16, 16),
    "prime channels": conv2d(1, 6, 5, 17, 19, residual=True),
    "batch, no padding": conv2d(2, 7, 6, 16, 33, pad=0),
    "one tile": conv2d(1, 3, 2, 16, 16),
    "channels first": nchw(2, 16, 8, 7, 17),
    "5x5": conv2d(1, 9, 7, 16, 17, 5, pad=2, residual=True),
    "1x7": strip(1, 6, 9, 17, 16, (1, 7), residual=True),
    "7x1": strip(2, 9, 6, 16, 17, (7, 1), same=False),
    "1x3": strip(1, 5, 8, 16, 16, (1, 3)),
    "3x1, channels first": strip(2, 8, 5, 16, 17, (3, 1), residual=True, channels_first=True),
}


def winograd_sketches(program: Program, spec: DeviceSpec) -> tuple[Sketch, ...]:
    return Space(cpu_winograd_families(program, spec)).sketches


CASES = {name: (name, GENERIC_CPU) for name in SHAPES}
CASES |= {f"{name}, narrow": (name, NARROW) for name in ("odd", "1x7")}


@pytest.mark.parametrize(("case", "form"), one_of_each(CASES, ("", ".staged")))
def test_sketches_keep_the_meaning(case: str, form: str):
    """As one kernel and as stages; one of the two in the gate."""
    name, spec = CASES[case]
    dag = merge_axes(SHAPES[name])
    sketches = {s.name: s for s in winograd_sketches(from_dag(dag), spec)}
    sizes = [m for m in (2, 4, 6) if f"{PREFIX}{m}" in sketches]
    assert sizes[:2] == [2, 4]
    assert list(sketches) == [f"{PREFIX}{m}{n}" for m in sizes for n in ("", ".staged")]
    for m in sizes:
        sketch = sketches[f"{PREFIX}{m}{form}"]
        verify(sketch.program)
        (row,) = sketch.sample(1, np.random.default_rng(len(name)))
        program = sketch.instantiate(row)
        verify(program)
        assert_items_agree(dag, program)


def test_an_instruction_multiplies_factors_of_bfloat16():
    dag = merge_axes(in_bfloat16(SHAPES["odd"]))
    spec = replace(GENERIC_CPU, instructions=("dot2.avx512",))
    (sketch,) = [s for s in winograd_sketches(from_dag(dag), spec) if "words" in s.name]
    assert sketch.name == f"{PREFIX}2.staged.words"
    (row,) = sketch.sample(1, np.random.default_rng(0))
    program = sketch.instantiate(row)
    verify(program)
    assert_items_agree(dag, program)
    assert "// dot2.avx512" in lower(program, target_of(spec)).text
    assert not [s for s in winograd_sketches(from_dag(dag), GENERIC_CPU) if "words" in s.name]


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_have_none(name: str):
    assert winograd_sketches(from_dag(merge_axes(OTHERS[name])), GENERIC_CPU) == ()


def test_a_device_without_vectors_has_none():
    scalar = replace(GENERIC_CPU, vector_bits=0)
    assert winograd_sketches(from_dag(SHAPES["odd"]), scalar) == ()


def test_a_candidate_replays_from_its_trace():
    dag = SHAPES["odd"]
    for sketch in winograd_sketches(from_dag(dag), GENERIC_CPU):
        (row,) = sketch.sample(1, np.random.default_rng(0))
        trace = Trace.from_json(sketch.trace.with_decisions(sketch.decided(row)).to_json())
        assert_same_meaning(dag, replay(from_dag(dag), trace).program)


def test_private_arrays_are_bounded():
    for sketch in winograd_sketches(from_dag(conv2d(1, 56, 56, 256, 256)), GENERIC_CPU):
        for row in sketch.sample(20, np.random.default_rng(0)):
            scratch = sketch.instantiate(row).scratch
            private = [b for b in scratch if b.scope == "private"]
            sizes = [prod(evaluate_int(e) for e in b.shape) for b in private]
            assert len(private) == (0 if sketch.name.endswith(".staged") else 2)
            assert 4 * sum(sizes) <= 2 << 20


def test_weights_are_transformed_in_plain_loops():
    """numpy computes them, point by point of the loops that choose a row of the transform."""
    for sketch in winograd_sketches(from_dag(conv2d(1, 7, 7, 32, 32)), GENERIC_CPU):
        (row,) = sketch.sample(1, np.random.default_rng(0))
        roots = [r for r in sketch.instantiate(row).body.stmts if is_compile_time(r)]
        assert roots
        assert {loop.kind for root in roots for loop in loops(root)} == {"serial"}


def default_sketch(dag: Dag, *, max_error: float) -> str:
    space = space_of(from_dag(merge_axes(dag)), "conv2d_nhwc", GENERIC_CPU, max_error=max_error)
    return default_candidate(space, GENERIC_CPU).sketch


def test_the_default_is_winograd_where_its_error_is_allowed_and_it_is_faster():
    large = conv2d(1, 56, 56, 64, 64)
    assert default_sketch(large, max_error=1e-5).startswith(PREFIX)
    assert not default_sketch(large, max_error=0.0).startswith(PREFIX)


@pytest.mark.parametrize(("cache", "size"), [(16 << 20, 2), (64 << 20, 4)])
def test_larger_tiles_pay_where_the_shared_cache_holds_their_weights(cache: int, size: int):
    """38 MB of them for tiles of 4 x 4, and 17 MB for 2 x 2, on a map of 7 x 7."""
    dag = merge_axes(conv2d(1, 7, 7, 512, 512))
    spec = replace(GENERIC_CPU, vector_bits=256, vector_registers=16, l3_bytes=cache)
    space = Space(cpu_winograd_families(from_dag(dag), spec))
    assert default_candidate(space, spec).sketch == f"{PREFIX}{size}.staged"


def test_tiles_that_overlap_more_than_they_save_are_not_taken():
    """One pixel: a tile would compute sixteen."""
    assert not default_sketch(conv2d(1, 1, 1, 64, 64), max_error=1e-5).startswith(PREFIX)
