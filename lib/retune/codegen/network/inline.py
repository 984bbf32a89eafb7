"""One kernel that runs a whole list of kernels in one thread: a plain row of calls.

For networks so small that waking a second thread costs more than it takes off: PoCL needs 40 us
for it, and 2 us for a launch where no thread is woken. Nothing is counted and nobody is waited for;
what `persistent` reads from a table stands here as literals. The callees stay functions of their
own: taken into the row they save 1 % of a network of 8 us, and take longer to compile.
"""

from collections.abc import Sequence

from retune.codegen.network.extents import SizesAt, extent_text
from retune.codegen.network.persistent import Callee, CalleeLaunch, base_names, comment
from retune.codegen.opencl.kernels import cooperative_kernel, group_function
from retune.core.dims import is_fixed

NAME = "in_one_thread"
"""Entry point of the kernel, which is launched as a single work-item."""


def inline_text(
    callees: Sequence[Callee],
    steps: Sequence[CalleeLaunch],
    bases: int,
    sizes: SizesAt | None = None,
) -> str:
    """OpenCL C of the kernel; the callees' own texts go before it. Groups that depend on sizes are
    counted by what lies where `sizes` says, when their step begins.

    Arguments: `bases` pointers, then the first step to run, the step to stop before, and how many
    times over.
    """
    known = {callee.kernel: callee for callee in callees}
    given = [f"__global char* {name}" for name in base_names(bases)]
    given += ["const int first", "const int last", "const int rounds"]
    calls = [
        f"  {line}"
        for number, step in enumerate(steps)
        for line in _call(number, step, known[step.kernel], sizes or SizesAt())
    ]
    body = ["for (int round = 0; round < rounds; ++round) {", *calls, "}"]
    return "\n".join([*cooperative_kernel(NAME, (1, 1, 1), given, body), ""])


def _call(number: int, step: CalleeLaunch, callee: Callee, sizes: SizesAt) -> list[str]:
    """All groups of one step."""
    counted = {
        axis: extent
        for axis, extent in zip("xyz", callee.groups, strict=True)
        if not is_fixed(extent) or extent > 1
    }
    loops = [
        f"for (int {axis} = 0; {axis} < {extent_text(counted[axis])}; ++{axis})"
        for axis in "zyx"
        if axis in counted
    ]
    group = ", ".join(axis if axis in counted else "0" for axis in "xyz")
    lines = [
        f"if (first <= {number} && {number} < last) {{  // {comment(step.label)}",
        *(f"  {line}" for line in sizes.lines(callee.groups, f"base_{sizes.base}")),
        *(f"  {loop}" for loop in loops),
        f"  {group_function(step.kernel)}(",
    ]
    lines += [f"      (__global void*)(base_{base} + {offset})," for base, offset in step.args]
    return [*lines, f"      (int3)({group}));", "}"]
