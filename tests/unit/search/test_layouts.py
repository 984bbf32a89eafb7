"""Layouts of images: what may lie how, what a plan costs, and what becomes of the network."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.core.dtypes import FLOAT32, UINT8, TensorType
from retune.core.errors import InputError
from retune.core.layouts import NHWC, IOLayouts, KeptLayouts, LayoutAssignment
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.remote.batches import Limits, pack_batch, pack_workload, unpack_batch
from retune.device.remote.wire import MessageParts, digest_of
from retune.frontend.onnx.importer import import_model, load_file
from retune.graph.passes.joins import inclusions
from retune.graph.passes.pipeline import optimise
from retune.ir.stmt import Program
from retune.ir.views import view
from retune.records.schema import Measurement, succeeded
from retune.records.store import RecordStore
from retune.schedule.space import Space
from retune.search.extract import Network, extract
from retune.search.layout.assignment import uniform_layout, with_layouts
from retune.search.layout.choices import Measured, choices_of
from retune.search.layout.layouts import (
    block_of,
    io_storages,
    is_elementwise,
    layout_storage,
    layouts_for,
    workload_in,
)
from retune.search.layout.problem import Cost, LayoutProblem
from retune.search.layout.search import (
    KnownTime,
    LayoutSearch,
    hoped,
    problem_of,
    recorded_layouts,
    recorded_times,
)
from retune.search.layout.solver import solve
from retune.search.layout.trials import (
    LayoutTrials,
    assigned_to_tasks,
    best_in_layouts,
    blocked_candidates,
)
from retune.search.layout.views import find_views, is_in_place
from retune.search.session import Session
from retune.targets.cost.estimate import default_candidate
from retune.targets.devices import target_of
from tests.support.device_networks import Net, Networks, network, write
from tests.support.search_fakes import FakeRunner, measured, settings

CASES: Networks = {}


def case(function: Callable[[Net], tuple[str, ...]]):
    return network(function, among=CASES)


@case
def residual(n: Net) -> tuple[str, ...]:
    """A wide image that is read three times, once as what is added."""
    x = n("Relu", n.conv(n.input(1, 3, 12, 12), 3, 32))
    y = n("Relu", n.conv(x, 32, 32))
    z = n("Relu", n("Add", n.conv(y, 32, 32), x))
    return (n("Flatten", n("GlobalAveragePool", n.conv(z, 32, 16, (1, 1)))),)


@case
def joined(n: Net) -> tuple[str, ...]:
    """Branches that are joined, and an image that leaves the network."""
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 16))
    both = n("Concat", n.conv(x, 16, 16), n("Relu", n.conv(x, 16, 32)), axis=1)
    return (n.conv(both, 48, 16), n("Relu", n.conv(x, 16, 16, (1, 1))))


@case
def cut(n: Net) -> tuple[str, ...]:
    """Channels of two images side by side."""
    a = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 32))
    both = n("Concat", a, n.conv(a, 32, 16), axis=1)
    half = n("Slice", both, n.ints(16), n.ints(48), n.ints(1))
    return (n.conv(half, 32, 16),)


@case
def torn(n: Net) -> tuple[str, ...]:
    """Channels side by side that are no whole blocks."""
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 16))
    both = n("Concat", n.conv(x, 16, 20), n.conv(x, 16, 28), axis=1)
    return (n.conv(both, 48, 16),)


SMALL: Networks = {}


@partial(network, among=SMALL)
def chain(n: Net) -> tuple[str, ...]:
    """Two convolutions with an image between them."""
    x = n("Relu", n.conv(n.input(1, 3, 4, 4), 3, 16))
    return (n("Flatten", n("GlobalAveragePool", n.conv(x, 16, 32))),)


def network_of(name: str, folder: Path) -> Network:
    return extract(optimise(load_file(write(name, folder, {**CASES, **SMALL}))), max_error=0.0)


def costs(seed: int) -> Cost:
    """Random ones, the same at each question; here and there nothing is known."""

    @cache
    def of(measured: Measured) -> float | None:
        if measured[1] == IOLayouts():
            return float(len(measured[0]))
        rng = np.random.default_rng([seed, *map(ord, repr(measured))])
        return None if rng.random() < 0.15 else float(rng.integers(1, 50))

    return of


def total_us(problem: LayoutProblem, layouts: LayoutAssignment) -> float:
    plan = problem.plan(layouts)
    return sum(plan.kernels_us.values()) + sum(plan.copies_us.values())


@pytest.mark.parametrize("layout", [NHWC, "NHWC+8", "NCHW", "NCHW16c", "NCHW5c"])
def test_an_image_lies_whole_in_each_layout(layout: str):
    image = np.random.default_rng(0).random((2, 3, 4, 20), np.float32)
    storage = layout_storage(layout, image.shape)
    np.testing.assert_array_equal(storage.unpack(storage.pack(image)), image)


@pytest.mark.parametrize("layout", ["NHWC16", "NCHW0c", "NHWC+", ""])
def test_other_names_are_refused(layout: str):
    with pytest.raises(InputError, match="expected NHWC"):
        layout_storage(layout, (1, 2, 2, 16))


@pytest.mark.parametrize(("name", "free"), [("joined", True), ("cut", True), ("torn", False)])
def test_what_may_lie_in_blocks(name: str, free: bool, tmp_path: Path):
    net = network_of(name, tmp_path)
    choices = choices_of(net, GENERIC_CPU)
    for value in (*net.graph.inputs, *net.graph.outputs):
        assert choices.made.get(value, (NHWC,)) == (NHWC,)
    moved = (n for n in net.graph.nodes if n.op in ("concat", "slice"))
    for node in moved:
        assert choices.made[node.outputs[0]] == ((NHWC, "NCHW16c") if free else (NHWC,))
    assert choices.read_as_nhwc == {*net.graph.outputs}
    assert any("NCHW16c" in made for made in choices.made.values())
    assert all(some[0].is_nhwc for some in choices.of_tasks.values())


@partial(network, among=SMALL)
def batch(n: Net) -> tuple[str, ...]:
    """Two images at once, and their channels joined and cut."""
    x = n("Relu", n.conv(n.input(2, 3, 6, 6), 3, 16))
    both = n("Concat", n.conv(x, 16, 16), n("Relu", n.conv(x, 16, 32)), axis=1)
    half = n("Slice", both, n.ints(16), n.ints(48), n.ints(1))
    return (n.conv(half, 32, 16),)


def test_channels_of_several_images_are_joined_in_blocks(tmp_path: Path):
    net = network_of("batch", tmp_path)
    choices = choices_of(net, GENERIC_CPU)
    assert [layouts for _, layouts in choices.aliases] == [(NHWC, "NCHW16c")]
    laid = with_layouts(net, uniform_layout(net, "NCHW16c"))
    views = find_views(laid, GENERIC_CPU)
    moved = [n for n in laid.graph.nodes if n.op in ("concat", "slice")]
    assert len(moved) == 2
    for node in moved:
        for value, wider, first in inclusions(node, laid.graph):
            assert is_in_place(value, wider, first, views, laid.graph)


@pytest.mark.parametrize("name", ["joined", "cut", "batch"])
def test_kernels_beside_a_join_are_measured_as_they_are_in_the_network(
    name: str, tmp_path: Path, store: Path
):
    """With the rows that a bundle has them write and read, which are records of their own."""
    net = network_of(name, tmp_path)
    views, types = find_views(net, GENERIC_CPU), net.graph.types
    choices = choices_of(net, GENERIC_CPU)
    for kernel in choices.kernels:
        pairs = ((kernel.input, kernel.nhwc.input), (kernel.output, kernel.nhwc.output))
        for value, layout in pairs:
            if value is not None and value in views:
                room = views[value].storage.parts[-1].room
                more = room - types[value].shape[-1]
                assert layout == (f"NHWC+{more}" if more else NHWC)
            else:
                assert layout == NHWC
    pitched = {k.task_key for k in choices.kernels if k.nhwc != IOLayouts()}
    assert pitched
    if name != "batch":
        return
    assert choices.nhwc == {(kernel.task_key, kernel.nhwc) for kernel in choices.kernels}
    search = LayoutSearch(opened(net, store), net)
    search.run(lambda count: count < len(choices.nhwc))  # these come first
    rows = RecordStore(store).scan({"task_key": sorted(pitched)})
    plain = rows[(rows["layout_in"] == NHWC) & (rows["layout_out"] == NHWC)]
    known = {k.task_key for k in choices.kernels if k.nhwc == IOLayouts()}
    assert set(plain["task_key"]) <= known  # nothing is measured that the network does not have
    assert {k.nhwc.output for k in choices.kernels} <= {*rows["layout_out"], NHWC}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(8))
def test_the_table_costs_what_its_kernels_and_copies_cost(name: str, seed: int, tmp_path: Path):
    problem = LayoutProblem.of(choices_of(network_of(name, tmp_path), GENERIC_CPU), costs(seed))
    table = problem.table

    def total(chosen: dict[str, int]) -> float:
        return total_us(problem, problem.assignment(chosen))

    every = product(*(range(n) for n in table.sizes))
    everything = [dict(zip(table.own, chosen, strict=True)) for chosen in every]
    alike = {total(c) - table.total(c) for c in everything if np.isfinite(table.total(c))}
    assert len({round(difference, 6) for difference in alike}) == 1  # what nobody has a choice of
    best = solve(table)
    assert best.optimal and best.total == min(map(table.total, everything))
    assert total(best.choice) <= total_us(problem, LayoutAssignment())


@pytest.mark.parametrize("seed", range(4))
def test_each_kernels_best_is_no_better_than_the_plan(seed: int, tmp_path: Path):
    choices = choices_of(network_of("residual", tmp_path), GENERIC_CPU)
    problem = LayoutProblem.of(choices, costs(seed))
    (plan, _), alone = problem.solved(), problem.each_alone()
    for choice in (plan, alone):
        assert problem.closest(choice.activations) == choice

    assert total_us(problem, plan) <= total_us(problem, alone)


@pytest.mark.parametrize("name", CASES)
def test_copies_are_groups_of_their_own(name: str, tmp_path: Path):
    net = network_of(name, tmp_path)
    kept = {
        value: KeptLayouts(NHWC, ("NCHW16c",))
        for value, readable in choices_of(net, GENERIC_CPU).read.items()
        if "NCHW16c" in readable
    }
    ends = {p.group.name: IOLayouts("NCHW16c", NHWC) for p in net.groups}
    laid = with_layouts(net, LayoutAssignment(activations=kept, kernels=ends))
    laid.graph.verify()
    copies = {node.outputs[0] for node in laid.graph.nodes if node.op == "identity"}
    assert set(laid.layouts) == copies == {f"{value}@NCHW16c" for value in kept}
    assert len(laid.groups) == len(net.groups) + len(copies)
    for value in kept:
        readers = laid.graph.consumers(value)
        assert any(node.op == "identity" for node in readers)


def test_all_alike_needs_no_copies(tmp_path: Path):
    net = network_of("residual", tmp_path)
    choice = uniform_layout(net, "NCHW16c")
    assert choice.activations
    assert all(not kept.copies for kept in choice.activations.values())
    assert len(with_layouts(net, choice).groups) == len(net.groups)
    assert uniform_layout(net, NHWC) == LayoutAssignment()


def test_layouts_of_another_network_are_refused(tmp_path: Path):
    net, other = (network_of(name, tmp_path) for name in ("joined", "residual"))
    with pytest.raises(InputError, match="network residual: expected layouts of its activations"):
        with_layouts(other, uniform_layout(net, "NCHW16c"))


def default_program(space: Space, spec: DeviceSpec = GENERIC_CPU) -> Program:
    return space.instantiate(default_candidate(space, spec))


def opened(net: Network, store: Path) -> Session:
    return Session(list(net.tasks.values()), FakeRunner(), RecordStore(store), settings(trials=0))


def test_records_of_layouts_stand_beside_those_in_rows(tmp_path: Path, store: Path):
    net = network_of("residual", tmp_path)
    session = opened(net, store)
    key, ends = next((k, e) for k, some in choices_of(net, GENERIC_CPU).of_tasks.items()
                     for e in some if e != IOLayouts())  # fmt: skip
    task = net.tasks[key]
    candidates = task.space(GENERIC_CPU).untuned()[:2]
    LayoutTrials(session).measure(task, ends, candidates)
    rows = RecordStore(store).scan({"task_key": key})
    assert set(rows["layout_in"]) == {ends.input}
    assert set(rows["layout_out"]) == {ends.output}
    assert set(rows["phase"]) == {"layout"}
    where = session.conditions
    assert RecordStore(store).scan(dict(where.comparable)).empty  # no search takes them for its own
    known = recorded_times(RecordStore(store), where, {key}, [IOLayouts(), ends])
    assert set(known) == {(key, ends)} and known[key, ends].count == len(candidates)


def test_a_workload_in_other_layouts_is_one_that_boards_take(tmp_path: Path):
    net, compared = network_of("residual", tmp_path), 0
    for key, some in choices_of(net, GENERIC_CPU).of_tasks.items():
        task = net.tasks[key]
        given = task.workload(0)
        for io in some:
            there = workload_in(given, task, io)
            blob = pack_workload(there)
            body, arrays = pack_batch(there, digest_of(blob), [], MeasureOptions())
            batch = unpack_batch(body, MessageParts(arrays=arrays), Limits())
            taken = batch.workload(blob)
            for name, places in there.positions.items():
                np.testing.assert_array_equal(taken.positions[name], places)
                compared += 1
    assert compared


def test_the_search_for_layouts_keeps_to_its_budget(tmp_path: Path, store: Path):
    net = network_of("chain", tmp_path)
    session = opened(net, store)
    search = LayoutSearch(session, net)
    assert recorded_layouts(net, session.spec, session.store, session.conditions) is None
    found = search.run(lambda count: count < 7)
    assert found.problem.measured
    assert found.trials == 7 and 0 <= found.unused <= 7
    assert len(RecordStore(store).scan({"phase": "layout"})) == 7
    everything = LayoutSearch(opened(net, store), net).run(lambda _: True)
    assert everything.solution.optimal
    again = LayoutSearch(opened(net, store), net).run(lambda _: True)
    assert (again.trials, again.solution) == (0, everything.solution)


@pytest.mark.parametrize("name", ["joined", "cut"])
def test_a_plan_joins_what_is_faster_in_blocks(name: str, tmp_path: Path, store: Path):
    """Kernels with as many images in blocks as can be are the fastest, and copies are slow."""
    net, target = network_of(name, tmp_path), target_of(GENERIC_CPU)
    fast: set[str] = set()
    for key, some in choices_of(net, GENERIC_CPU).of_tasks.items():
        task = net.tasks[key]
        ends = max(some, key=lambda e: str(e).count("NCHW16c"))
        program = default_program(task.space(GENERIC_CPU))
        fast.add(lower(view(program, io_storages(task, ends) or {}), target).text)

    def outcome(source: ProgramSource) -> Measurement:
        (time,) = measured(source).run_times_us
        times = [time if source.text in fast else 9.0 * time]
        return succeeded(times, max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)

    runner = FakeRunner(outcome)
    session = Session(list(net.tasks.values()), runner, RecordStore(store), settings(trials=0))
    found = LayoutSearch(session, net).run(lambda _: True)
    choice = found.layouts
    for node in net.graph.nodes:
        if node.op in ("concat", "slice"):
            assert choice.activations[node.outputs[0]].made == "NCHW16c"
            (group,) = (p.group.name for p in net.groups if p.group.anchor is node)
            assert choice.kernels[group] == IOLayouts("NCHW16c", "NCHW16c")


def test_no_plan_stands_on_one_disturbed_measurement(tmp_path: Path, store: Path):
    """Each kernel takes ten times as long when it is measured for the first time."""
    net = network_of("residual", tmp_path)
    seen: set[str] = set()

    def outcome(source: ProgramSource) -> Measurement:
        blocks = "NCHW" in source.text or source.text not in rows
        time = (2.0 if blocks else 1.0) * (1.0 if source.text in seen else 10.0)
        seen.add(source.text)
        return succeeded([time], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)

    target = target_of(GENERIC_CPU)
    spaces = [task.space(GENERIC_CPU) for task in net.tasks.values()]
    rows = {lower(default_program(space), target).text for space in spaces}
    for text in (one for one in rows if len(one) % 2):
        seen.add(text)  # not all kernels are unlucky
    session = Session(
        list(net.tasks.values()), FakeRunner(outcome), RecordStore(store), settings(trials=0)
    )
    found = LayoutSearch(session, net).run(lambda _: True)
    assert not found.layouts.activations


@pytest.mark.parametrize("name", ["residual", "cut"])
def test_what_is_not_measured_is_in_no_better_plan(name: str, tmp_path: Path, store: Path):
    """Where all kernels of a task take about as long: each hope is kept."""
    net = network_of(name, tmp_path)
    choices = choices_of(net, GENERIC_CPU)

    def us(key: Measured) -> float:
        size = choices.tasks[key[0]].least_bytes
        return size * (1e-3 if key in choices.copies else 1e-3 + 1e-6 * (hash_of(key) % 90))

    truth = {key: KnownTime(us(key), 1) for key in (*choices.computing, *choices.copies)}
    best, _ = problem_of(choices, truth).solved()
    known = {key: truth[key] for key in choices.nhwc}
    while True:
        problem = problem_of(choices, hoped(choices, known, ()))
        layouts, _ = problem.solved()
        more = {kernel.measured(layouts.of_kernel(kernel.label)) for kernel in choices.kernels}
        for value, kept in layouts.activations.items():
            more |= set(problem.copies(value, kept))
        if more <= known.keys():
            break
        known |= {key: truth[key] for key in more}
    assert len(known) < len(truth)
    plan, _ = problem_of(choices, known).solved()
    everything = problem_of(choices, truth)
    assert total_us(everything, plan) == pytest.approx(total_us(everything, best))


def hash_of(key: Measured) -> int:
    return crc32(repr(key).encode())


def test_a_plan_may_choose_a_schedule_that_is_for_blocks(tmp_path: Path, store: Path):
    """The template's kernels are the fastest, and copies are slow."""
    net = network_of("chain", tmp_path)

    def outcome(source: ProgramSource) -> Measurement:
        time = 1.0 if source.text in written else 50.0
        return succeeded([time], max_abs_err=0.0, reference_us=None, build_s=0.0, run_s=0.0)

    written: set[str] = set()
    for key, some in choices_of(net, GENERIC_CPU).of_tasks.items():
        for ends in some:
            task = net.tasks[key]
            for candidate in blocked_candidates(task, ends, GENERIC_CPU, 4):
                program = task.space(GENERIC_CPU).instantiate(candidate)
                laid = view(program, io_storages(task, ends) or {})
                written.add(lower(laid, target_of(GENERIC_CPU)).text)
    runner, records = FakeRunner(outcome), RecordStore(store)
    session = Session(list(net.tasks.values()), runner, records, settings(trials=0))
    found = LayoutSearch(session, net).run(lambda _: True)
    choice = found.layouts
    assert "NCHW16c" in {kept.made for kept in choice.activations.values()}
    chosen = best_in_layouts(net, choice, records, session.conditions, GENERIC_CPU)
    ends_of = assigned_to_tasks(net, choice, GENERIC_CPU)
    templates = [key for key, (one, _) in chosen.items() if one.sketch.startswith("conv2d_nchwc_b")]
    assert templates and all(ends != IOLayouts() for key in templates for ends in ends_of[key])
    for candidate, record in chosen.values():
        assert record.conditions is not None
        assert (record.conditions.layout_in, record.conditions.layout_out) != (NHWC, NHWC)
        assert record.config_hash == candidate.key


