"""A persistent kernel that runs a whole list of kernels on a GPU: its groups take tiles in turns.

Why: a launch costs NVIDIA's driver 5 to 10 us of the host, and a network of small kernels is
hundreds of them. `persistent` is the same idea for groups of one item. Here all groups have the
size of the largest one of the kernels; groups of smaller ones lie side by side in one where there
are more of them than groups to run them, and otherwise items are left over (`tile_functions`).

The tiles of all steps, in their order, have tickets: numbers that a group takes from one counter,
the next one while it still computes. Before the first tile of a step a group waits until all tiles
of the steps before it that matter are done, by a counter for each; what it did itself it adds when
its next ticket is of another step. It takes no ticket while it waits: it would have two tiles of a
step of which others have one.

It cannot hang: who waits has the ticket of a later tile than those that it waits for, those were
taken by groups that run, and the earliest of all that are not done waits for none. (A ticket taken
early is a later one than that which its group computes.) So groups may start in any number and
order; what is asked of the device is that groups which run make progress, and that a fence makes
visible to all of it what was written before. Both are tried (`opencl.staying`), not looked up.

Where all kernels wait for memory rather than for arithmetic, a unit has one group, as large as it
takes to run the tiles of a step at once, if that saves rounds. Two would have half of the registers
each, and so half of the reads under way (H200, six layers of a decoder in float16: 0.93 of the time
of two).

Nothing that is written in the launch may be read as if it were constant: inside of functions,
compilers do not know whether it is (seen in NVIDIA's PTX: no `ld.global.nc` in them).

What it costs: one kernel has the registers of the hungriest, so fewer groups than launches of
their own would have share a unit. From step to step: 1.1 to 1.6 us (H200); whole networks: between
0.5 (many small kernels) and 1.2 (few large ones) of the time of launches (H100).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from retune.codegen.network.extents import Counts, SizesAt, extent_text
from retune.codegen.network.persistent import (
    Callee,
    CalleeLaunch,
    base_names,
    table,
    table_ints,
    waits_lines,
)
from retune.codegen.opencl.kernels import cooperative_kernel, group_function, tile_name
from retune.core.dims import most
from retune.core.target import WARP

NAME = "persistent"
"""Entry point of the kernel."""
LINE_INTS = 32
"""Integers of a GPU's cache line; a counter has one of its own."""
MOST_BYTES = 50_000
"""Of the table of steps, which has a few waits beside it: devices have 64 KB of constants."""

GROUPS_A_UNIT = 2
"""At most, on each of the device's units."""
MOST_ITEMS = 1 << 9
"""Of a group that is made larger than its kernels need: each has 128 registers."""

_ALIGN = 64
"""Bytes of a vector at most: local memory starts at multiples of this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How groups count and wait: the text of `resident_counter` and of what is done with it."""

    text: str
    options: tuple[str, ...] = ()
    """Build options that it needs."""
    stated: bool = False
    """Whether the device has to state atomics that order memory for all of it: NVIDIA's compiler
    takes them, and does not promise that."""


_ATOMICS = """
typedef atomic_int resident_counter;

static int resident_add(__global resident_counter* counter) {
  return atomic_fetch_add_explicit(counter, 1, memory_order_relaxed, memory_scope_device);
}

static void resident_done(__global resident_counter* counter, const int done) {
  atomic_fetch_add_explicit(counter, done, memory_order_release, memory_scope_device);
}

static int resident_leave(__global resident_counter* counter) {
  return atomic_fetch_add_explicit(counter, 1, memory_order_acq_rel, memory_scope_device);
}

static void resident_wait(__global resident_counter* counter, const int value) {
  while (atomic_load_explicit(counter, memory_order_acquire, memory_scope_device) != value) {
  }
}

static void resident_clear(__global resident_counter* counter) {
  atomic_store_explicit(counter, 0, memory_order_relaxed, memory_scope_device);
}
"""
"""By the atomics of OpenCL 3.0."""

