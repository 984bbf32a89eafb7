"""Stages that are evaluated at compile time, and choices that unrolled loops settle."""

from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.copies import settle_choices
from retune.codegen.lower import finished, lower
from retune.codegen.passes.constants import GatherPack, pack_constants
from retune.codegen.target import CPU
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate_int
from retune.ir.expr import equal, select
from retune.ir.interp import run_program
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from tests.support.oracle import assert_same_meaning


def scaled_product() -> Dag:
    """x @ (w * s + w[0]).T: two stages that read constants only."""
    x = placeholder("x", (4, 6))
    w = placeholder("w", (8, 6), constant=True)
    s = placeholder("s", (8,), constant=True)
    scaled = compute("scaled", (8, 6), lambda j, k: w[j, k] * s[j], [w, s])
    moved = compute("moved", (8, 6), lambda j, k: scaled[j, k] + w[0, k], [scaled, w])
    k = reduce_axis("k", 6)
    return Dag((compute("y", (4, 8), lambda i, j: x[i, k] * moved[j, k], [x, moved], reduce=(k,)),))


def precomputed() -> Schedule:
    schedule = Schedule(from_dag(scaled_product()))
    schedule.precompute("scaled")
    schedule.precompute("moved")
    return schedule


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"w": rng.random((8, 6), np.float32), "s": rng.random(8, np.float32)}


def test_the_meaning_is_kept():
    schedule = precomputed()
    verify(schedule.program)
    assert_same_meaning(scaled_product(), schedule.program)


def test_compile_time_stages_are_no_kernels():
    source = lower(precomputed().program, CPU)
    assert [name for launch in source.launches for name in launch.args] == ["x", "moved", "y"]
    spec = source.buffer("moved")
    assert (spec.role, spec.elements) == ("weight", 48)
    assert source.packing(spec.name).sources == ("w", "s")


def test_numpy_evaluates_the_chain():
    pack = lower(precomputed().program, CPU).packing("moved").pack
    given = arrays()
    expected = given["w"] * given["s"][:, None] + given["w"][0]
    assert pack is not None
    assert np.allclose(pack.apply(given["w"], given["s"]), expected.reshape(-1))


def test_the_result_is_packed_in_the_order_of_its_reads():
    schedule = precomputed()
    schedule.split("y.j", [4])
    schedule.reorder("y.j.0", "y.k", "y.i", "y.j.1")
    schedule.pack("moved")
    pack = lower(schedule.program, CPU).packing("moved").pack
    given = arrays()
    expected = given["w"] * given["s"][:, None] + given["w"][0]
    assert pack is not None
    found = pack.apply(given["w"], given["s"])
    assert np.allclose(found.reshape(2, 6, 4), expected.reshape(2, 4, 6).transpose(0, 2, 1))


def test_candidates_share_what_is_computed_from_the_same_arrays():
    one, other = (lower(precomputed().program, CPU).packing("moved").pack for _ in range(2))
    assert one is not None and other is not None
    given = arrays()
    first = one.apply(given["w"], given["s"])
    assert np.shares_memory(first, other.apply(given["w"], given["s"]))
    assert not np.allclose(first, one.apply(2.0 * given["w"], given["s"]))


def test_constants_that_no_kernel_reads_are_left_out():
    names = {spec.name for spec in lower(precomputed().program, CPU).buffers}
    assert names == {"x", "moved", "y"}


def test_what_precompute_refuses():
    dag = scaled_product()
    with pytest.raises(ScheduleError, match=r"precompute\(moved\): it reads scaled, which is not"):
        Schedule(from_dag(dag)).precompute("moved")
    w = placeholder("w", (3,), constant=True)
    alone = Dag((compute("y", (3,), lambda i: w[i] + 1.0, [w]),))
    with pytest.raises(ScheduleError, match=r"precompute\(y\): it is an output"):
        Schedule(from_dag(alone)).precompute("y")
    packed = Schedule(from_dag(dag))
    packed.pack("s")
    with pytest.raises(ScheduleError, match=r"precompute\(scaled\): it reads s, which is packed"):
        packed.precompute("scaled")


