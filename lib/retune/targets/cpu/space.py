"""Rules for CPU devices: sketches for any program, without templates.

The heaviest reduction is tiled by what its operands are: register tiles where they serve several
results (`tile`), rows where memory runs along the sum (`rows`), windows over each channel alone
(`windows`), sums over neighbouring channels (`neighbours`). Its element-wise consumer runs on the
registers before they are stored. Other stages get a fixed schedule at memory speed. See
`cpu_space`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from math import prod

from retune.core.dims import example, is_fixed
from retune.core.errors import ScheduleError
from retune.core.target import DeviceSpec
from retune.intrinsics import Intrinsic
from retune.ir.evaluate import evaluate_int
from retune.ir.stmt import Block, Program
from retune.schedule.access import Accesses
from retune.schedule.schedule import Schedule
from retune.schedule.space import Rule, Space
from retune.targets import fusion
from retune.targets.accumulators import WINDOW_LIMIT
from retune.targets.cpu.dots import Dots, dot_products, schedule_dots
from retune.targets.cpu.elementwise import schedule_elementwise, wanted_groups
from retune.targets.cpu.matrix import MatrixTile, matrix_tile, schedule_matrix
from retune.targets.cpu.neighbours import Neighbours, padded_neighbours, schedule_neighbours
from retune.targets.cpu.partial import PartialSums, schedule_partial_sums
from retune.targets.cpu.row_reductions import (
    RowReduction,
    find_row_reduction,
    schedule_row_program,
    schedule_row_reduction,
)
from retune.targets.cpu.tile import RegisterTile, schedule_register_tile
from retune.targets.cpu.windows import LEAST_LANES, SlidingWindow, schedule_window
from retune.targets.fusion import (
    accesses,
    heaviest_reduction,
    inline_elementwise,
    legal_sketches,
    masks_lanes,
    padding_of,
)
from retune.targets.instructions import find_instruction, multiplying
from retune.targets.partial_sums import total_of
from retune.targets.restated import Restatement, restate, strip_sizes, whole_steps
from retune.targets.row_programs import Fused, find_row_program, fused_rows

_MOST_JOINED = 4
"""Groups in a joined one: most of its products are of zeros."""

Structure = (
    RegisterTile
    | MatrixTile
    | RowReduction
    | SlidingWindow
    | Neighbours
    | Fused
    | PartialSums
    | Dots
)
"""What is done to the heaviest reduction."""


def cpu_space(program: Program, spec: DeviceSpec) -> Space:
    """All sketches of the rules that are legal for this program. At least one."""

    def named(structure: Structure) -> tuple[str, Rule]:
        return structure.name, partial(schedule_cpu, structure=structure, spec=spec)

    plain = named(RegisterTile(1))
    return Space(legal_sketches(program, map(named, _structures(program, spec)), plain))


def _structures(program: Program, spec: DeviceSpec) -> Iterator[Structure]:
    """The structures worth trying for the heaviest reduction."""
    anchor = heaviest_reduction(program)
    if anchor is None:
        yield RegisterTile(spec.vector_lanes())
        return
    stage = Accesses.of(anchor, program.body)
    rows = find_row_reduction(stage, spec)
    if rows is not None:
        if fused_rows(program):
            yield Fused("cpu")
        yield rows
        return
    lanes = _lanes(stage, spec)
    if total_of(program, anchor) is not None:
        for tile in _register_tiles(stage, lanes, spec, can_mask=False):
            if not tile.window:
                yield PartialSums(tile)
    elif (dots := dot_products(program, anchor, spec)) is not None:
        yield dots
    elif padded_neighbours(program, anchor, lanes) is not None:
        yield Neighbours(lanes)
    elif stage.by_channel and lanes >= LEAST_LANES:
        yield SlidingWindow(lanes, masked=bool(_masks(program, anchor)))
    else:
        found = [*_tiles(stage, lanes, spec, can_mask=bool(_masks(program, anchor)))]
        yield from found
        if not any(isinstance(tile, MatrixTile) or tile.packed for tile in found):
            yield from _restated_tiles(program, anchor, lanes, spec)
        elif stage.group is not None and not isinstance(found[0], MatrixTile):
            yield from _joined_tiles(program, anchor, stage, spec)


def _tiles(
    stage: Accesses,
    lanes: int,
    spec: DeviceSpec,
    forms: Sequence[Restatement] = (),
    *,
    can_mask: bool = False,
) -> Iterator[MatrixTile | RegisterTile]:
    yield from _orders(matrix_tile(stage, spec, forms))
    for tile in _register_tiles(stage, lanes, spec, can_mask=can_mask):
        yield replace(tile, forms=(*forms,))


def _orders(tile: MatrixTile | None) -> Iterator[MatrixTile]:
    """The tile, if there is one, in each order of a block and of work-groups."""
    if tile is not None:
        for by_columns, slow in product([False, True], repeat=2):
            yield replace(tile, by_columns=by_columns, channels_slow=slow)


def _restated_tiles(
    program: Program, anchor: Block, lanes: int, spec: DeviceSpec
) -> Iterator[MatrixTile | RegisterTile]:
    """The tiles of instructions that do not take the steps of a reduction as they are."""
    made, stage = Schedule(program), Accesses.of(anchor, program.body)
    tiles = multiplying(stage, spec, "register tile")
    instruction = next(chain(tiles, multiplying(stage, spec, "vector lane", lanes)), None)
    forms = _forms(stage, instruction.entry) if instruction else []
    if not forms:
        return
    try:
        restate(made, anchor.name, forms)
    except ScheduleError:
        return  # its channels do not lie side by side
    for tile in _tiles(accesses(made, anchor.name), lanes, spec, forms):
        if isinstance(tile, MatrixTile) or tile.packed:
            yield tile


def _joined_tiles(
    program: Program, anchor: Block, stage: Accesses, spec: DeviceSpec
) -> Iterator[MatrixTile]:
    """The tiles of groups that have too few channels for one, joined until they have enough."""
    found, channels = find_instruction(stage, spec, "register tile"), stage.channels
    count = evaluate_int(stage.block.buffer.shape[-1]) // channels
    for n in range(2, _MOST_JOINED + 1):
        if found is not None and count % n == 0 and n * channels >= found.entry.n:
            made, forms = Schedule(program), [Restatement("joined", (n * channels,))]
            restate(made, anchor.name, forms)
            yield from _orders(matrix_tile(accesses(made, anchor.name), spec, forms))
            return


def _forms(stage: Accesses, entry: Intrinsic) -> list[Restatement]:
    """What makes the reduction one whose last steps come in packs of an instruction."""
    if (strips := next(strip_sizes(stage, entry.pack), None)) is not None:
        pixel, run = strips
        return [Restatement("strips", (pixel, whole_steps(run, entry), entry.pack))]
    steps, forms = evaluate_int(stage.steps[-1].extent), list[Restatement]()
    if not is_fixed(steps):
        return []
    if steps % entry.pack:
        forms.append(Restatement("lengthened", (whole_steps(steps, entry),)))
    if not all(o.constant for o in stage.operands if stage.channel in o.direct):
        forms.append(Restatement("words", (entry.pack, 1)))
    return forms


def _lanes(stage: Accesses, spec: DeviceSpec) -> int:
    """Elements of a vector of results: one where a vector of them would gather from as many rows,
    and their number depends on sizes. That is not worth kernels for larger numbers alone."""
    gathers = not is_fixed(stage.channels) and stage.along_steps
    return 1 if gathers else spec.vector_lanes(stage.channels)


def _register_tiles(
    stage: Accesses, lanes: int, spec: DeviceSpec, *, can_mask: bool
) -> Iterator[RegisterTile]:
    odd = is_fixed(stage.channels) and stage.channels % lanes
    widths = [lanes, lanes // 2] if odd and lanes > 4 else [lanes]
    steps = prod(evaluate_int(loop.extent) for loop in stage.steps)
    window = is_fixed(steps) and steps <= WINDOW_LIMIT
    several = sum(example(evaluate_int(loop.extent)) > 1 for loop in stage.results) > 1
    for width in widths:
        packed = find_instruction(stage, spec, "vector lane", width)
        # A window's few steps cost less than a copy of the data; a deep sum may go either way. A
        # mask would stand between a pack and its elements.
        masks = [True] if window else [False, True]
        for unrolled, slow, masked in product(
            [False, True] if window else [False],
            [False, True] if several else [False],
            masks if can_mask and not packed else [False],
        ):
            yield RegisterTile(width, unrolled, slow, masked, packed)


def _masks(program: Program, block: Block) -> list[Block]:
    """Padding that the block may read through a mask: one that does not tell its lanes apart."""
    return [stage for stage in padding_of(program, block) if not masks_lanes(stage, block)]


def schedule_cpu(s: Schedule, structure: Structure, spec: DeviceSpec) -> None:
    """Schedules every stage; only the anchor's tile sizes are sampled."""
    anchor = heaviest_reduction(s.program)
    if anchor is not None and isinstance(structure, RegisterTile | SlidingWindow):
        for stage in _masks(s.program, anchor) if structure.masked else ():
            s.compute_inline(stage.name)
    laid: list[str] = []
    if anchor is not None and isinstance(structure, RegisterTile | MatrixTile) and structure.forms:
        laid = restate(s, anchor.name, structure.forms)
    inline_elementwise(s, across=anchor is not None, kept=laid)
    if isinstance(structure, Fused):
        program = find_row_program(s.program)
        assert program is not None, "the rule was asked whether it fits"
        schedule_row_program(s, program, wanted_groups(spec), spec)
    elif anchor is not None:
        _reduction(s, anchor.name, structure, spec, sampled=True)
    schedule_rest(s, spec)