def test_all_in_blocks_is_measured_with_what_is_for_blocks(tmp_path: Path, store: Path):
    net = network_of("chain", tmp_path)
    search, choice = LayoutSearch(opened(net, store), net), uniform_layout(net, "NCHW16c")
    assert search.measure(choice, lambda count: count < 5) == 5
    assert search.measure(choice, lambda _: True) > 5
    rows = RecordStore(store).scan({"phase": "layout"})
    assert {"cpu", "template conv2d_nchwc_blocks_v16"} <= {
        str(name).partition(".")[0] for name in rows["strategy"]
    }
    assert "NCHW16c" in set(rows["layout_in"])


@pytest.mark.parametrize(
    ("layout", "block"),
    [(NHWC, 48), ("NCHW", 1), ("NCHW16c", 16), ("NCHW32c", None), ("NHWC+16", 48)],
)
def test_blocks_of_layouts(layout: str, block: int | None):
    assert block_of(layout, 48) == block


def test_tasks_without_such_axes_stay_in_rows(tmp_path: Path):
    net = network_of("residual", tmp_path)
    for key, some in choices_of(net, GENERIC_CPU).of_tasks.items():
        for ends in some:
            found = io_storages(net.tasks[key], ends)
            assert found is not None and (not found) == (ends == IOLayouts())
    assert choices_of(net, GENERIC_CPU).copies
    assert measuring_conditions(GENERIC_CPU, settings().options).layout_in == NHWC


