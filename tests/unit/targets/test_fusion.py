"""What runs together with what: images on their way into a network, and long rows of stages."""

import pytest

from retune.core.dtypes import FLOAT32, UINT8
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.expr import cast, const, depth, loads, maximum, minimum, select, variables
from retune.ir.stmt import Program, blocks, from_dag
from retune.ir.te import Dag, Tensor, compute, placeholder
from retune.targets.cost.estimate import default_candidate
from retune.targets.spaces import space_of
from tests.support.oracle import assert_same_meaning


def image() -> Dag:
    """Codes of three planes, a fourth one of zeros, and the four of each pixel side by side."""
    x = placeholder("x", (1, 3, 8, 40))

    def code(n, c, i, j):
        return cast(
            minimum(maximum(x[n, c, i, j] * 9.0, const(0.0, FLOAT32)), const(255.0, FLOAT32)),
            UINT8,
        )

    def inside(n, c, i, j):
        return select(c < 3, codes[n, c, i, j], const(0, UINT8))

    codes = compute("codes", (1, 3, 8, 40), code, [x])
    wide = compute("wide", (1, 4, 8, 40), inside, [codes])
    return Dag((compute("rows", (1, 8, 40, 4), lambda n, i, j, c: wide[n, c, i, j], [wide]),))


def untuned(dag: Dag, spec: DeviceSpec) -> Program:
    space = space_of(from_dag(dag), "pad", spec, max_error=0.0)
    return space.instantiate(default_candidate(space, spec))


def test_gpus_make_of_an_image_what_is_read_by_one_kernel():
    program = untuned(image(), GENERIC_GPU)
    assert [block.buffer.name for block in blocks(program.body)] == ["rows"]
    assert_same_meaning(image(), program)


def test_cpus_compute_along_the_planes_of_an_image_and_then_turn_it():
    program = untuned(image(), GENERIC_CPU)
    codes, rows = blocks(program.body)
    (read,) = set(loads(codes.value))
    assert variables(codes.indices[-1]) <= variables(read.indices[-1])
    assert [load.buffer for load in loads(rows.value)] == [codes.buffer]
    assert_same_meaning(image(), program)


@pytest.mark.parametrize("spec", [GENERIC_CPU, GENERIC_GPU], ids=["cpu", "gpu"])
def test_a_long_row_of_stages_becomes_expressions_of_bounded_depth(spec: DeviceSpec):
    def after(x: Tensor, number: int) -> Tensor:
        def body(i):
            return minimum(maximum(x[i] * 0.5 + 0.25, const(0.0, FLOAT32)), const(1.0, FLOAT32))

        return compute(f"t{number}", (40,), body, [x])

    last = placeholder("x", (40,))
    for number in range(60):
        last = after(last, number)
    dag = Dag((last,))
    program = untuned(dag, spec)
    assert len(blocks(program.body)) < 6
    assert all(depth(block.value) < 100 for block in blocks(program.body))
    assert_same_meaning(dag, program)
