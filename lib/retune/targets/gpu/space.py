"""Rules for GPU devices: sketches for any program, without templates.

The heaviest reduction is tiled over work-groups, virtual threads, work-items and registers, with
its operands fetched into local memory by all items of a group (`tile`); reductions without
operands to share are spread over items and combined in local memory (`rows`), or take one item
for each result (`plain`), as element-wise stages do. See `gpu_space`.

Sources: the GPU sketches of Ansor (OSDI 2020, section 4.1), whose levels S S S R R S R S these are.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from math import prod
from typing import Literal

from retune.core.dims import example, is_multiple
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import Block, Program
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.space import Rule, Space
from retune.schedule.unrounded import rounds
from retune.targets.fusion import (
    accesses,
    heaviest_reduction,
    inline_elementwise,
    legal_sketches,
    padding_of,
    schedule_rest,
)
from retune.targets.gpu.attention import attention_sketches
from retune.targets.gpu.few_queries import few_queries_sketches
from retune.targets.gpu.images import may_be_images
from retune.targets.gpu.limits import keep_to_limits
from retune.targets.gpu.panels import (
    PanelTile,
    inline_movements,
    panel_tiles,
    schedule_panels,
)
from retune.targets.gpu.partial import (
    PartialTile,
    has_few_rows,
    schedule_partial,
    schedule_shared_partial,
)
from retune.targets.gpu.plain import schedule_plain
from retune.targets.gpu.rows import (
    CrossThreadReduction,
    has_few_results,
    has_room,
    is_row_reduction,
    row_structures,
    schedule_items,
    schedule_row_program,
    schedule_row_reduction,
)
from retune.targets.gpu.slices import schedule_shared, slice_over_groups
from retune.targets.gpu.tile import (
    FETCHED_LANES,
    Contraction,
    Fetch,
    WindowReduction,
    schedule_tile,
    short_depths,
)
from retune.targets.gpu.warp import WarpTile, schedule_warp, warp_tiles
from retune.targets.instructions import find_instruction, has_warps, in_packs
from retune.targets.partial_sums import total_of
from retune.targets.restated import restate
from retune.targets.row_programs import Fused, find_row_program, fused_rows

Tiled = Contraction | WindowReduction
Structure = Tiled | WarpTile | PanelTile | PartialTile | CrossThreadReduction | Fused | None
"""What is done to the heaviest reduction; None: what is done to all others, with sizes sampled."""

_PLAIN = "gpu.plain"
_LANES = 4
"""Neighbouring channels of one item, where they come in fours."""
_SLICED_OUTPUTS = 9 << 15
"""Results above which a device has enough to do without slices of the reduction (measured on an
H100, 132 units: 361 x 728 of them take 0.6 of the time with slices, 784 x 512 up to 1.15)."""
_SLICED_DEPTH = 32
"""Steps of a reduction's innermost axis below which slices of it are not worth a second kernel."""


def gpu_space(program: Program, spec: DeviceSpec) -> Space:
    """All sketches of the rules that are legal for this program. At least one."""
    if whole := few_queries_sketches(program, spec) or attention_sketches(program, spec):
        return Space(whole)

    def named(structure: Structure) -> tuple[str, Rule]:
        name = structure.name if structure else _PLAIN
        return name, partial(schedule_gpu, structure=structure, spec=spec)

    structures = list(_structures(program, spec))
    warps = [s for s in structures if isinstance(s, WarpTile | PanelTile)]
    sketches = legal_sketches(program, map(named, warps))
    # Beside those of warps, tiles of items are never the faster ones, see `gpu.warp`.
    settled = any(isinstance(s, WarpTile) and s.is_best for s in warps) and sketches
    less = WarpTile | PanelTile | (Contraction | CrossThreadReduction if settled else WarpTile)
    others = (named(structure) for structure in structures if not isinstance(structure, less))
    plain = None if sketches else named(None)
    return Space((*sketches, *legal_sketches(program, others, plain)))