def schedule_rest(s: Schedule, spec: DeviceSpec) -> None:
    """Every stage that nothing was done to yet gets the schedule of the rules, untuned."""

    def reduce(name: str) -> None:
        stage = accesses(s, name)
        plain = RegisterTile(_lanes(stage, spec))
        _reduction(s, name, find_row_reduction(stage, spec) or plain, spec, sampled=False)

    fusion.schedule_rest(s, reduce, lambda name: schedule_elementwise(s, name, spec))


def _reduction(
    s: Schedule, name: str, structure: Structure, spec: DeviceSpec, *, sampled: bool
) -> None:
    """One reduction with its epilogue."""
    match structure:
        case RowReduction():
            schedule_row_reduction(s, name, structure, wanted_groups(spec), sampled=sampled)
        case Neighbours():
            schedule_neighbours(s, name, structure)
        case SlidingWindow():
            schedule_window(s, name, structure, spec, sampled=sampled)
        case RegisterTile():
            schedule_register_tile(s, name, structure, spec, sampled=sampled)
        case MatrixTile():
            schedule_matrix(s, name, structure, sampled=sampled)
        case Dots():
            schedule_dots(s, name, structure)
        case PartialSums():
            schedule_partial_sums(s, name, structure, spec)
        case Fused():
            raise ScheduleError(f"{name}: it is fused with others")