@partial(network, among=SMALL)
def along(n: Net) -> tuple[str, ...]:
    """A group that goes along two images, each as one row, and one beside a constant in rows."""
    x = n.conv(n.input(1, 3, 6, 8), 3, 16)
    y = n.conv(x, 16, 16)
    z = n("Tanh", n("Sub", x, y))
    q = n.conv(y, 16, 16)
    scaled = n("Relu", n("Mul", q, n.stored(np.ones((1, 16, 6, 8), np.float32))))
    # One reader alone would compute them by itself.
    return (n.conv(q, 16, 16), *(n.conv(v, 16, 16) for v in (z, z, scaled, scaled)))


def test_what_goes_along_images_follows_any_layout_alike(tmp_path: Path):
    net = network_of("along", tmp_path)
    (flat,) = (task for task in net.tasks.values() if is_elementwise(task))
    assert len(flat.inputs) == 2 and flat.dag.outputs[0].shape == (6 * 8 * 16,)
    assert io_storages(flat, IOLayouts("NCHW16c", "NCHW16c"))
    assert io_storages(flat, IOLayouts("NCHW16c", NHWC)) is None
    assert io_storages(flat, IOLayouts("NHWC+16", "NHWC+16")) is None  # there are gaps between rows
    laid = uniform_layout(net, "NCHW8c")
    (group,) = (p.group for p in net.groups if p.task_key == flat.key)
    assert {laid.activations[value].made for value in (*group.inputs, *group.outputs)} == {"NCHW8c"}


