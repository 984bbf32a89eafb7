"""Templates: hand-written schedules are sketches like any other."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.core.errors import ScheduleError
from retune.core.target import GENERIC_CPU
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, blocks, from_dag
from retune.ir.storage import Storage
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.ir.views import view
from retune.schedule.schedule import Schedule
from retune.schedule.space import Sketch, Space
from retune.search.layout.layouts import layout_storage
from retune.targets import template as registry
from retune.targets.cost.estimate import default_candidate, estimate
from retune.targets.cpu.space import schedule_rest
from retune.targets.devices import target_of
from retune.targets.spaces import space_of
from retune.targets.template import TemplateWorkload, template, templates
from retune.targets.templates import conv2d as shipped
from tests.support.dags import conv2d, dense
from tests.support.oracle import assert_items_agree, assert_same_meaning

SHAPES: dict[str, Dag] = {
    "window": conv2d(1, 7, 13, 12, 32),
    "prime channels": conv2d(2, 6, 5, 7, 19, residual=True),
    "strided window": conv2d(1, 9, 9, 16, 24, stride=2),
    "point-wise": merge_axes(conv2d(1, 6, 7, 8, 48, 1, pad=0)),
    "point-wise, strided": merge_axes(conv2d(2, 8, 9, 6, 16, 1, pad=0, stride=2)),
}


@pytest.fixture
def forget() -> Iterator[None]:
    """Templates registered by a test are gone after it."""
    before = dict(registry._TEMPLATES)
    yield
    registry._TEMPLATES.clear()
    registry._TEMPLATES.update(before)


def conv_space(dag: Dag) -> list[Sketch]:
    """The shipped template's sketches; these expressions name their convolution `conv`."""
    made: list[Sketch] = []
    for entry in templates("conv2d_nhwc", "cpu"):
        template("conv", untuned=entry.untuned, blocks=entry.blocks)(entry.function)
    space = space_of(from_dag(dag), "conv", GENERIC_CPU, max_error=0.0)
    made.extend(s for s in space.sketches if s.name.startswith("conv2d_nchwc"))
    return made


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("name", SHAPES)
def test_the_convolution_template_keeps_the_meaning(name: str):
    rng = np.random.default_rng(len(name))
    sketches = conv_space(SHAPES[name])
    assert len(sketches) == (1 if name.startswith("point") else 2)
    for sketch in sketches:
        assert sketch.untuned is not None
        for row in (sketch.untuned, *sketch.sample(3, rng)):
            program = sketch.instantiate(row)
            verify(program)
            assert_items_agree(SHAPES[name], program)


@pytest.mark.usefixtures("forget")
def test_knobs_have_the_names_of_the_template():
    by_window = {n: [d.name for d in conv_space(SHAPES[n])[0].decisions] for n in ["window"]}
    assert by_window == {"window": ["tile_oc", "tile_ow", "tile_ic"]}


@pytest.mark.usefixtures("forget")
def test_a_strided_point_wise_convolution_tiles_rows():
    (sketch,) = conv_space(SHAPES["point-wise, strided"])
    assert [d.name for d in sketch.decisions] == ["tile_oc", "tile_ow", "tile_oh", "tile_ic"]


@pytest.mark.usefixtures("forget")
def test_a_wide_tile_stores_what_several_written_taps_read():
    """Of a narrow one the compiler keeps it in registers."""
    looped, written = conv_space(conv2d(1, 112, 112, 3, 64, 7, pad=3, stride=2))
    ratios: list[float] = []
    for columns in (4, 28):
        decided = {"tile_oc": (1,), "tile_ow": (columns,), "tile_ic": (3,)}
        times = [estimate(s, s.row(decided)[None], GENERIC_CPU)[0] for s in (looped, written)]
        ratios.append(times[1] / times[0])
    assert ratios[0] <= 1.0
    assert ratios[1] > 1.15


@pytest.mark.parametrize(
    ("dag", "expected"),
    [
        (conv2d(1, 56, 56, 64, 64), {"tile_oc": (1,), "tile_ic": (16,), "tile_ow": (28,)}),
        (conv2d(1, 28, 28, 3, 64), {"tile_oc": (1,), "tile_ic": (3,), "tile_ow": (28,)}),
        (
            conv2d(1, 14, 14, 24, 8, 1, pad=0, stride=2),
            {"tile_oc": (1,), "tile_ic": (8,), "tile_ow": (7,), "tile_oh": (1,)},
        ),
        (
            conv2d(1, 16, 16, 24, 8, 1, pad=0, stride=2),
            {"tile_oc": (1,), "tile_ic": (8,), "tile_ow": (8,), "tile_oh": (2,)},
        ),
    ],
)
def test_untuned_decisions_are_the_fallback(dag: Dag, expected: dict[str, tuple[int, ...]]):
    work = TemplateWorkload(op="conv", program=from_dag(dag), spec=GENERIC_CPU)
    assert shipped.untuned(work) == expected