def test_choices_of_unrolled_loops_are_settled():
    a, b = placeholder("a", (5,)), placeholder("b", (5,))
    dag = Dag(
        (compute("y", (2, 5), lambda p, i: select(equal(p, 0), a[i] + b[i], a[i] - b[i]), [a, b]),)
    )
    s = Schedule(from_dag(dag))
    assert settle_choices(s.program) is s.program
    s.unroll("y.p")
    program = settle_choices(s.program)
    verify(program)
    assert "select" not in str(program)
    assert str(program).count("y[") == 2
    given = {"a": np.arange(5, dtype=np.float32), "b": np.ones(5, np.float32)}
    assert np.array_equal(run_program(program, given)["y"], [given["a"] + 1.0, given["a"] - 1.0])


def product_by_tiles(steps: int, columns: int, vectors: int, groups: int) -> Program:
    """`y[i, j] += x[i, k] * w[k, j]` by tiles of so many vectors along j, and groups of these."""
    x, w = placeholder("x", (3, steps)), placeholder("w", (steps, columns), constant=True)
    k = reduce_axis("k", steps)
    body = compute("y", (3, columns), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,))
    s = Schedule(from_dag(Dag((body,))))
    group, one, vector, lane = s.split("y.j", [groups, vectors, 4], "shift")
    s.reorder(group, one, "y.i", "y.k", vector, lane)
    s.unroll(vector)
    s.vectorize(lane)
    s.pack("w")
    return finished(s.program)


@pytest.mark.parametrize("columns", [32, 36, 30, 37])
def test_tiles_of_all_sizes_read_a_constant_by_panels(columns: int) -> None:
    """It is stored in one way, also where the last tile is moved back."""
    rng = np.random.default_rng(columns)
    x, w = rng.random((3, 5), np.float32), rng.random((5, columns), np.float32)
    stored: set[bytes] = set()
    for vectors, groups in [(1, 1), (2, 1), (3, 1), (2, 2), (1, 7)]:
        made, packs = pack_constants([product_by_tiles(5, columns, vectors, groups)], panels=True)
        packed = packs["w"].apply(w)
        (part,) = made
        shape = [evaluate_int(e) for e in next(b.shape for b in part.inputs if b.name == "w")]
        assert shape[1:] == [5, 4], "panels of all rows, four columns each"
        found = run_program(part, {"x": x, "w": packed.reshape(shape)})["y"]
        np.testing.assert_allclose(found, x @ w, rtol=1e-5)
        stored.add(packed.tobytes())
    assert len(stored) == 1


def test_what_reads_parts_of_vectors_has_its_own_order() -> None:
    """Tiles that are guarded may read behind the last vector."""
    schedule = precomputed()
    schedule.split("y.j", [3], "guard")
    schedule.vectorize("y.j.1")
    schedule.pack("moved")
    own = lower(schedule.program, CPU).packing("moved").pack
    assert lower(schedule.program, CPU, panels=True).packing("moved").pack == own


@pytest.mark.parametrize("length", [5, 4], ids=["whole", "in parts"])
def test_fused_loops_repeat_nothing_in_a_packed_constant(length: int):
    """Images that are fused with what chooses weights choose none themselves."""
    x, k = placeholder("x", (3, 20, 6)), reduce_axis("k", 6)
    w = placeholder("w", (3, 6, 8), constant=True)
    dag = Dag(
        (
            compute(
                "y",
                (3, 20, 8),
                lambda u, n, f: x[u, n, k.var] * w[u, k.var, f],
                [x, w],
                reduce=(k,),
            ),
        )
    )
    s = Schedule(from_dag(dag))
    fused = s.fuse("y.u", "y.n")
    if length < 5:
        s.split(fused, [length])
    s.pack("w")
    assert_same_meaning(dag, s.program)
    parts, packs = pack_constants([s.program])
    pack = packs["w"]
    assert isinstance(pack, GatherPack) and np.prod(pack.extents) == 3 * 6 * 8
    made = replace(parts[0], packed=())
    rng = np.random.default_rng(0)
    data, weights = rng.random((3, 20, 6), np.float32), rng.random((3, 6, 8), np.float32)
    given = {"x": data, "w": pack.apply(weights).reshape(pack.extents)}
    assert np.allclose(run_program(made, given)["y"], data @ weights)
