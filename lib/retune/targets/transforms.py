"""The sketches and transforms of a Winograd convolution, for any placing of its products.

`rewritten` makes a schedule's convolution a Winograd one; `transform_inputs` and
`transform_outputs` run a tile's transforms on registers, with channels as lanes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from retune.core.errors import ScheduleError
from retune.ir.stmt import Program, blocks
from retune.schedule.schedule import Schedule
from retune.schedule.space import Family, Rule
from retune.schedule.winograd import ERRORS, STORED, WinogradConvolution, find_convolution
from retune.targets.fusion import (
    epilogue_of,
    heaviest_reduction,
    inline_elementwise,
    legal_sketches,
    padding_of,
)
from retune.targets.tiling import made_loops, unroll_all, write_out


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The convolution as it was, and the names of the stages that replace it."""

    shape: WinogradConvolution
    m: int
    data: str
    inputs: tuple[str, ...]
    """Transforms of the inputs, one for each axis of the window; products read the last one."""
    product: str
    outputs: tuple[str, ...]
    """Transforms of the products."""
    out: str
    """The last stage: the epilogue, if there is one."""

    @property
    def channels_last(self) -> bool:
        """Whether the output's channels lie side by side."""
        return self.shape.block.indices[-1] == self.shape.made


_LEAST_CHANNELS = 16
"""Fewer channels in or out leave too little work between the transforms."""


def winograd_families(
    program: Program,
    named: Callable[[WinogradConvolution, int, bool], Iterable[tuple[str, Rule]]],
    max_error: float,
) -> tuple[Family, ...]:
    """Sketches for each tile size, if the program's only reduction is a convolution that fits.

    Sizes whose error is larger than `max_error`, a part of the output's range, have none. `named`
    gives the schedule functions of a tile size, with the names of their sketches: of factors in
    the data's type or in the one that is computed with.
    """
    reductions = [block for block in blocks(program.body) if block.reducer is not None]
    if len(reductions) != 1:
        return ()
    try:
        found = find_convolution(program, reductions[0].name)
    except ScheduleError:
        return ()
    if min(found.extents[found.depth], found.extents[found.made]) < _LEAST_CHANNELS:
        return ()

    def family(m: int, stored: bool) -> Family:
        return Family(
            lambda: legal_sketches(program, named(found, m, stored)),
            error=found.error(m, stored=stored),
            roundings=found.roundings(m, stored=stored),
        )

    every = (family(m, stored) for m, stored in _tiles(found))
    return tuple(one for one in every if one.error <= max_error)


def _tiles(found: WinogradConvolution) -> Iterable[tuple[int, bool]]:
    """Sizes of tiles, each with whether factors are stored in the data's type."""
    yield from ((m, False) for m in ERRORS[found.taps])
    if found.stored_alike:
        yield from ((m, True) for m in STORED.get(found.taps, ()))


def rewritten(s: Schedule, m: int, *, stored: bool = False) -> Rewritten:
    """The heaviest reduction is a Winograd convolution after the call, by tiles of size m.

    Its weights are transformed at compile time, padding is a part of reading its tiles, and the
    epilogue of reading its outputs.
    """
    anchor = heaviest_reduction(s.program)
    assert anchor is not None, "winograd_families found it"
    name = anchor.name
    inline_elementwise(s)
    shape = find_convolution(s.program, name)
    axes = len(shape.windows)
    data, *stages = s.restate(name, "winograd", [m, 1] if stored else [m])
    for stage in stages[axes : 2 * axes]:
        s.precompute(stage)
    for padding in padding_of(s.program, s.block(data)):
        s.compute_inline(padding.name)  # zeros around the input are a part of reading its tiles
    out = epilogue_of(s, name)
    if out is not None:
        s.compute_inline(name)
    return Rewritten(
        shape=shape,
        m=m,
        data=data,
        inputs=tuple(stages[:axes]),
        product=stages[2 * axes],
        outputs=tuple(stages[2 * axes + 1 :]),
        out=out or name,
    )


def split_inputs(s: Schedule, conv: Rewritten, width: int) -> list[str]:
    """The loops of the last inputs' transform in order: tiles, vectors, then points and lanes.

    Gives the names of those over tiles and vectors.
    """
    own = made_loops(s, conv.inputs[-1])
    axes = len(conv.inputs)
    points, tiles, channels = own[:axes], own[axes:-1], own[-1]
    vector, lanes = s.split(channels, [width], "shift")
    s.reorder(*tiles, vector, *points, lanes)
    unroll_all(s, points)
    s.vectorize(lanes)
    return [*tiles, vector]


def transform_inputs(s: Schedule, conv: Rewritten, vector: str) -> None:
    """In each step of the loop `vector` the transform runs on registers, one column at a time."""
    loop = vector
    for stage in reversed(conv.inputs[:-1]):
        s.compute_at(stage, vector)
        row, column = made_loops(s, stage)[:2]
        s.reorder(column, row)
        loop = column
    s.compute_at(conv.data, loop)
    for stage in (*conv.inputs[:-1], conv.data):
        write_out(s, stage)


def transform_outputs(s: Schedule, conv: Rewritten, vector: str) -> None:
    """In each step of the loop `vector` a tile's products become outputs on registers."""
    scope = "register" if conv.channels_last else "private"
    for stage in reversed(conv.outputs):
        s.compute_at(stage, vector, scope if stage == conv.outputs[-1] else "register")
    for stage in conv.outputs:
        write_out(s, stage)


def split_pixels(s: Schedule, conv: Rewritten) -> tuple[list[str], list[str], str]:
    """The output's positions as loops over tiles, loops over the pixels of a tile, and its
    channels.

    A guard keeps to odd sizes.
    """
    shape = conv.shape
    loops = dict(zip(shape.block.indices, s.loops(conv.out), strict=True))
    tiles: list[str] = []
    pixels: list[str] = []
    for dim, size in shape.tile(conv.m).items():
        loop = loops[shape.axis(dim)]
        if size > 1:
            loop, pixel = s.split(loop, [size], "guard")
            pixels.append(pixel)
        tiles.append(loop)
    return tiles, pixels, loops[shape.made]


def write_pixels(s: Schedule, conv: Rewritten, pixels: list[str], lanes: str) -> None:
    """The loops over a tile's pixels and lanes in the last stage are written out."""
    if conv.channels_last:
        unroll_all(s, pixels[:-1])
        s.vectorize(lanes)
    s.unroll(pixels[-1])