def test_axes_count_by_what_they_do():
    work = TemplateWorkload(op="y", program=from_dag(dense(28, 24, 16)), spec=GENERIC_CPU)
    assert shipped.untuned(work) == {"tile_oc": (1,), "tile_ic": (12,), "tile_ow": (28,)}


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    "dag",
    [
        conv2d(1, 6, 6, 8, 16, groups=2),
        conv2d(1, 6, 6, 4, 1),
        conv2d(1, 1, 1, 8, 16, 1, pad=0),
    ],
)
def test_what_the_convolution_template_does_not_serve_is_left_to_the_rules(dag: Dag):
    assert conv_space(dag) == []
    work = TemplateWorkload(op="conv", program=from_dag(dag), spec=GENERIC_CPU)
    with pytest.raises(ScheduleError, match="conv: expected"):
        shipped.conv2d_nchwc(Schedule(work.program), work)


# -- images in blocks -----------------------------------------------------------------------------


def laid_sketches(dag: Dag) -> tuple[Sketch, ...]:
    for entry in templates("conv2d_nhwc", "cpu"):
        template("conv", untuned=entry.untuned, blocks=entry.blocks)(entry.function)
    return space_of(from_dag(dag), "conv", GENERIC_CPU, max_error=0.0).blocked


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize(
    ("dag", "size"),
    [
        (conv2d(1, 56, 56, 64, 64), 7 * 7 * 10 * 2),  # of resnet50, by AutoTVM's own rules
        (conv2d(1, 7, 7, 512, 512), 10 * 10 * 4 * 2),
        (conv2d(1, 56, 56, 256, 512, 1, pad=0, stride=2), 9 * 10 * 8 * 2),
    ],
)
def test_the_template_for_blocks_has_the_space_of_the_original(dag: Dag, size: int):
    """tile_ic and tile_oc: divisors. tile_ow: divisors and powers of two. unroll_kw, or tile_oh."""
    assert sum(sketch.size for sketch in laid_sketches(dag)) == size


@pytest.mark.usefixtures("forget")
@pytest.mark.parametrize("stride", [1, 2])
def test_every_candidate_for_blocks_keeps_the_meaning(stride: int):
    dag = conv2d(1, 3, 5, 4, 16, pad=1, stride=stride, residual=stride == 1)
    shapes = {t.name: t.shape for t in (*dag.placeholders, *dag.outputs)}
    sketches = laid_sketches(dag)
    assert sketches
    for sketch in sketches:
        assert sketch.blocks == ("tile_ic", "tile_oc")
        for row in sketch.all_rows():
            decided = sketch.decided(row)
            program, storages = sketch.instantiate(row), dict[str, Storage]()
            for name, knob in (("x", "tile_ic"), (dag.outputs[0].name, "tile_oc")):
                storages[name] = layout_storage(f"NCHW{decided[knob][0]}c", shapes[name])
            verify(view(program, storages))
            assert_items_agree(dag, program)


@pytest.mark.usefixtures("forget")
def test_weights_of_the_template_for_blocks_are_packed_by_blocks():
    """OIHW{i}i{o}o: outer channels, the window, and a block of both kinds inside."""
    dag = conv2d(1, 6, 6, 32, 64)
    (sketch,) = (s for s in laid_sketches(dag) if s.name.startswith("conv2d_nchwc_blocks_v16."))
    decided = {"tile_ic": (8,), "tile_oc": (32,), "tile_ow": (6,)}
    source = lower(sketch.instantiate(sketch.row(decided)), target_of(GENERIC_CPU))
    (packing,) = source.packings.values()
    assert packing.pack is not None
    plain = np.arange(3 * 3 * 32 * 64, dtype=np.float32).reshape(3, 3, 32, 64)
    blocks = plain.reshape(3, 3, 4, 8, 2, 32).transpose(4, 2, 0, 1, 3, 5)
    np.testing.assert_array_equal(packing.pack.apply(plain).ravel(), blocks.ravel())