_FENCES = """
typedef volatile int resident_counter;

static int resident_add(__global resident_counter* counter) {
  return atomic_inc(counter);
}

static void resident_done(__global resident_counter* counter, const int done) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  atomic_add(counter, done);
}

static int resident_leave(__global resident_counter* counter) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  const int before = atomic_inc(counter);
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  return before;
}

static void resident_wait(__global resident_counter* counter, const int value) {
  int found;
  do {
    asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(found) : "l"(counter) : "memory");
  } while (found != value);
}

static void resident_clear(__global resident_counter* counter) {
  *counter = 0;
}
"""
"""By those of OpenCL 1.2, which order nothing, and PTX's fences and loads, which do.

A fence before a count releases what was written, a load of the count acquires it; another fence in
either took a quarter of a microsecond more from step to step (H100).
Source: PTX ISA, 8, Memory Consistency Model: release and acquire patterns."""

WAYS: Mapping[str, Way] = {
    "launch.groups_stay.atomics": Way(text=_ATOMICS, options=("-cl-std=CL3.0",), stated=True),
    "launch.groups_stay.ptx": Way(
        text=_FENCES, options=("-DTILE_FUNCTION=__attribute__((noinline))",)
    ),
}
"""By the names under which a device offers them, the best first."""


def _room(tiles: Callee) -> int:
    """Items from one group to the next beside it: items of one warp go one way."""
    return 1 if tiles.arena is None else -(-tiles.items // WARP) * WARP


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The groups of a persistent kernel."""

    groups: int
    items: int
    arena: int
    """Bytes of local memory of each."""

    def beside(self, tiles: Callee) -> int:
        """Groups of a kernel that one of these runs side by side: only as many as it takes, for the
        largest sizes."""
        needed = -(-most(prod(tiles.groups)) // self.groups)
        return max(1, min(needed, self.items // _room(tiles), self.arena // (tiles.arena or 1)))

    def tickets(self, tiles: Callee) -> int:
        """Of a step that runs such a kernel."""
        return -(-prod(tiles.groups) // self.beside(tiles))

    def rounds(self, tiles: Sequence[Callee]) -> int:
        """How many tickets a group takes at most in a step of each of the kernels, all together."""
        return sum(-(-most(self.tickets(one)) // self.groups) for one in tiles)


def shape_of(tiles: Sequence[Callee], groups: int, most_items: int = 0, local: int = 0) -> Shape:
    """So many groups, each large enough for any of the kernels.

    If all of them stream, it has room for all tiles that there are for a group, up to so many items
    and bytes of local memory, where that saves rounds.
    """
    small = Shape(
        groups=groups,
        items=max(WARP, *map(_room, tiles)),
        arena=max(_ALIGN, *(one.arena or 0 for one in tiles)),
    )
    if not all(one.streams for one in tiles):
        return small
    shares = [(one, -(-most(prod(one.groups)) // groups)) for one in tiles]
    wanted = min(max(n * _room(one) for one, n in shares), most_items, MOST_ITEMS)
    items = max(small.items, wanted // WARP * WARP)
    fits = max(min(n, items // _room(one)) * (one.arena or 0) for one, n in shares)
    large = replace(small, items=items, arena=max(small.arena, min(fits, local)))
    return large if large.rounds(tiles) < small.rounds(tiles) else small


def best_shape(tiles: Sequence[Callee], units: int, most_items: int, local: int) -> Shape:
    """Of what streams one group a unit, of others two, one of which computes while the other waits:
    if there is room for the items of both, so that all groups run at once."""
    if all(one.streams for one in tiles):
        return shape_of(tiles, units, most_items, local)
    found = shape_of(tiles, GROUPS_A_UNIT * units)
    return found if GROUPS_A_UNIT * found.items <= most_items else shape_of(tiles, units)


def state_bytes(steps: int) -> int:
    """Size of the counters, zeros before the first launch; a launch leaves zeros behind."""
    return 4 * LINE_INTS * (2 + steps)


def resident_text(
    tiles: Sequence[Callee],
    steps: Sequence[CalleeLaunch],
    bases: int,
    shape: Shape,
    way: Way,
    sizes: SizesAt | None = None,
    local_bytes: int = 0,
) -> str:
    """OpenCL C of the kernel; the texts of the kernels that it runs go before it.

    Arguments: `bases` pointers, the counters, the first step to run, and the step to stop before.
    Groups that depend on sizes are counted by what lies where `sizes` says at the start, once if
    the device has as much as `local_bytes` for a group.
    """
    tickets = {one.kernel: shape.tickets(one) for one in tiles}
    counts = Counts(tickets, sizes, local_bytes - shape.arena)
    pointers = base_names(bases)
    given = [
        *(f"__global uchar* {name}" for name in pointers),
        *("__global resident_counter* state", "const int first", "const int last"),
    ]
    cases = "\n".join(_cases(tiles, shape))
    body = [
        f"__local uchar arena[{shape.arena}] __attribute__((aligned({_ALIGN})));",
        f"__global uchar* const bases[{bases}] = {{{', '.join(pointers)}}};",
        *counts.pointer(),
        *counts.variables([extent for one in tiles for extent in one.groups]),
        "const int me = get_local_id(0);",
        *counts.hold("me", shape.items),
        *_BODY.format(
            line=LINE_INTS,
            cases=cases,
            none=len(steps),
            items=shape.items,
            tickets=counts.held("steps[at][1]"),
            before=counts.held("steps[before][1]"),
        ).splitlines(),
    ]
    kernel = cooperative_kernel(NAME, (shape.items, 1, 1), given, body)
    tables = [*waits_lines(steps), *table(tiles, steps, counts), *counts.function()]
    return "\n".join([*tables, way.text, *kernel, ""])


def table_bytes(tiles: Sequence[Callee], steps: int) -> int:
    """Size of the table of so many steps, which must not be more than MOST_BYTES."""
    return 4 * (steps + 1) * table_ints(tiles)


_BODY = """\
__local int* taken = (__local int*)arena;
// Of the first item alone: its next ticket, the step of that or one before, its first ticket, its
// tickets, and what is done.
int ahead = 0, at = first - 1, start = 0, tickets = 0, number = {none}, done = 0;
if (me == 0) {{
  ahead = resident_add(state);
}}
do {{
  if (me == 0) {{
    const int ticket = ahead;
    while (at < last && start + tickets <= ticket) {{
      start += tickets;
      ++at;
      tickets = {tickets};
    }}
    const int next = at < last ? at : {none};
    if (next != number && done > 0) {{
      resident_done(state + {line} * (2 + number), done);
      done = 0;
    }}
    ++done;
    taken[0] = next;
    taken[1] = ticket - start;
  }}
  barrier(CLK_LOCAL_MEM_FENCE);
  const int from = taken[0] == number ? {none} : taken[0];
  number = taken[0];
  const int tile = taken[1];
  __constant const int* step = steps[number];
  for (int i = steps[from][2] + me; from < {none} && i < steps[from + 1][2]; i += {items}) {{
    const int before = waits[i];
    if (before >= first) {{
      resident_wait(state + {line} * (2 + before), {before});
    }}
  }}
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
  if (me == 0 && number < {none}) {{
    ahead = resident_add(state);
  }}
  switch (step[0]) {{
{cases}
  }}
  barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}} while (number < {none});
// The last one to leave clears the counters for the next launch.
if (me == 0) {{
  taken[0] = resident_leave(state + {line}) == (int)get_num_groups(0) - 1;
}}
barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
if (taken[0]) {{
  for (int i = me; i < {none} + 2; i += {items}) {{
    resident_clear(state + {line} * i);
  }}
}}"""


def _cases(tiles: Sequence[Callee], shape: Shape) -> list[str]:
    """The cases of a switch over the kernel's number, which run tile `tile` of a step."""
    lines: list[str] = []
    for number, one in enumerate(tiles):
        beside, room, groups = shape.beside(one), _room(one), extent_text(prod(one.groups))
        lines += [
            f"case {number}: {{  // {beside} of {groups} groups of {one.items}",
            f"  const int slot = me / {room};",
            f"  const int t = tile * {beside} + slot;",
            f"  const int idle = (slot >= {beside}) | (t >= {groups})"
            f" | (me % {room} >= {one.items});",
            f"  const int item = (me % {room}) | -idle;",
            f"  const int3 group = {one.group};",
            *(f"  {line}" for line in _call(one, beside)),
            "  break;",
            "}",
        ]
    return [f"  {line}" for line in lines]


def _call(one: Callee, beside: int) -> list[str]:
    """The call of the function of a group."""
    passed = [f"    {a}" for a in one.arguments()]
    if one.arena is None:
        called = f"{group_function(one.kernel)}("
        return ["if (item >= 0) {", f"  {called}", *passed, "    group);", "}"]
    memory = f"arena + {one.arena} * min(slot, {beside - 1})" if beside > 1 else "arena"
    return [f"{tile_name(one.kernel)}(", *passed, f"    group, item, {memory});"]