@partial(network, among=SMALL)
def beside_rows(n: Net) -> tuple[str, ...]:
    """A group that goes along two images, one of which leaves the network in rows."""
    x = n.conv(n.input(1, 3, 6, 8), 3, 16)
    y = n.conv(x, 16, 16)
    z = n("Tanh", n("Sub", x, y))
    # One reader alone would compute it by itself.
    q = n.conv(n.conv(z, 16, 16), 16, 16)
    return (q, n.conv(z, 16, 8), n("Transpose", y, perm=[0, 2, 3, 1]))


def test_what_goes_along_images_keeps_all_in_rows_where_one_is(tmp_path: Path):
    net = network_of("beside_rows", tmp_path)
    (flat,) = (task for task in net.tasks.values() if is_elementwise(task))
    (group,) = (p.group for p in net.groups if p.task_key == flat.key)
    choice = uniform_layout(net, "NCHW8c")
    assert choice.activations
    assert choice.activations.keys().isdisjoint((*group.inputs, *group.outputs))
    build_plan(with_layouts(net, choice), {}, GENERIC_CPU, model_key="", notes={})
    kept = {**choice.activations, group.outputs[0]: KeptLayouts("NCHW8c")}
    mixed = replace(choice, activations=kept)
    with pytest.raises(InputError, match=f"group {group.name}: expected layouts that its kernel"):
        build_plan(with_layouts(net, mixed), {}, GENERIC_CPU, model_key="", notes={})


