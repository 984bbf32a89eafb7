"""Chains: small kernels in a row as one step of a persistent kernel, which one worker runs.

Why: from step to step workers count and wait, about a microsecond on a CPU, which is more than a
kernel over some hundred elements takes. What one of them leaves is still in the cache of the
worker that runs the next one, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from retune.codegen.network.extents import SizesAt, extent_text
from retune.codegen.network.persistent import Callee, CalleeLaunch
from retune.codegen.opencl.kernels import group_function


@dataclass(frozen=True, slots=True)
class Chain:
    """Kernels that run one after the other, all groups of each, so many times over."""

    name: str
    links: tuple[Callee, ...]
    times: int = 1
    sizes: SizesAt | None = None
    """Needed where groups of links depend on sizes."""

    @property
    def reads_sizes(self) -> bool:
        """Whether groups of a link depend on sizes; the base with them is the last parameter."""
        return not all(link.is_fixed for link in self.links)

    @property
    def callee(self) -> Callee:
        """The chain as a kernel of one group; its parameters are those of all links in order."""
        count = sum(link.parameters for link in self.links) + self.reads_sizes
        return Callee(kernel=self.name, parameters=count, groups=(1, 1, 1))

    @property
    def text(self) -> str:
        """OpenCL C of the function of its group; the links' own texts go before it."""
        return "\n".join([*self._lines(), ""])

    def _lines(self) -> Iterator[str]:
        count = self.callee.parameters
        given = [f"__global void* p{number}" for number in range(count)]
        yield f"static void {group_function(self.name)}("
        yield from (f"    {parameter}," for parameter in given)
        yield "    const int3 group) {"
        extents = [extent for link in self.links for extent in link.groups]
        pointer = f"(__global const char*)p{count - 1}"
        yield from (f"  {line}" for line in (self.sizes or SizesAt()).lines(extents, pointer))
        if self.times > 1:
            yield f"  for (int time = 0; time < {self.times}; ++time) {{"
        first = 0
        for link in self.links:
            yield from (f"{self._indent}{line}" for line in _all_groups(link, first))
            first += link.parameters
        yield from ["  }", "}"] if self.times > 1 else ["}"]

    @property
    def _indent(self) -> str:
        return "    " if self.times > 1 else "  "


def _all_groups(link: Callee, first: int) -> Iterator[str]:
    """Calls of one link, whose arguments are parameters from that number on."""
    for axis, extent in zip("zyx", reversed(link.groups), strict=True):
        yield f"for (int {axis} = 0; {axis} < {extent_text(extent)}; ++{axis})"
    given = ", ".join(f"p{number}" for number in range(first, first + link.parameters))
    yield f"  {group_function(link.kernel)}({given}, (int3)(x, y, z));"


def chained_launch(
    name: str,
    launches: Sequence[CalleeLaunch],
    waits: tuple[int, ...],
    more: Sequence[tuple[int, int]] = (),
) -> CalleeLaunch:
    """The launch of a chain instead of those of its links; `more` are what it reads besides."""
    return CalleeLaunch(
        kernel=name,
        args=(*(arg for launch in launches for arg in launch.args), *more),
        waits=waits,
        label=", ".join(dict.fromkeys(launch.label for launch in launches)),
    )
