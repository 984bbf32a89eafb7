"""Numbers of work-groups that follow from sizes, as C text for hosts and kernels.

Read `extent_text`. Kernels that run others read sizes from memory, see SizesAt; programs in C have
variables of the same names.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from retune.core.dims import Atom, Dim, Quotient, Size, is_fixed, least, most, sizes_of
from retune.core.dtypes import INT32

_INT_END = 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesAt:
    """Where sizes lie: one int each, in one of the base buffers."""

    base: int = 0
    """Number of the base."""
    offsets: Mapping[str, int] = field(default_factory=dict[str, int])
    """Name of a size -> bytes from there."""

    def lines(self, extents: Iterable[int], pointer: str) -> Iterator[str]:
        """Variables for the sizes that these extents depend on; `pointer` is that base."""
        for name in sorted(size.name for size in sizes_of(extents)):
            at = f"{pointer} + {self.offsets[name]}"
            yield f"const int {variable(name)} = *(__global const int*)({at});"


class Counts:
    """How a kernel that runs others finds out how many groups each of them has.

    Their tables of steps state the count itself or, where some counts depend on sizes, a number of
    the function `retune_count`, which calculates it. That may be done once its steps begin: what
    wrote a size is complete then.
    """

    def __init__(
        self, counts: Mapping[str, int], sizes: SizesAt | None, local_bytes: int = 0
    ) -> None:
        """`counts` of groups by kernel; `sizes` are needed where one is not fixed. `local_bytes`
        are left for what `hold` calculates."""
        self.is_fixed = all(map(is_fixed, counts.values()))
        self._sizes = sizes or SizesAt()
        self._counts = counts
        self._numbers = {str(count): n for n, count in enumerate(self._distinct())}
        self._holds = not self.is_fixed and INT32.itemsize * len(self._numbers) <= local_bytes

    def _distinct(self) -> list[int]:
        return list({str(count): count for count in self._counts.values()}.values())

    def stated(self, kernel: str) -> int:
        """What tables say of its count."""
        count = self._counts[kernel]
        return count if self.is_fixed else self._numbers[str(count)]

    def of(self, stated: str) -> str:
        """The count, by what the table says, in OpenCL C."""
        return stated if self.is_fixed else f"retune_count({stated}, sizes)"

    def held(self, stated: str) -> str:
        """The same where `hold` is done: it may have calculated them."""
        return f"counted[{stated}]" if self._holds else self.of(stated)

    def hold(self, item: str, items: int) -> list[str]:
        """What calculates all of them once for a group, if local memory has room for them: that of
        sizes is far."""
        if not self._holds:
            return []
        last = len(self._numbers)
        return [
            f"__local int counted[{last}];",
            f"for (int i = {item}; i < {last}; i += {items}) {{",
            f"  counted[i] = {self.of('i')};",
            "}",
            "barrier(CLK_LOCAL_MEM_FENCE);",
        ]

    def function(self) -> Iterator[str]:
        """The function, if it is needed."""
        if self.is_fixed:
            return
        yield "// Counts of groups that depend on sizes, by their numbers."
        yield "static int retune_count(const int number, __global const char* sizes) {"
        distinct = self._distinct()
        yield from (f"  {line}" for line in self._sizes.lines(distinct, "sizes"))
        yield "  switch (number) {"
        for number, count in enumerate(distinct):
            yield f"    case {number}: return {extent_text(count)};"
        yield from ["  }", "  return 0;", "}", ""]

    def pointer(self) -> list[str]:
        """The variable `sizes` in the kernel, if it is needed."""
        if self.is_fixed:
            return []
        return [f"__global const char* sizes = (__global const char*)base_{self._sizes.base};"]

    def variables(self, extents: Iterable[int]) -> list[str]:
        """Variables for the sizes of these extents, in the kernel."""
        return [] if self.is_fixed else list(self._sizes.lines(extents, "sizes"))


def variable(size: str) -> str:
    """The variable that holds a size; with any name, it is not a word of C or OpenCL."""
    return f"extent_{size}"


@lru_cache(maxsize=1 << 12)
def extent_text(extent: int) -> str:
    """An expression in C for an extent, in terms of its sizes' variables."""
    if not isinstance(extent, Dim):
        return str(extent)
    return _dim(extent, "(long)" if _is_wide(extent) else "")


def _dim(dim: Dim, cast: str) -> str:
    first, *others = (
        " * ".join([*([str(c)] if c != 1 or not atoms else []), *(_atom(a, cast) for a in atoms)])
        for atoms, c in dim.terms
    )
    return first + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in others)


def _atom(atom: Atom, cast: str) -> str:
    if isinstance(atom, Size):
        return f"{cast}{variable(atom.name)}"
    dividend, divisor = (_operand(part, cast) for part in (atom.dividend, atom.divisor))
    if least(atom.dividend) >= 0:
        return f"({dividend} / {divisor})"
    below = f"-((-{dividend} + {divisor} - 1) / {divisor})"
    return f"({dividend} >= 0 ? {dividend} / {divisor} : {below})"


def _operand(extent: int, cast: str) -> str:
    text = _dim(extent, cast) if isinstance(extent, Dim) else str(extent)
    return text if text.isdigit() else f"({text})"


def _is_wide(extent: int) -> bool:
    """Whether a part of its expression may be more than an int holds."""
    if is_fixed(extent):
        return abs(extent) >= _INT_END
    assert isinstance(extent, Dim)
    parts = [Dim((term,)) for term in extent.terms if term[0]]
    if sum(max(abs(least(part)), abs(most(part))) for part in parts) >= _INT_END:
        return True
    quotients = (a for atoms, _ in extent.terms for a in atoms if isinstance(a, Quotient))
    return any(_is_wide(q.dividend) or _is_wide(q.divisor) for q in quotients)