def both_ways(n: Net, *, images_first: bool) -> tuple[str, ...]:
    """The same done to two images, and to rows of as many elements."""

    def mixed(a: str, b: str) -> str:
        return n("Tanh", n("Sub", a, b))

    def images() -> tuple[str, ...]:
        x = n.conv(n.input(1, 3, 2, 2), 3, 16, (1, 1))
        y = n.conv(x, 16, 16, (1, 1))
        z = mixed(x, y)
        # One reader alone would compute it by itself.
        return (n.conv(z, 16, 5), n.conv(z, 16, 4), n.conv(n.conv(y, 16, 16, (1, 1)), 16, 3))

    def rows() -> tuple[str, ...]:
        q = n.input(1, 64)
        a, b = (n("MatMul", q, n.weight(64, 64)) for _ in range(2))
        z = mixed(a, b)
        return (n("MatMul", n("Add", a, z), n.weight(64, 3)), n("Mul", b, z))

    return (*images(), *rows()) if images_first else (*rows(), *images())


@pytest.mark.parametrize("images_first", [True, False])
def test_what_is_an_image_is_a_matter_of_the_group(images_first: bool):
    """A task that goes along single rows serves images, and what is none."""
    net = Net("both")
    made = both_ways(net, images_first=images_first)
    found = extract(optimise(import_model(net.model(*made))))
    (flat,) = (t for t in found.tasks.values() if is_elementwise(t) and t.weight == 2)
    choices, spec = choices_of(found, GENERIC_CPU), GENERIC_CPU
    inputs = {placed.group.name: placed.group.inputs for placed in found.groups}
    for kernel in choices.kernels:
        if kernel.task_key == flat.key:
            ranks = [len(found.graph.types[v].shape) for v in inputs[kernel.label]]
            assert (kernel.input is None) == (ranks == [2, 2])

    def cost(measured: Measured) -> float | None:
        if measured in choices.copies:
            return 0.1
        return (2.0 if measured[1].is_nhwc else 1.0) if measured in choices.computing else None

    plan, _ = LayoutProblem.of(choices, cost).solved()
    for choice in (plan, uniform_layout(found, "NCHW16c")):
        assert choice.activations
        laid = with_layouts(found, choice)
        verify_plan(build_plan(laid, {}, spec, model_key="", notes={}))


