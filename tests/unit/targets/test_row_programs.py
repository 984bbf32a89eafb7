"""Row programs: stages over the same rows are one nest, on both classes of devices."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.expr import const
from retune.ir.functions import call
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, blocks, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.space import Sketch, Space
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cpu.space import cpu_space
from retune.targets.gpu.space import gpu_space
from retune.targets.row_programs import fused_rows
from tests.support.dags import conv2d, dense, neighbours, pool, reduction, softmax, standardised
from tests.support.oracle import assert_items_agree

SPACES: dict[str, tuple[Callable[[Program, DeviceSpec], Space], DeviceSpec]] = {
    "cpu": (cpu_space, GENERIC_CPU),
    "narrow": (cpu_space, replace(GENERIC_CPU, vector_bits=128, vector_registers=16)),
    "gpu": (gpu_space, GENERIC_GPU),
}


def scaled_norm(rows: int, columns: int) -> Dag:
    """A root-mean-square norm whose factor is a stage that two others read, and so is x * x."""
    x = placeholder("x", (rows, columns))
    k = reduce_axis("k", columns)
    square = compute("square", (rows, columns), lambda i, j: x[i, j] * x[i, j], [x])
    total = compute("total", (rows,), lambda i: square[i, k.var], [square], reduce=(k,))
    factor = compute("factor", (rows,), lambda i: call("sqrt", total[i] + 1.0), [total])
    return Dag(
        (
            compute(
                "y",
                (rows, columns),
                lambda i, j: square[i, j] / factor[i] + x[i, j] * factor[i],
                [x, square, factor],
            ),
        )
    )


def log_softmax(rows: int, columns: int) -> Dag:
    """What two stages read (x - max), and what one does (exp)."""
    x = placeholder("x", (rows, columns))
    k, q = reduce_axis("k", columns), reduce_axis("q", columns)
    top = compute("top", (rows,), lambda i: x[i, k], [x], reduce=(k,), reducer="max")
    less = compute("less", (rows, columns), lambda i, j: x[i, j] - top[i], [x, top])
    e = compute("e", (rows, columns), lambda i, j: call("exp", less[i, j]), [less])
    total = compute("total", (rows,), lambda i: e[i, q], [e], reduce=(q,))
    made = compute(
        "y", (rows, columns), lambda i, j: less[i, j] - call("log", total[i]), [less, total]
    )
    return Dag((made,))


def norm_of_all(size: int) -> Dag:
    """One row, without a loop over rows."""
    x = placeholder("x", (size,))
    k = reduce_axis("k", size)
    total = compute("total", (1,), lambda _: x[k.var], [x], reduce=(k,))
    return Dag((compute("y", (size,), lambda i: x[i] - total[0], [x, total]),))


ROWS = {
    "softmax": softmax(5, 64),
    "softmax, one vector and a half": softmax(3, 24),
    "softmax, vectors that overlap": softmax(4, 49),
    "softmax, one row": softmax(1, 96),
    "softmax, short rows": softmax(9, 8),
    "log of softmax": log_softmax(5, 64),
    "log of softmax, vectors that overlap": log_softmax(4, 49),
    "norm": standardised(4, 48),
    "norm, long rows": standardised(2, 1000),
    "norm of two factors": scaled_norm(5, 40),
}
OTHERS = {
    "a convolution": conv2d(1, 6, 6, 8, 8),
    "a product": dense(4, 16, 16),
    "a pool": pool(1, 6, 6, 8, 3, 1, average=False),
    "sums over neighbours": neighbours(4, 24, 2, 2),
    "one reduction": reduction(6, 40, "sum", first=False),
    "a norm of all elements": norm_of_all(40),
}


@pytest.mark.parametrize("device", SPACES)
@pytest.mark.parametrize("name", ROWS)
def test_stages_over_rows_are_one_nest(name: str, device: str):
    space, spec = SPACES[device]
    dag = merge_axes(ROWS[name])
    sketches = {s.name: s for s in space(from_dag(dag), spec).sketches}
    fused = sketches[f"{spec.device_class}.rows.fused"]
    assert len(fused.program.body.stmts) == 1
    for row in fused.sample(3, np.random.default_rng(0)):
        assert_items_agree(dag, fused.instantiate(row))


@pytest.mark.parametrize(("dag", "kept"), [(softmax(5, 64), ["e"]), (log_softmax(5, 64), [])])
def test_processors_keep_of_a_row_what_takes_long_to_compute_again(dag: Dag, kept: list[str]):
    program = cpu_space(from_dag(merge_axes(dag)), GENERIC_CPU).sketch("cpu.rows.fused").program
    whole = {b.buffer.name for b in blocks(program.body) if b.buffer.shape[-1:] == (const(64),)}
    assert whole == {*kept, "y"}


def fused_on_gpu(dag: Dag) -> Sketch:
    return gpu_space(from_dag(dag), GENERIC_GPU).sketch("gpu.rows.fused")


@pytest.mark.parametrize(
    ("rows", "columns", "most"), [(50176, 96, 16), (50176, 2048, 1), (64, 96, 1)]
)
def test_a_group_takes_several_of_many_short_rows(rows: int, columns: int, most: int):
    sketch = fused_on_gpu(standardised(rows, columns))
    several = [n for row in sketch.all_rows() for n in sketch.decided(row).get("rows.y", (1,))]
    assert max(several) == most


def test_partial_sums_are_read_from_local_memory():
    """H200, 196 rows of 384 numbers of 16 bits: 64 items take 7.1 us, 128 take 5.9."""
    spec = replace(GENERIC_GPU, compute_units=132, max_work_group=1024)
    sketch = gpu_space(from_dag(standardised(196, 384)), spec).sketch("gpu.rows.fused")
    rows = sketch.all_rows()
    best = sketch.decided(rows[int(np.argmin(estimate(sketch, rows, spec)))])
    assert min(best["parts.y"]) >= 128


@pytest.mark.parametrize("dag", [softmax(8, 24), standardised(12, 40), scaled_norm(8, 5)])
def test_rows_beside_each_other_do_not_race(dag: Dag, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("retune.targets.gpu.rows._MANY_ROWS", 4)
    sketch = fused_on_gpu(dag)
    rows = sketch.all_rows()
    assert min(n for row in rows for n in sketch.decided(row)["rows.y"]) == 2
    for row in rows[:: max(1, len(rows) // 3)]:
        assert_items_agree(dag, sketch.instantiate(row))


@pytest.mark.parametrize("name", ["softmax", "norm"])
@pytest.mark.parametrize("device", SPACES)
def test_one_nest_is_the_default(name: str, device: str):
    space, spec = SPACES[device]
    known = space(from_dag(merge_axes(ROWS[name])), spec)
    assert default_candidate(known, spec).sketch.endswith(".rows.fused")


@pytest.mark.parametrize("name", OTHERS)
def test_other_programs_are_not_over_rows(name: str):
    assert not fused_rows(from_dag(merge_axes(OTHERS[name])))


def test_rows_without_local_memory_or_two_vectors_stay_apart():
    bare = replace(GENERIC_GPU, local_memory_bytes=0)
    for space, spec, columns in ((gpu_space, bare, 49), (cpu_space, GENERIC_CPU, 7)):
        program = from_dag(merge_axes(softmax(4, columns)))
        assert not any("fused" in s.name for s in space(program, spec).sketches)