@pytest.mark.usefixtures("forget")
def test_searches_in_rows_do_not_see_what_is_for_blocks():
    dag = conv2d(1, 6, 6, 16, 16)
    (*_, last) = laid_sketches(dag)
    space = space_of(from_dag(dag), "conv", GENERIC_CPU, max_error=0.0)
    assert not any(sketch.blocks for sketch in space.sketches)
    assert space.sketch(last.name).name == last.name and last.name in {
        sketch.name for sketch in space.whole.sketches
    }


# -- a new template ----------------------------------------------------------------------------


def dense_rows(s: Schedule, work: TemplateWorkload) -> None:
    """A dense layer by tiles of outputs, each the work of one group, in vectors where it can."""
    rows, outputs, depth = s.loops(work.op)
    (tile,) = s.sample_perfect_tile(outputs, 2, 16, "tile_outputs")
    unroll = s.sample_categorical("unroll_k", [1, 2, 4])
    outer, inner = s.split(outputs, [tile])
    far, near = s.split(depth, [unroll])
    s.reorder(outer, rows, far, near, inner)
    s.unroll(near)
    s.bind(outer, "group.0")
    schedule_rest(s, work.spec)


def dense_untuned(work: TemplateWorkload) -> dict[str, tuple[int, ...]]:
    """Two outputs, nothing unrolled."""
    return {"tile_outputs": (2,), "unroll_k": (1,)}


def dense_program() -> tuple[Dag, Program]:
    dag = dense(2, 12, 20)
    return dag, from_dag(dag)


@pytest.mark.usefixtures("forget")
def test_a_new_template_joins_the_space_of_its_operator():
    dag, program = dense_program()
    op = next(stage.name for stage in dag.stages)
    plain = space_of(program, op, GENERIC_CPU, max_error=0.0)
    template(op, untuned=dense_untuned)(dense_rows)
    space = space_of(program, op, GENERIC_CPU, max_error=0.0)
    (own,) = [s for s in space.sketches if s.name.startswith("dense_rows.")]
    assert len(space.sketches) == len(plain.sketches) + 1
    assert space_of(program, "another", GENERIC_CPU, max_error=0.0).size == plain.size
    for row in own.sample(5, np.random.default_rng(0)):
        assert_same_meaning(dag, own.instantiate(row))
    (start,) = space.untuned()
    assert dict(start.decisions) == dense_untuned(
        TemplateWorkload(op=op, program=program, spec=GENERIC_CPU)
    )
    alone = Space((own,))
    assert default_candidate(alone, GENERIC_CPU) == start


@pytest.mark.usefixtures("forget")
def test_a_name_is_registered_once():
    template("dense")(dense_rows)
    with pytest.raises(ValueError, match="template 'dense_rows' for dense on cpu exists already"):
        template("dense")(dense_rows)


@pytest.mark.usefixtures("forget")
def test_a_template_with_untuned_decisions_that_are_no_options_is_left_out(
    caplog: pytest.LogCaptureFixture,
):
    dag, program = dense_program()
    op = next(stage.name for stage in dag.stages)
    template(op, untuned=lambda work: {"unroll_k": (3,), "tile_outputs": (2,)})(dense_rows)
    with caplog.at_level(logging.DEBUG, "retune.targets"):
        space = space_of(program, op, GENERIC_CPU, max_error=0.0)
    assert not any(s.name.startswith("dense_rows") for s in space.sketches)
    assert "(3,) is not an option of 'unroll_k'" in caplog.text


def dense_inside(s: Schedule, work: TemplateWorkload) -> None:
    """The layer's sum, computed at one of the loops of what follows it, or by itself."""
    rest = [b.name for b in blocks(s.program.body) if b.name != work.op]
    s.split(s.loops(rest[-1])[-1], s.sample_perfect_tile(s.loops(rest[-1])[-1], 2, 16, "tile"))
    s.sample_compute_location(work.op, name="place")


@pytest.mark.usefixtures("forget")
def test_a_template_that_samples_a_place_gives_a_sketch_for_each():
    dag, program = dense_program()
    op = next(stage.name for stage in dag.stages)
    template(op, untuned=lambda work: {"tile": (4,), "place": (2,)})(dense_inside)
    space = space_of(program, op, GENERIC_CPU, max_error=0.0)
    own = [s for s in space.sketches if s.name.startswith("dense_inside.")]
    assert [s.name.rsplit(".", 1)[0] for s in own] == [
        f"dense_inside.place={i}" for i in range(len(own))
    ]
    assert len({str(s.program) for s in own}) == len(own) > 2
    (start,) = space.untuned()
    assert start.sketch == own[2].name
    assert_same_meaning(dag, space.instantiate(start))