def test_images_of_bytes_are_not_put_into_blocks():
    """Products of bytes read four channels in a row."""
    shape = (1, 8, 8, 64)
    assert layouts_for(GENERIC_CPU, TensorType(shape, UINT8)) == (NHWC,)
    assert layouts_for(GENERIC_CPU, TensorType(shape, FLOAT32)) == (NHWC, "NCHW16c")


def test_gpus_have_planes_and_blocks_of_what_an_item_loads():
    shape = (1, 8, 8, 64)
    assert layouts_for(GENERIC_GPU, TensorType(shape, FLOAT32)) == (NHWC, "NCHW4c", "NCHW")
    assert layouts_for(GENERIC_GPU, TensorType(shape, UINT8)) == (NHWC,)
    assert layouts_for(GENERIC_GPU, TensorType((1, 1, 1, 64), FLOAT32)) == (NHWC,)


def test_what_a_gpu_may_be_asked_for_becomes_kernels(tmp_path: Path):
    net, target = network_of("residual", tmp_path), target_of(GENERIC_GPU)
    for key, some in choices_of(net, GENERIC_GPU).of_tasks.items():
        task = net.tasks[key]
        program = default_program(task.space(GENERIC_GPU), GENERIC_GPU)
        texts = {
            "".join(
                k.text for k in lower(view(program, io_storages(task, e) or {}), target).kernels
            )
            for e in some
        }
        assert len(texts) == len(some)