def _structures(program: Program, spec: DeviceSpec) -> Iterator[Structure]:
    """The structures worth trying for the heaviest reduction."""
    anchor = heaviest_reduction(program)
    s = Schedule(program)
    if anchor is None:
        return
    if fused_rows(program):
        yield Fused("gpu")
    total = total_of(program, anchor)
    if total is not None and has_few_rows(s, total, spec):
        yield from _sharing(s, anchor, spec)  # others took 1.3 to 14 times as long (H200)
        return
    if not anchor.indices or is_row_reduction(s, anchor.name):
        yield None
        yield from row_structures(s, anchor.name, spec)
        return
    stage = accesses(s, anchor.name)
    lanes = _LANES if is_multiple(stage.channels, _LANES) else 1
    if stage.contracts:
        yield from _by_warps(program, anchor, spec)
        packed = find_instruction(stage, spec, "vector lane", lanes)
        if total is not None:
            yield PartialTile(lanes=lanes, packed=packed.entry if packed else None)
        if packed is None and has_few_results(s, anchor.name, spec):
            yield CrossThreadReduction()
        if packed is None:
            yield from _through_images(_contractions(stage, lanes, spec), stage, spec)
        else:
            yield from _in_packs(stage, lanes, spec, packed.entry)
        return
    held = [False, True] if padding_of(program, anchor) else [False]
    windows = (WindowReduction(lanes=n, held=h) for n in dict.fromkeys((lanes, 1)) for h in held)
    yield from _through_images(windows, stage, spec)


def _sharing(s: Schedule, anchor: Block, spec: DeviceSpec) -> Iterator[PartialTile]:
    """Tiles of few rows with weights in blocks."""
    stage = accesses(s, anchor.name)
    for lanes in (2, 1):  # vectors of four took longer on all of a decoder (H100)
        if is_multiple(stage.channels, lanes):
            packed = find_instruction(stage, spec, "vector lane", lanes)
            yield PartialTile(lanes=lanes, packed=packed.entry if packed else None, shared=True)


def _by_warps(program: Program, anchor: Block, spec: DeviceSpec) -> Iterator[WarpTile | PanelTile]:
    """The tiles by instructions of warps, where the device has some."""
    if not has_warps(spec):
        return
    moved = Schedule(program)
    direct = warp_tiles(program, anchor.name, spec)
    yield from direct
    inline_elementwise(moved)
    inline_movements(moved, anchor.name)
    for panels in panel_tiles(accesses(moved, anchor.name), spec):
        if not direct or panels.is_ahead:
            yield panels


def _contractions(stage: Accesses, lanes: int, spec: DeviceSpec) -> Iterator[Contraction]:
    """The tiles worth trying for a reduction whose operands serve several results."""
    *window, innermost = (example(evaluate_int(loop.extent)) for loop in stage.steps)
    halos = [False, True] if prod(window) > 1 else [False]
    outputs = prod(example(evaluate_int(e)) for e in stage.block.buffer.shape)
    worth_slicing = innermost >= _SLICED_DEPTH and outputs <= _SLICED_OUTPUTS
    sliced: tuple[Literal["groups"] | None, ...] = (None, "groups") if worth_slicing else (None,)
    for slices in sliced:
        yield Contraction(lanes=lanes, slices=slices)
    if not spec.local_memory_bytes:
        return
    for halo, slices in product(halos, sliced):
        yield Contraction(lanes=lanes, fetch=Fetch(FETCHED_LANES, halo), slices=slices)
    if not window and short_depths(stage.steps[-1]):
        for slices in sliced:
            yield Contraction(lanes=lanes, fetch=Fetch(FETCHED_LANES, short=True), slices=slices)
    for halo in halos if worth_slicing else []:
        yield Contraction(lanes=lanes, fetch=Fetch(FETCHED_LANES, halo), slices="items")
    yield Contraction(lanes=lanes, fetch=Fetch(1, halos[-1]))


