"""Values that lie in others: which they are, what that spares, and which may not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import pytest

from retune.api import import_network
from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.manifest import Json, Malformed, from_manifest, read_manifest, to_manifest
from retune.bundle.memory import plan_memory
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.hazards import dependencies
from retune.bundle.runtime.placement import lay_out, touched
from retune.core.errors import VerifyError
from retune.core.layouts import BLOCKED, NHWC, KeptLayouts
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.ir.storage import row_major
from retune.search.extract import Network
from retune.search.layout.assignment import uniform_layout, with_layouts
from tests.support.device_networks import NETWORKS, Net, Networks, network, write
from tests.support.programs import texts_of

CASES: Networks = {}


class Compile(Protocol):
    def __call__(self, name: str, spec: DeviceSpec = GENERIC_CPU) -> NetworkPlan: ...


def case(function: Callable[[Net], tuple[str, ...]]):
    return network(function, among=CASES)


@case
def branches(n: Net) -> tuple[str, ...]:
    """Two layers that read one value and are joined."""
    x = n("Relu", n.conv(n.input(1, 3, 8, 8), 3, 8))
    pair = n("Concat", n.conv(x, 8, 5), n.conv(x, 8, 7), axis=1)
    return (n.conv(pair, 12, 4, (1, 1)),)


@case
def many_columns(n: Net) -> tuple[str, ...]:
    """Columns that each have a node of their own, side by side again."""
    x = n.input(3, 256)
    cut = [n("Slice", x, n.ints(i), n.ints(i + 1), n.ints(1)) for i in range(256)]
    return (n("Concat", *(n("Tanh", value) for value in cut), axis=1),)


@case
def part_is_an_output(n: Net) -> tuple[str, ...]:
    x = n.input(4, 3)
    part = n("MatMul", x, n.weight(3, 5))
    return (n("Concat", part, n("MatMul", x, n.weight(3, 7)), axis=1), part)


@case
def twice_in_one(n: Net) -> tuple[str, ...]:
    part = n.conv(n.input(1, 3, 8, 8), 3, 5)
    return (n("Concat", part, n.conv(part, 5, 7), part, axis=1),)


@case
def twice_by_way_of_another(n: Net) -> tuple[str, ...]:
    """A value stands beside a concatenation that it is a part of: it cannot lie in both places."""
    part = n.conv(n.input(1, 3, 8, 8), 3, 5)
    both = n("Concat", part, n.conv(part, 5, 7), axis=1)
    return (n.conv(n("Concat", part, both, axis=1), 17, 4),)


@case
def beside_its_own_channels(n: Net) -> tuple[str, ...]:
    whole = n.conv(n.input(1, 3, 8, 8), 3, 8)
    some = n("Slice", whole, n.ints(2), n.ints(5), n.ints(1))
    return (n.conv(n("Concat", whole, some, axis=1), 11, 4),)


@case
def cut_twice(n: Net) -> tuple[str, ...]:
    """Every second row, and of these two columns: one movement of what is there."""
    x = n.conv(n.input(1, 3, 8, 8), 3, 3)
    rows = n("Slice", x, n.ints(2), n.ints(8), n.ints(2), n.ints(2))
    return (n("Mul", n("Slice", rows, n.ints(0), n.ints(2), n.ints(1)), n.weight(2, 3, 8)),)


@case
def in_two_that_differ(n: Net) -> tuple[str, ...]:
    x = n.input(1, 3, 8, 8)
    a, b = n.conv(x, 3, 5), n.conv(x, 3, 7)
    return (n("Concat", a, b, axis=1), n("Concat", b, a, axis=1))


@case
def read_as_one_row(n: Net) -> tuple[str, ...]:
    """What takes all elements for one row cannot leave columns out."""
    x = n("MatMul", n.input(8, 3), n.weight(3, 9))
    left = n("Slice", x, n.ints(0), n.ints(4), n.ints(1))
    return (n("MatMul", x, n.weight(9, 2)), n("Relu", n("Reshape", left, n.ints(32))))


@case
def of_the_input(n: Net) -> tuple[str, ...]:
    """Columns of what the caller gives are read where they are."""
    x = n.input(2, 9)
    left, right = (
        n("Slice", x, n.ints(0), n.ints(4), n.ints(1)),
        n("Slice", x, n.ints(4), n.ints(9), n.ints(1)),
    )
    return (n("MatMul", left, n.weight(4, 3)), n("MatMul", right, n.weight(5, 3)))


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    def made(name: str, spec: DeviceSpec = GENERIC_CPU) -> NetworkPlan:
        among = CASES if name in CASES else NETWORKS
        found = import_network(str(write(name, tmp_path, among=among)), max_error=0.0).network
        plan = build_plan(found, {}, spec, model_key="key", notes={})
        verify_plan(plan)
        return plan

    return made


def copies(plan: NetworkPlan) -> int:
    """Launches of concatenations and slices."""
    return sum(launch.label.startswith(("concat", "slice")) for launch in plan.launches)


@pytest.mark.parametrize(
    ("name", "count", "columns"),
    [
        ("branches", 0, {(0, 12), (5, 12)}),
        ("dense_block", 0, {(o, 27) for o in (0, 12, 17, 22)}),
        ("split_and_joined", 0, {(o, 30) for o in (0, 6, 14, 22)}),
        ("part_is_an_output", 1, {(5, 12)}),
        ("twice_in_one", 2, {(5, 17)}),
        ("twice_by_way_of_another", 2, {(0, 12), (5, 12)}),
        ("beside_its_own_channels", 2, {(2, 8)}),
        ("cut_twice", 1, set()),
        ("in_two_that_differ", 2, {(0, 12), (5, 12)}),
        ("read_as_one_row", 1, set()),
        ("columns_added", 0, {(0, 9), (3, 9), (6, 9)}),
        ("of_the_input", 0, {(0, 9), (4, 9)}),
    ],
)
def test_what_lies_in_a_row_is_not_copied(
    compiled: Compile, name: str, count: int, columns: set[tuple[int, int]]
):
    plan = compiled(name)
    assert copies(plan) == count
    rows = [alias.storage.parts[-1] for alias in plan.aliases if alias.storage]
    assert {(row.first, row.room) for row in rows} == columns


def test_rows_that_crowd_a_cache_are_a_line_longer_on_cpus(compiled: Compile):
    plan = compiled("long_rows")
    roots = plan.roots
    rows = {a.value: a.storage for a in plan.aliases if a.storage and "@padded" in roots[a.value]}
    assert sorted((s.parts[-1].first, s.parts[-1].extent) for s in rows.values()) == [
        (0, 200), (0, 512), (0, 512), (0, 512), (0, 512), (200, 312),
    ]  # fmt: skip
    assert {s.parts[-1].room for s in rows.values()} == {528}
    assert len({roots[value] for value in rows}) == 4
    assert not rows.keys() & {*plan.inputs, *plan.outputs}
    gpu = compiled("long_rows", GENERIC_GPU)
    assert not any("@padded" in buffer.name for buffer in gpu.buffers)


def test_parts_of_a_very_wide_value_share_kernels(compiled: Compile):
    """In levels they lie alike."""
    plan = compiled("many_columns")
    assert len(plan.launches) > 256
    assert len(plan.kernels) < 128


def test_branches_that_write_one_concatenation_do_not_wait_for_each_other(compiled: Compile):
    plan = compiled("branches")
    after = dependencies(touched(plan, lay_out(plan, plan_memory(plan))))
    pair = [n for n, launch in enumerate(plan.launches) if "_out0_at" in launch.kernel]
    assert len(pair) == 2
    assert after[pair[0]] == after[pair[1]]
    assert set(after[pair[1] + 1]) == set(pair)


def test_a_launch_may_write_beside_what_it_reads(compiled: Compile):
    plan = compiled("split_and_joined")
    within = {alias.value: alias.of for alias in plan.aliases}
    beside = [
        launch.writes[0]
        for launch in plan.launches
        if within.get(launch.writes[0]) in {within[v] for v in launch.read if v in within}
    ]
    written = beside[0]
    everywhere = tuple(
        replace(a, storage=row_major(plan.buffer(written).shape).columns(0, 30))
        if a.value == written
        else a
        for a in plan.aliases
    )
    with pytest.raises(VerifyError, match="memory that is not read through another argument"):
        verify_plan(replace(plan, aliases=everywhere))


@pytest.mark.parametrize("columns", [(0, 13), (3, 16)])
def test_columns_lie_in_the_rows_of_what_they_are_columns_of(
    compiled: Compile, columns: tuple[int, int]
):
    plan = compiled("branches")
    first, *rest = plan.aliases
    assert first.storage
    wrong = row_major(first.storage.shape).columns(*columns)
    with pytest.raises(VerifyError, match="columns in rows of 12"):
        verify_plan(replace(plan, aliases=(replace(first, storage=wrong), *rest)))


def test_what_the_file_says_of_columns(compiled: Compile):
    """Offset and width, as ever: older programs read it, and this one reads theirs."""
    plan = compiled("branches")
    written = to_manifest(plan)
    aliases = cast("list[dict[str, Json]]", written["aliases"])
    assert [entry["columns"] for entry in aliases] == [
        {"offset": 0, "width": 12},
        {"offset": 5, "width": 12},
    ]
    assert (
        from_manifest(read_manifest(written), texts_of(plan), plan.weights).aliases == plan.aliases
    )
    for columns in ({"offset": -1, "width": 12}, {"offset": 8, "width": 12}):
        aliases[0]["columns"] = cast("dict[str, Json]", columns)
        with pytest.raises(Malformed, match=r"columns: .* do not lie in a room of 12"):
            from_manifest(read_manifest(written), texts_of(plan), plan.weights)


@case
def images(n: Net) -> tuple[str, ...]:
    """Wide layers with a residual sum, narrow ones, and a product behind a mean."""
    x = n("Relu", n.conv(n.input(2, 3, 9, 7), 3, 24))
    y = n("Add", n("Relu", n.conv(x, 24, 24)), x)
    z = n("Relu", n.conv(n.conv(y, 24, 5, (1, 1)), 5, 32))
    return (n("Flatten", n("GlobalAveragePool", z)),)


def in_blocks(folder: Path) -> Network:
    network = import_network(str(write("images", folder, CASES)), max_error=0.0).network
    return with_layouts(network, uniform_layout(network, BLOCKED))


def test_images_in_blocks_have_memory_of_their_own(tmp_path: Path):
    network = in_blocks(tmp_path)
    plan = build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
    verify_plan(plan)
    blocks = {a.value: a.storage for a in plan.aliases if a.storage is not None}
    assert {storage.shape[-1] for storage in blocks.values()} == {24, 32}
    for alias in plan.aliases:
        if alias.storage is not None:
            assert plan.buffer(alias.of).elements == alias.storage.elements
            assert str(alias.storage) == "d0_d3by16_d1_d2_d3"
    written = to_manifest(plan)
    assert (
        from_manifest(read_manifest(written), texts_of(plan), plan.weights).aliases == plan.aliases
    )


def test_blocks_lie_among_blocks(tmp_path: Path):
    network = import_network(str(write("blocks_joined", tmp_path)), max_error=0.0).network
    laid = with_layouts(network, uniform_layout(network, BLOCKED))
    plans = [build_plan(n, {}, GENERIC_CPU, model_key="", notes={}) for n in (network, laid)]
    for plan in plans:
        verify_plan(plan)
    assert copies(plans[0]) == copies(plans[1])  # `x` lies in one of the two
    lie = {a.value: a.storage for a in plans[1].aliases if a.storage is not None}
    assert len(lie) == 7 and len({a.of for a in plans[1].aliases}) == 2
    firsts = [storage.parts[1].first for storage in lie.values()]
    assert all(storage.parts[1].divisor == 16 for storage in lie.values()) and 2 in firsts


def test_pieces_in_rows_are_copied_into_blocks(tmp_path: Path):
    """And the other way round: a copy's layout is that of what it lies in."""
    network = import_network(str(write("blocks_joined", tmp_path)), max_error=0.0).network
    choice = uniform_layout(network, BLOCKED)
    piece = next(n.inputs[1] for n in network.graph.nodes if n.op == "concat")
    mixed = replace(
        choice, activations={**choice.activations, piece: KeptLayouts(NHWC, (BLOCKED,))}
    )
    plan = build_plan(with_layouts(network, mixed), {}, GENERIC_CPU, model_key="", notes={})
    verify_plan(plan)
    laid = build_plan(with_layouts(network, choice), {}, GENERIC_CPU, model_key="", notes={})
    assert copies(plan) == copies(laid)
    copy = f"{piece}@NCHW16c"
    (alias,) = (a for a in plan.aliases if a.value == copy)
    assert alias.storage is not None and alias.storage.parts[1].room > 1


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        (1, {"room": 1}, "choose a larger one"),
        (1, {"dim": 2}, "expected the digits of each index"),
        (4, {"divisor": 2}, "expected the digits of each index"),
    ],
)
def test_what_the_file_says_of_blocks(
    tmp_path: Path, part: int, fields: dict[str, Json], message: str
):
    network = in_blocks(tmp_path)
    plan = build_plan(network, {}, GENERIC_CPU, model_key="", notes={})
    written = to_manifest(plan)
    aliases = cast("list[dict[str, Json]]", written["aliases"])
    laid = next(entry for entry in aliases if "parts" in entry)
    cast("list[dict[str, Json]]", laid["parts"])[part] |= fields
    with pytest.raises(Malformed, match=f"parts.*: .*{message}"):
        from_manifest(read_manifest(written), texts_of(plan), plan.weights)
