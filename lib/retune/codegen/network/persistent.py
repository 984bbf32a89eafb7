"""One kernel that runs a whole list of kernels: persistent workers that go from step to step.

Why: a CPU driver puts its threads to sleep after each launch and wakes them for the next one. On
PoCL that is about 20 us a launch, a third of the time of a network of small kernels, and it deals
the work-groups out in advance, unevenly. Here as many work-groups as the device has threads stay
for the whole run. Each one takes groups of the present step, first from its own share, then from
the shares of others, until none is left; then it waits for the steps that the next one depends on.
A group that changes hands costs its lines' way from one core's cache to the other's: a single small
step that runs again and again is up to 1.5 times faster if the last group of a share is its owner's
alone. Whole networks are not (five of them, twice in turns: 1.01 times as long, 0.96 to 1.06).

It cannot hang, whatever the device does: a worker waits only for groups that were taken, and who
took them is running. Nobody waits for another worker to arrive, so the workers may start in any
number and order, even one after the other, which is all that OpenCL promises. What is asked of the
device is that threads which run make progress: CPUs do, GPUs need not.

Source of the idea: Gupta, Stuart, Owens, "A Study of Persistent Threads Style GPU Programming for
GPGPU Workloads", InPar 2012. The atomics are those of OpenCL 3.0 (acquire, release, device scope).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from textwrap import indent, wrap

from retune.codegen.network.extents import Counts, SizesAt, extent_text
from retune.codegen.opencl.kernels import cooperative_kernel, group_function
from retune.core.dims import is_fixed, most

NAME = "persistent"
"""Entry point of the kernel."""
BUILD_OPTION = "-cl-std=CL3.0"
ALIGN_BYTES = 64
"""Offsets of arguments are multiples of this; a counter has as many bytes of its own."""
_MOST_COUNTED = 2**31 - 1
"""Groups of one step in all rounds of a launch: what its counters can hold."""

LINE_INTS = 16
"""Integers of a cache line."""
ARGUMENTS_AT = 3
"""Where a row of `steps` has its arguments."""


@dataclass(frozen=True, kw_only=True)
class Callee:
    """A kernel by the function of one of its groups."""

    kernel: str
    parameters: int
    """How many pointers it takes."""
    groups: tuple[int, int, int]
    """Along each axis; they may depend on sizes."""
    items: int = 1
    """Of a group."""
    arena: int | None = None
    """Bytes of local memory that `tile_name` is given, a function of each item of a group; None
    where groups are single items, each by itself, and the function is `group_function`. A group
    that waits or has local memory is a tile, also of one item."""
    streams: bool = False
    """Whether it waits for memory rather than for arithmetic."""

    @cached_property
    def count(self) -> int:
        """How many groups it has."""
        return prod(self.groups)

    @property
    def group(self) -> str:
        """The number of group `t` along each axis, in OpenCL C."""
        x, y = (_factor(self.groups[axis]) for axis in range(2))
        return f"(int3)(t % {x}, t / {x} % {y}, t / {_factor(self.groups[0] * self.groups[1])})"

    @property
    def is_fixed(self) -> bool:
        """Whether its groups are the same for all sizes."""
        return all(map(is_fixed, self.groups))

    def arguments(self) -> list[str]:
        """Its pointers, by the positions of a row of `steps`."""
        return [
            f"(__global void*)(bases[step[{at}]] + {ALIGN_BYTES}L * step[{at + 1}]),"
            for at in range(ARGUMENTS_AT, ARGUMENTS_AT + 2 * self.parameters, 2)
        ]


def _factor(extent: int) -> str:
    return str(extent) if is_fixed(extent) else f"({extent_text(extent)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalleeLaunch:
    """One launch of a callee."""

    kernel: str
    args: tuple[tuple[int, int], ...]
    """Number of a base pointer and byte offset from it, for each parameter."""
    waits: tuple[int, ...]
    """Earlier steps that must be complete before this one starts."""
    label: str

    def row(self, number: int, head: Sequence[int]) -> str:
        """The row of `steps` for it: those numbers, then base and offset of each argument."""
        arguments = [n for base, offset in self.args for n in (base, offset // ALIGN_BYTES)]
        return (
            f"  {{{', '.join(map(str, (*head, *arguments)))}}},  // {number}: {comment(self.label)}"
        )


def workers(compute_units: int) -> int:
    """Work-groups to launch so that each of the device's threads gets one.

    PoCL gives a thread that asks 1 + remaining / threads of them at a time; those that come too
    late find nothing to do.
    """
    return 2 * compute_units


def most_rounds(groups: int) -> int:
    """How many times over one launch can run steps of at most that many groups."""
    return max(1, _MOST_COUNTED // max(1, most(groups)))


def state_bytes(steps: int, threads: int) -> int:
    """Size of the counters, zeros before the first launch; a launch leaves zeros behind."""
    return 4 * LINE_INTS * (2 + steps * (threads + 1))


def persistent_text(
    callees: Sequence[Callee],
    steps: Sequence[CalleeLaunch],
    bases: int,
    threads: int | str,
    *,
    moving: bool = False,
    sizes: SizesAt | None = None,
) -> str:
    """OpenCL C of the kernel; the callees' own texts go before it.

    `threads` is the device's number of them, or the name of a macro that will be. Groups that
    depend on sizes are counted by what lies where `sizes` says, when their step begins.

    Arguments: `bases` pointers, the counters, then the first step to run, the step to stop before,
    and how many times over, at most `most_rounds` of their groups. If `moving`, two
    more: in each round the first base lies so many times ALIGN_BYTES after where it lay in the
    round before, and is back at its start after so many rounds. A launch goes on where the last one
    of the kernel ended.
    """
    pointers, kept = base_names(bases), "" if moving else "const "
    counts = counts_of(callees, sizes)
    given = [
        *(f"__global char* {name}" for name in pointers),
        "__global atomic_int* state",
        *("const int first", "const int last", "const int rounds"),
        *(("const int stride", "const int windows") if moving else ()),
    ]
    body = [
        f"__global char* {kept}bases[{bases}] = {{{', '.join(pointers)}}};",
        *(["const int window = retune_read(state + 1);"] if moving else []),
        *_body(callees, counts, moving=moving),
    ]
    kernel = cooperative_kernel(NAME, (1, 1, 1), given, body)
    tables = [*waits_lines(steps), *table(callees, steps, counts), *counts.function()]
    return "\n".join([*tables, *support_lines(threads), *kernel, ""])


def base_names(bases: int) -> list[str]:
    """The arguments in which steps have theirs."""
    return [f"base_{i}" for i in range(bases)]


def counts_of(callees: Sequence[Callee], sizes: SizesAt | None = None) -> Counts:
    """Groups of each kernel."""
    return Counts({callee.kernel: callee.count for callee in callees}, sizes)


def waits_lines(steps: Sequence[CalleeLaunch]) -> list[str]:
    """The constant `waits`: what all steps wait for, one after the other."""
    waits = [before for step in steps for before in step.waits]
    return [
        "// The steps that steps wait for.",
        f"__constant int waits[{max(1, len(waits))}] = {{",
        *wrap(", ".join(map(str, waits or [-1])), 97, initial_indent="  ", subsequent_indent="  "),
        "};",
    ]


def table_ints(callees: Sequence[Callee]) -> int:
    """Integers of a row of `steps`."""
    return ARGUMENTS_AT + 2 * max(callee.parameters for callee in callees)


def table(callees: Sequence[Callee], steps: Sequence[CalleeLaunch], counts: Counts) -> list[str]:
    """The constant `steps`: a row for each step, and one that ends the numbers of `waits`."""
    numbers = {callee.kernel: i for i, callee in enumerate(callees)}
    rows: list[str] = []
    waited = 0
    for number, step in enumerate(steps):
        rows.append(step.row(number, (numbers[step.kernel], counts.stated(step.kernel), waited)))
        waited += len(step.waits)
    return [
        "// Of each step: its kernel, its groups or tickets, the first of its waits, and base",
        f"// pointer and offset / {ALIGN_BYTES} of each argument.",
        f"__constant int steps[{len(steps) + 1}][{table_ints(callees)}] = {{",
        *rows,
        f"  {{-1, 0, {waited}}}",
        "};",
        "",
    ]


def comment(label: str) -> str:
    """The label as a comment of one line may hold it."""
    return "".join(c if c.isprintable() and c != "\\" else "?" for c in label)


def support_lines(threads: int | str) -> list[str]:
    """How workers take groups and wait: COUNTERS, retune_read, _add, _wait and _take."""
    counters = threads + 1 if isinstance(threads, int) else f"({threads} + 1)"
    return f"""\