def _through_images(
    structures: Iterable[Tiled], stage: Accesses, spec: DeviceSpec
) -> Iterator[Tiled]:
    """The structures; where constants are read faster through images, these come before them.

    Not those that copy operands to local memory: each element is read once there.
    """
    for structure in structures:
        fetches = isinstance(structure, Contraction) and structure.fetch is not None
        if not fetches and may_be_images(stage, structure.lanes, spec):
            yield replace(structure, image=True)
        yield structure


def _in_packs(
    stage: Accesses, lanes: int, spec: DeviceSpec, packed: Intrinsic
) -> Iterator[Contraction]:
    """The same tiles over packs; items copy sixteen bytes at once, which are four of them."""
    for found in _contractions(stage, lanes, spec):
        fetch = found.fetch
        if fetch is None or not fetch.short:
            wide = fetch and replace(fetch, width=fetch.width * packed.pack)
            yield replace(found, fetch=wide, packed=packed)


def schedule_gpu(s: Schedule, structure: Structure, spec: DeviceSpec) -> None:
    """Schedules every stage; only the anchor's tile sizes are sampled."""
    anchor = heaviest_reduction(s.program)
    if anchor is not None and rounds(anchor) and not isinstance(structure, WarpTile | PanelTile):
        s.restate(anchor.name, "unrounded", [])
        anchor = s.block(anchor.name)
    if anchor is not None and isinstance(structure, WarpTile):
        restate(s, anchor.name, structure.forms, masks=True)
    elif anchor is not None and _masks(structure):
        for padding in padding_of(s.program, anchor):
            s.compute_inline(padding.name)
    inline_elementwise(s)
    if anchor is not None:
        _anchor(s, anchor.name, structure, spec)
    _rest(s, spec)
    # Others gain nothing from more local memory than drivers state.
    keep_to_limits(s, spec, declared=isinstance(structure, PanelTile) and structure.is_ahead)


def _masks(structure: Structure) -> bool:
    """Whether padding becomes a mask: operands are read where they are, at each position."""
    match structure:
        case Contraction(fetch=fetch, packed=packed):
            return fetch is None and not packed  # a mask would part a pack from its elements
        case WindowReduction(held=held):
            return not held
        case _:
            return False


def _anchor(s: Schedule, name: str, structure: Structure, spec: DeviceSpec) -> None:
    if isinstance(structure, Contraction) and structure.packed:
        in_packs(s, name, structure.packed.pack)
    match structure:
        case Fused():
            program = find_row_program(s.program)
            assert program is not None, "the rule was asked whether it fits"
            schedule_row_program(s, program, spec)
        case CrossThreadReduction():
            schedule_row_reduction(s, name, structure, spec)
        case Contraction(slices="groups"):
            schedule_tile(s, slice_over_groups(s, name, structure), structure, spec)
            schedule_plain(s, name, spec)
        case Contraction(slices="items"):
            schedule_shared(s, name, structure, spec)
        case WarpTile():
            schedule_warp(s, name, structure)
        case PanelTile():
            schedule_panels(s, name, structure)
        case PartialTile(shared=True):
            schedule_shared_partial(s, name, structure, spec)
        case PartialTile():
            schedule_partial(s, name, structure, spec)
        case Contraction() | WindowReduction():
            schedule_tile(s, name, structure, spec)
        case None:
            if _shares_rows(s, name, spec):
                schedule_items(s, name, spec, sampled=True)


def _shares_rows(s: Schedule, name: str, spec: DeviceSpec) -> bool:
    """Whether the items of a group take the parts of one result."""
    return is_row_reduction(s, name) and has_room(s, name, spec)


def _rest(s: Schedule, spec: DeviceSpec) -> None:
    """Every stage that nothing was done to yet gets the schedule of the rules, untuned."""

    def reduce(name: str) -> None:
        if _shares_rows(s, name, spec):
            schedule_items(s, name, spec, sampled=False)
        else:
            schedule_plain(s, name, spec)

    schedule_rest(s, reduce, lambda name: schedule_plain(s, name, spec))
