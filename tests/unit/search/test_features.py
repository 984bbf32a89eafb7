"""Features mean what they say: counted one by one on small programs, and worked out by hand."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.core.target import GENERIC_CPU
from retune.ir.evaluate import evaluate, evaluate_int
from retune.ir.expr import loads
from retune.ir.reduction import path_to
from retune.ir.stmt import Program, blocks, from_dag
from retune.ir.te import Dag
from retune.schedule.schedule import Schedule
from retune.schedule.space import Space, sketch_of
from retune.search.model.features import COLUMN, FEATURES, featurise
from retune.search.model.features.volumes import Volumes, volumes
from retune.targets.cost.estimate import estimate
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d, dense, depthwise, elementwise, random_dag, transpose
from tests.support.properties import chooser, quick

_MEMORY = ("global", "constant", "local")


def _touched(program: Program, name: str, fixed: int) -> dict[str, set[tuple[int, ...]]]:
    """Elements that a block touches while its first `fixed` loops stand at zero, by enumeration."""
    (block,) = [b for b in blocks(program.body) if b.name == name]
    path = path_to(program.body, block) or []
    extents = [evaluate_int(loop.extent) for loop in path]
    ranges = [range(1 if place < fixed else extent) for place, extent in enumerate(extents)]
    points = np.array(list(product(*ranges))).reshape(-1, len(path))
    values = {loop.var: points[:, i] for i, loop in enumerate(path)}
    found: dict[str, set[tuple[int, ...]]] = {}
    accesses = [(block.buffer, block.indices), *((r.buffer, r.indices) for r in loads(block.value))]
    for number, (buffer, indices) in enumerate(accesses):
        if buffer.scope not in _MEMORY or not indices:
            continue
        columns = [np.broadcast_to(evaluate(i, values), len(points)) for i in indices]
        inside = np.all(
            [(c >= 0) & (c < evaluate_int(e)) for c, e in zip(columns, buffer.shape, strict=True)],
            axis=0,
        )
        elements = set(zip(*(c[inside].tolist() for c in columns), strict=True))
        key = f"{'write' if number == 0 else 'read'} {buffer.name}"
        found[key] = found.get(key, set()) | elements
    return found


def _counted(v: Volumes, block: int, level: int) -> dict[str, float]:
    """Elements that the accesses of a block touch at a level, for the only candidate."""
    accesses = zip(v.layout.accesses, v.layout.owner, v.elements[level], strict=True)
    return {
        f"{'write' if access.write else 'read'} {access.buffer.name}": float(count)
        for access, owner, (count,) in accesses
        if owner == block and access.dims
    }


def _tiled(s: Schedule) -> None:
    """A plain tiling with exact splits, every tile size sampled."""
    block = s.blocks()[0]
    loops = s.loops(block)
    parts = [s.split(name, s.sample_perfect_tile(name, 2)) for name in loops]
    s.reorder(*(p[0] for p in parts), *(p[1] for p in parts))


@pytest.mark.parametrize(
    "dag",
    [dense(6, 8, 10, epilogue=False), transpose(3, 4, 6), conv2d(1, 6, 6, 2, 4, pad=0, stride=1)],
    ids=["dense", "transpose", "conv2d"],
)
def test_footprints_are_what_exact_tiles_touch_at_every_level(dag: Dag):
    sketch = sketch_of(from_dag(dag), _tiled)
    for row in sketch.sample(6, np.random.default_rng(0)):
        program = sketch.instantiate(row)
        v = volumes(sketch, row[None])
        for number, nest in enumerate(v.layout.nests):
            for level in range(v.layout.depth + 1):
                touched = _touched(program, nest.block.name, level)
                assert _counted(v, number, level) == {name: len(x) for name, x in touched.items()}


@given(st.data())
@quick(40)
def test_the_whole_nest_touches_what_enumeration_finds(data: st.DataObject):
    """Shifted and fused loops included; strides and dilations may leave a few elements out."""
    space = cpu_space(from_dag(random_dag(chooser(data))), GENERIC_CPU)
    sketch = space.sketches[data.draw(st.integers(0, len(space.sketches) - 1))]
    (row,) = sketch.sample(1, np.random.default_rng(data.draw(st.integers(0, 99))))
    program = sketch.instantiate(row)
    v = volumes(sketch, row[None])
    for number, nest in enumerate(v.layout.nests):
        if v.inside[0, number, 0] > 2e5:
            continue
        touched = _touched(program, nest.block.name, 0)
        for name, count in _counted(v, number, 0).items():
            if name.startswith("write"):
                # Tiles of a slice of a concatenation count up to the end of the whole buffer.
                sliced = len({b.name for b in blocks(program.body) if f"write {b.buffer}" == name})
                assert count == len(touched[name]) or (sliced > 1 and count > len(touched[name]))
            else:
                assert count >= 0.5 * len(touched[name])


def _named(space: Space, sketch: int, row: np.ndarray) -> dict[str, float]:
    (values,) = featurise(space, space.population(sketch, row[None]), GENERIC_CPU)
    return {f.name: float(x) for f, x in zip(FEATURES, values, strict=True)}


def _by_hand(s: Schedule) -> None:
    """z[8, 64] from k of 32: groups of 2 rows and 32 columns, registers of 2 x 16."""
    copy = s.cache_write("y")
    rows = s.split(s.loops(copy)[0], [2])
    columns = s.split(s.loops(copy)[-1], [2, 16])
    s.reorder(rows[0], columns[0], columns[1], rows[1], columns[2])
    s.compute_at("y", columns[1])
    s.bind(rows[0], "group.1")
    s.bind(columns[0], "group.0")
    s.unroll(rows[1])
    s.vectorize(columns[2])
    i, j, k = s.loops("y")[-3:]
    s.reorder(k, i, j)
    s.unroll(k, 4)
    s.unroll(i)
    s.vectorize(j)


def test_a_matrix_product_worked_out_by_hand():
    """x[8, 32] @ w[64, 32].T: the body makes 2 rows of 16 columns for one k."""
    sketch = sketch_of(from_dag(dense(8, 32, 64, epilogue=False)), _by_hand)
    found = _named(Space((sketch,)), 0, np.zeros(0, np.int64))

    def count(name: str) -> float:
        return 2.0 ** found[name] - 1.0

    expected = {
        "main.ops": 2 * 8 * 64 * 32,
        "main.groups": 8,
        "main.groups_per_unit": 4,
        "main.lanes": 16,
        "main.tile": 2,
        "main.depth": 32,
        "main.near_depth": 32,
        "main.unroll_hint": 4,
        "main.serial": 2,
        "main.code": 2 * 2,
        "main.load_vectors": 2 + 1,  # two numbers of x, a vector of w
        "main.body_bytes": 4 * (2 + 16),
        "main.step_bytes": 4 * (2 * 32 + 16 * 32),
        "main.group_bytes": 4 * (2 * 32 + 32 * 32),
        "main.total_bytes": 4 * (8 * 32 + 64 * 32),
        "main.read0.unique_bytes": 4 * 64 * 32,  # w, along the lanes
        "main.read0.lane_stride": 32,
        "main.read0.step_stride": 1,
        "main.read0.reuse_count": 4,  # the row groups
        "main.read0.reuse_iterations": 2 * 2 * 32 * 2 * 16,
        "main.read1.unique_bytes": 4 * 8 * 32,  # x, one number for all lanes
        "main.read1.lane_stride": 0,
        "main.read1.reuse_count": 2,  # the column tiles of a group
        "main.read1.reuse_bytes": 4 * (2 * 32 + 16 * 32),
        "second.write.unique_bytes": 4 * 8 * 64,
        "second.write.run_bytes": 4 * 32,
        "program.total_bytes": 4 * (8 * 32 + 64 * 32 + 8 * 64),
    }
    assert {name: count(name) for name in expected} == pytest.approx(expected, rel=1e-4)
    assert found["main.lane_fill"] == 1.0 and found["main.idle_tail"] == 0.0
    assert found["main.read0.lane_contiguous"] == 0.0 and found["program.overlap"] == 1.0


def test_tiles_that_overlap_count_as_extra_work():
    def nine_by_four(s: Schedule) -> None:
        s.split(s.loops("y")[0], [4], "shift")

    sketch = sketch_of(from_dag(dense(9, 3, 5, epilogue=False)), nine_by_four)
    found = _named(Space((sketch,)), 0, np.zeros(0, np.int64))
    assert found["program.overlap"] == pytest.approx(12 / 9)


def test_padded_rows_leave_part_of_their_lines_unused():
    sketch = sketch_of(from_dag(elementwise(4, 24)), lambda _s: None)
    found = _named(Space((sketch,)), 0, np.zeros(0, np.int64))
    assert found["main.write.line_use"] == pytest.approx(96 / 128)


@pytest.mark.parametrize("dag", [conv2d(1, 9, 9, 6, 24), depthwise(1, 11, 7, 20), dense(5, 40, 30)])
def test_a_population_is_featurised_as_each_of_its_members(dag: Dag):
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    everyone = space.sample(24, np.random.default_rng(1))
    together = featurise(space, everyone, GENERIC_CPU)
    alone = [featurise(space, everyone.take(np.array([i])), GENERIC_CPU) for i in range(24)]
    assert together.dtype == np.float32 and together.shape == (24, len(FEATURES))
    assert np.array_equal(together, np.concatenate(alone))
    assert np.isfinite(together).all()


def test_the_static_estimate_is_a_feature():
    space = cpu_space(from_dag(conv2d(1, 9, 9, 6, 24)), GENERIC_CPU)
    rows = space.sketches[0].sample(20, np.random.default_rng(2))
    found = featurise(space, space.population(0, rows), GENERIC_CPU)[:, COLUMN["program.estimate"]]
    assert found == pytest.approx(np.log2(estimate(space.sketches[0], rows, GENERIC_CPU)), rel=1e-5)


def test_what_lies_inside_a_work_group_does_not_depend_on_the_number_of_groups():
    """The same tiles of a product with more rows: only whole-nest features differ."""
    found = []
    for rows in (8, 24):
        sketch = sketch_of(from_dag(dense(rows, 32, 64, epilogue=False)), _by_hand)
        found.append(_named(Space((sketch,)), 0, np.zeros(0, np.int64)))
    inner = [f.name for f in FEATURES if f.name.endswith(("group_bytes", "step_bytes", "tile"))]
    assert all(found[0][name] == found[1][name] for name in inner)
    assert found[0]["main.groups"] < found[1]["main.groups"]


def test_features_have_distinct_names_and_are_described():
    assert len({f.name for f in FEATURES}) == len(FEATURES)
    assert all(f.doc for f in FEATURES)