// Counters have a cache line each: of a step, the groups done, then those taken of each share, in
// this round and in all before it. Who is late in one finds that nothing of it is left.
#define COUNTERS(step) (state + {LINE_INTS} * (2 + (step) * {counters}))

static int retune_read(__global atomic_int* counter) {{
  return atomic_load_explicit(counter, memory_order_relaxed, memory_scope_device);
}}

static int retune_add(__global atomic_int* counter, const int more) {{
  return atomic_fetch_add_explicit(counter, more, memory_order_acq_rel, memory_scope_device);
}}

static void retune_wait(__global atomic_int* counter, const int value) {{
  while (atomic_load_explicit(counter, memory_order_acquire, memory_scope_device) < value) {{
  }}
}}

static bool retune_advance(__global atomic_int* counter, int* value) {{
  return atomic_compare_exchange_strong_explicit(
      counter, value, *value + 1, memory_order_acq_rel, memory_order_relaxed,
      memory_scope_device);
}}

// A group that nobody has taken in this round, from this worker's share if it has one left;
// otherwise -1.
static int retune_take(__global atomic_int* counters, const int me, const int groups,
                       const int round) {{
  for (int i = 0; i < {threads}; ++i) {{
    const int owner = (me + i) % {threads};
    const int start = (int)((long)groups * owner / {threads});
    const int size = (int)((long)groups * (owner + 1) / {threads}) - start;
    __global atomic_int* counter = counters + {LINE_INTS} * (1 + owner);
    int taken = retune_read(counter);
    while (taken < (round + 1) * size) {{
      if (retune_advance(counter, &taken)) {{
        return start + taken - round * size;
      }}
    }}
  }}
  return -1;
}}
""".splitlines()


def _body(callees: Sequence[Callee], counts: Counts, *, moving: bool) -> list[str]:
    opened = "".join(f"{line}\n" for line in counts.pointer())
    extents = [extent for callee in callees for extent in callee.groups]
    read = counts.variables(extents)
    read += [] if counts.is_fixed else [f"const int groups = {counts.of('step[1]')};"]
    counted = "step[1]" if counts.is_fixed else "groups"
    at_step = "".join(f"    {line}\n" for line in read)
    now = "(window + round) % windows"
    move = f"  bases[0] = base_0 + {ALIGN_BYTES}L * stride * ({now});\n"
    keep = (
        "  atomic_store_explicit(state + 1, (window + rounds) % windows, memory_order_relaxed,\n"
        "                        memory_scope_device);\n"
    )
    return f"""\
{opened}const int me = retune_add(state, 1);
for (int round = 0; round < rounds; ++round) {{
  for (int before = first; round && before < last; ++before) {{
    retune_wait(COUNTERS(before), round * {counts.of("steps[before][1]")});
  }}
{move if moving else ""}  for (int number = first; number < last; ++number) {{
    __constant const int* step = steps[number];
    __global atomic_int* counters = COUNTERS(number);
    for (int i = step[2]; i < steps[number + 1][2]; ++i) {{
      const int before = waits[i];
      if (before >= first) {{
        retune_wait(COUNTERS(before), (round + 1) * {counts.of("steps[before][1]")});
      }}
    }}
{at_step}    int done = 0;
    int t;
    while ((t = retune_take(counters, me, {counted}, round)) >= 0) {{
      ++done;
      switch (step[0]) {{
{indent(case_lines(callees), "  ")}
      }}
    }}
    if (done) {{
      retune_add(counters, done);
    }}
  }}
}}
// The last one to leave clears the counters for the next launch.
if (retune_add(state + {LINE_INTS}, 1) == (int)get_num_groups(0) - 1) {{
  for (__global atomic_int* c = COUNTERS(first); c < COUNTERS(last); c += {LINE_INTS}) {{
    atomic_store_explicit(c, 0, memory_order_relaxed, memory_scope_device);
  }}
  atomic_store_explicit(state, 0, memory_order_relaxed, memory_scope_device);
  atomic_store_explicit(state + {LINE_INTS}, 0, memory_order_relaxed, memory_scope_device);
{keep if moving else ""}}}""".splitlines()


def case_lines(callees: Sequence[Callee]) -> str:
    """The cases of a switch over `step[0]` that run group `t` of a step."""
    lines: list[str] = []
    for number, callee in enumerate(callees):
        lines.append(f"    case {number}:")
        lines.append(f"      {group_function(callee.kernel)}(")
        lines.extend(f"          {a}" for a in callee.arguments())
        lines.append(f"          {callee.group});")
        lines.append("      break;")
    return "\n".join(lines)
