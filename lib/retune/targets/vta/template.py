"""The template of packed convolutions: its knobs, and what fits the accelerator's memories.

Read `packed`, then `limits`. The knobs are those of TVM's conv2d_packed: tile_b, tile_h, tile_w,
tile_ci and tile_co are the sizes of a step's tiles; oc_nthread and h_nthread are virtual threads,
each with buffers of its own, which take turns, so that one's data are loaded while another
computes. `lower` makes instructions of the same decisions.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations, permutations
from itertools import product as pairs
from operator import mul
from typing import TypeVar

import numpy as np

from retune.core.dtypes import BOOL
from retune.ir.expr import Expr, Operand, as_expr, binary, ceildiv, const, equal, maximum, select
from retune.schedule.schedule import Schedule
from retune.targets.vta.config import ITER_BITS, VtaConfig
from retune.targets.vta.expression import SUMS
from retune.targets.vta.folding import LATENCY
from retune.targets.vta.intrinsics import gemm_name
from retune.targets.vta.workload import OUTPUT, Convolution

KNOBS = ("tile_b", "tile_h", "tile_w", "tile_ci", "tile_co", "oc_nthread", "h_nthread")

ORDER = "order"
"""The decision about the outermost loops: a number of `ORDERS`, 0 where there is no such one."""

ORDERS = tuple(permutations(("bo", "i", "co", "j")))
"""Orders in which tiles of the output are made, the first one as TVM's template makes them."""

MOST_STEPS = 512
"""Products of tiles in a layer at most. More are smaller ones than pay for their instructions."""

_LONGEST = (1 << ITER_BITS) - 1
"""More iterations than an instruction has are tiles of their own."""

Extent = TypeVar("Extent", int, Expr, np.ndarray)
"""Of a tile: decided, not yet, or of many tiles."""

Decisions = Mapping[str, Sequence[int]]
"""Values of the knobs by name, one each."""


def packed(s: Schedule, work: Convolution, config: VtaConfig, order: int = 0) -> None:
    """Tiles of the output outermost, threads of them inside, then tiles of channels and a step.

    `order` is the number of the outermost loops' order. Another one than that of TVM's template is
    a decision, too, of candidates for which it makes a difference.
    """
    *outer, bi, ci = s.loops(OUTPUT)
    names = ("tile_b", "tile_co", "tile_h", "tile_w")
    tiles = {n: _divisor(s, loop, n) for n, loop in zip(names, outer, strict=True)}
    (depth,) = (loop for loop in s.loops(SUMS) if loop.endswith("k_o"))
    tiles["tile_ci"] = _divisor(s, depth, "tile_ci")
    threads = {n: s.sample_categorical(n, (1, 2)) for n in ("oc_nthread", "h_nthread")}
    if order:
        s.sample_categorical(ORDER, (order,))
        swapped = _swapped(work, {**tiles, **threads}, order)
        s.require(swapped >= 1, "its order makes no difference")
    for condition, why in limits(work, config, {**tiles, **threads}):
        s.require(condition, why)
    (b, b_), (co, co_), (i, i_), (j, j_) = (
        s.split(loop, [tiles[name]]) for name, loop in zip(names, outer, strict=True)
    )
    co, oc_thread = s.split(co, [threads["oc_nthread"]])
    i, h_thread = s.split(i, [threads["h_nthread"]])
    positions = {"bo": b, "i": i, "co": co, "j": j}
    ordered = [positions[axis] for axis in ORDERS[order]]
    s.reorder(*ordered, h_thread, oc_thread, b_, co_, i_, j_, bi, ci)
    s.compute_at(SUMS, oc_thread)
    k_o, k_o_ = s.split(depth, [tiles["tile_ci"]])
    own = {loop.rsplit(".", 1)[-1]: loop for loop in s.loops(SUMS)}
    inner = [own[name] for name in ("d_i", "d_j", "bo", "co", "i", "j", "bi", "ci", "k_i")]
    s.reorder(k_o, k_o_, *(loop for loop in inner if loop in s.loops(SUMS)))
    s.tensorize(own["k_i"], gemm_name(config))


def _divisor(s: Schedule, loop: str, name: str) -> Expr:
    return s.sample_perfect_tile(loop, 2, max_innermost=_LONGEST, name=name)[0]


def _swapped(work: Convolution, knobs: Mapping[str, Expr], number: int) -> Expr:
    """0 if tiles are made in the same order as the template makes them: none that there are
    several of have changed positions."""
    rows, columns = work.out_size
    counts = {
        "bo": const(work.n) // knobs["tile_b"],
        "i": const(rows) // knobs["tile_h"] // knobs["h_nthread"],
        "co": const(work.o) // knobs["tile_co"] // knobs["oc_nthread"],
        "j": const(columns) // knobs["tile_w"],
    }
    position = {axis: at for at, axis in enumerate(ORDERS[number])}
    pairs = [(a, b) for a, b in combinations(ORDERS[0], 2) if position[a] > position[b]]
    total: Expr = const(0)
    for a, b in pairs:
        total = total + (counts[a] - 1) * (counts[b] - 1)
    return total


# -- what fits ---------------------------------------------------------------------------------


