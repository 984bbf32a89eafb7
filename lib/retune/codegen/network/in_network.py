"""One kernel that runs a network with a list of finalists for each of its steps, and a clock.

What `persistent` is to a bundle, this is to an in-network comparison: the same workers take the
same groups in the same order, but which finalist serves a slot is read from a buffer at each
launch, and the worker that completes a row writes down when. A finalist so meets the caches, the
neighbours and the waiting that it will have in its network. Read `in_network_text`.
"""

from collections.abc import Sequence
from textwrap import indent

from retune.codegen.network.persistent import (
    LINE_INTS,
    Callee,
    CalleeLaunch,
    base_names,
    case_lines,
    counts_of,
    support_lines,
    table,
)
from retune.codegen.opencl.kernels import cooperative_kernel

NAME = "run_finalists"
"""Entry point of the kernel."""
CLOCK = "__builtin_readcyclecounter()"
"""The processor's cycle counter as an unsigned long: an extension of clang, which OpenCL drivers
for CPUs are made of. `device.opencl.clock` finds out whether it works."""


Waits = Sequence[int]
"""The slots of the network that must be complete before a slot starts."""


def in_network_text(
    callees: Sequence[Callee],
    rows: Sequence[CalleeLaunch],
    slots: Sequence[Waits],
    bases: int,
    threads: int,
) -> str:
    """OpenCL C of the kernel; the callees' own texts go before it.

    Arguments: `bases` pointers, the counters, the times, the choice. The choice holds for each
    slot its first row and the row after its last one; a row waits for the one before it. After a
    launch the times hold the clock at its start, then for each row that ran when it was complete.
    What the rows say of waiting does not count. The counters are as for `persistent`. Groups are
    the same for all sizes: a comparison is one of sizes that are chosen.
    """
    width = max((len(slot) for slot in slots), default=0)
    pointers = base_names(bases)
    given = [
        *(f"__global char* {name}" for name in pointers),
        *("__global atomic_int* state", "__global ulong* times", "__global const int* choice"),
    ]
    held = f"__global char* const bases[{bases}] = {{{', '.join(pointers)}}};"
    body = [held, *_body(callees, len(slots), width)]
    kernel = cooperative_kernel(NAME, (1, 1, 1), given, body)
    tables = [*table(callees, rows, counts_of(callees)), *_waits(slots, width)]
    return "\n".join([*tables, *support_lines(threads), *kernel, ""])


def _waits(slots: Sequence[Waits], width: int) -> list[str]:
    lines = [
        "// Of each slot: the slots to wait for (-1: no more).",
        f"__constant int waits[{len(slots)}][{max(1, width)}] = {{",
    ]
    for slot in slots:
        row = (*slot, *(-1,) * (max(1, width) - len(slot)))
        lines.append(f"  {{{', '.join(map(str, row))}}},")
    return [*lines, "};", ""]


def _body(callees: Sequence[Callee], slots: int, width: int) -> list[str]:
    return f"""\
const int me = retune_add(state, 1);
if (me == 0) {{
  times[0] = {CLOCK};
}}
for (int slot = 0; slot < {slots}; ++slot) {{
  const int first = choice[2 * slot];
  const int end = choice[2 * slot + 1];
  for (int row = first; row < end; ++row) {{
    __constant const int* step = steps[row];
    __global atomic_int* counters = COUNTERS(row);
    if (row > first) {{
      retune_wait(COUNTERS(row - 1), steps[row - 1][1]);
    }} else {{
      for (int i = 0; i < {width} && waits[slot][i] >= 0; ++i) {{
        const int before = choice[2 * waits[slot][i] + 1] - 1;
        retune_wait(COUNTERS(before), steps[before][1]);
      }}
    }}
    int done = 0;
    int t;
    while ((t = retune_take(counters, me, step[1], 0)) >= 0) {{
      ++done;
      switch (step[0]) {{
{indent(case_lines(callees), "  ")}
      }}
    }}
    if (done && retune_add(counters, done) + done == step[1]) {{
      times[1 + row] = {CLOCK};
    }}
  }}
}}
// The last one to leave clears the counters for the next launch.
if (retune_add(state + {LINE_INTS}, 1) == (int)get_num_groups(0) - 1) {{
  for (int slot = 0; slot < {slots}; ++slot) {{
    __global atomic_int* c = COUNTERS(choice[2 * slot]);
    for (; c < COUNTERS(choice[2 * slot + 1]); c += {LINE_INTS}) {{
      atomic_store_explicit(c, 0, memory_order_relaxed, memory_scope_device);
    }}
  }}
  atomic_store_explicit(state, 0, memory_order_relaxed, memory_scope_device);
  atomic_store_explicit(state + {LINE_INTS}, 0, memory_order_relaxed, memory_scope_device);
}}""".splitlines()