def limits(
    work: Convolution, config: VtaConfig, tiles: Mapping[str, Operand]
) -> list[tuple[Expr, str]]:
    """What a candidate has to meet, and why; expressions in the knobs, which are given by name."""
    knob = {name: as_expr(value) for name, value in tiles.items()}
    b, h, w, ci, co, oc, ht = (knob[name] for name in KNOBS)
    rows, columns = map(const, work.out_size)
    threads = oc * ht
    tile = b * co * h * w
    high, wide = input_size(work, h, w)
    vectors = len(work.channels()) * work.o
    steps = (
        (rows // h)
        * (columns // w)
        * (const(work.n) // b)
        * (const(work.o) // co)
        * (const(work.c) // ci)
    )
    found = [
        (threads * b * ci * high * wide <= config.inp_depth, "its inputs exceed their memory"),
        (threads * co * ci * work.taps <= config.wgt_depth, "its weights exceed their memory"),
        (
            threads * tile * (1 + len(work.images())) + vectors <= config.acc_depth,
            "its sums exceed their memory",
        ),
        (tile <= _LONGEST, "its sums exceed an instruction's loop"),
        (uops(work, knob) <= config.uop_depth, "its micro-ops exceed their memory"),
        (_least_written(work, knob) >= LATENCY, "a sum is added to before it is out of the pipe"),
        (equal(const(work.o) // co % oc, 0), "its threads share out the channels unevenly"),
        (equal(rows // h % ht, 0), "its threads share out the rows unevenly"),
        (steps <= MOST_STEPS, "its steps are more than pay"),
    ]
    if work.transposed:
        for name, size, stride in (("tile_h", rows, 0), ("tile_w", columns, 1)):
            whole = equal(knob[name] % work.strides[stride], 0)
            found.append(
                (binary("or", whole, equal(knob[name], size)), "its tiles end within a stride")
            )
    return found


def unmet(work: Convolution, config: VtaConfig, tiles: Mapping[str, int]) -> str:
    """Why tiles of these sizes, by knob and each 1 at least, do not fit; empty if they do."""
    found = limits(work, config, tiles)
    return next((why for condition, why in found if condition != const(True, BOOL)), "")


def input_size(work: Convolution, h: Extent, w: Extent) -> tuple[Extent, Extent]:
    """Rows and columns of the input that a tile of the output needs, as they lie on chip."""
    top, left, _, _ = work.padding
    (kh, kw), (sh, sw), (wh, ww) = work.kernel, work.strides, work.window
    if work.transposed:
        return (
            (h - 1 + top) // sh + ((kh - 1 - top) // sh + 1),
            (w - 1 + left) // sw + ((kw - 1 - left) // sw + 1),
        )
    # Rows between those that a window of one row reads are not loaded.
    return h if kh == 1 else (h - 1) * sh + wh, (w - 1) * sw + ww


def uops(work: Convolution, knob: Mapping[str, Expr]) -> Expr:
    """Micro-ops of all instructions: each thread's buffers lie elsewhere, so it has its own."""
    b, h, w, ci, co, oc, ht = (knob[name] for name in KNOBS)
    threads = oc * ht
    if work.transposed:
        gemm = _tap_uops(work, knob)
    else:
        gemm = least_uops((b, co, h, w), (ci, *map(const, work.kernel)))
    kinds = {(step.operand, step.to) for step in work.steps if step.operand is not None}
    by_channel = sum(work.operand(str(name)).reach == "channel" for name, _ in kinds)
    plain = 1 + len(work.images()) + len(kinds) - by_channel
    return threads * (gemm + plain) + const(work.o) // co * ht * b * by_channel


def least_uops(written: Sequence[Expr], summed: Sequence[Expr]) -> Expr:
    """Micro-ops of loops over sums and over what is added to each, two of which an instruction
    does by itself: those that leave fewest, and as many different sums as the pipe is long."""
    loops = [(extent, True) for extent in written] + [(extent, False) for extent in summed]
    all_, sums = product(e for e, _ in loops), product(written)
    folded: Expr = const(1)
    for (a, a_written), (b, b_written) in combinations(loops, 2):
        left = sums // ((a if a_written else const(1)) * (b if b_written else const(1)))
        folded = maximum(folded, select(left >= LATENCY, a * b, 1))
    return all_ // folded


def product(extents: Iterable[Expr]) -> Expr:
    """Of all of them."""
    return reduce(mul, extents)


def _least_written(work: Convolution, knob: Mapping[str, Expr]) -> Expr:
    """Sums that an instruction goes over at least before it adds to one again."""
    b, co, h, w = (knob[name] for name in ("tile_b", "tile_co", "tile_h", "tile_w"))
    if not work.transposed:
        return b * co * h * w
    high, wide = (maximum(1, e // s) for e, s in zip((h, w), work.strides, strict=True))
    return b * co * high * wide


def _tap_uops(work: Convolution, knob: Mapping[str, Expr]) -> Expr:
    """Micro-ops of all taps of a transposed window.

    Each writes rows and columns of a tile that are a stride apart, from one of its first ones on:
    where a tile ends within a stride, some taps write fewer, and fold otherwise.
    """
    b, h, w, ci, co = (knob[name] for name in KNOBS[:5])
    rows, columns = (
        Counter((tap - begin) % stride for tap in range(kernel))
        for kernel, stride, begin in zip(work.kernel, work.strides, work.padding[:2], strict=True)
    )
    total: Expr = const(0)
    for (y, high), (x, wide) in pairs(rows.items(), columns.items()):
        apart = ceildiv(h - y, work.strides[0]), ceildiv(w - x, work.strides[1])
        some = [maximum(1, extent) for extent in apart]
        each = select(binary("min", *apart) >= 1, least_uops((b, co, *some), (ci,)), 0)
        total = total + high * wide * each
    return total
