"""Waits between steps: exactly the order that memory demands, and none that is implied."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.bundle.runtime.hazards import MemoryAccess, Region, dependencies


@st.composite
def regions(draw: st.DrawFn) -> Region:
    """Stretches of one allocation; all rows of another, or columns of them."""
    if draw(st.booleans()):
        start = draw(st.integers(0, 6))
        return Region(0, start, start + draw(st.integers(1, 3)))
    left = draw(st.integers(0, 3))
    columns = (4, left, draw(st.integers(left + 1, 4)))
    return Region(1, 0, 8, (columns,) if draw(st.booleans()) else ())


ACCESS = st.builds(
    lambda reads, writes: MemoryAccess(reads=tuple(reads), writes=tuple(writes)),
    st.lists(regions(), max_size=2),
    st.lists(regions(), min_size=1, max_size=2),
)


def bytes_of(found: tuple[Region, ...]) -> set[tuple[int, int]]:
    return {
        (region.allocation, at)
        for region in found
        for at in range(region.first, region.end)
        if all(first <= (at - region.first) % row < end for row, first, end in region.spans)
    }


def conflict(a: MemoryAccess, b: MemoryAccess) -> bool:
    written_a, written_b = bytes_of(a.writes), bytes_of(b.writes)
    return bool(written_a & (bytes_of(b.reads) | written_b) or bytes_of(a.reads) & written_b)


@given(st.lists(ACCESS, max_size=8))
def test_every_hazard_is_covered_and_no_wait_is_needless(accesses: list[MemoryAccess]) -> None:
    found = dependencies(accesses)
    behind: list[set[int]] = []
    for number, direct in enumerate(found):
        reached = set(direct).union(*(behind[before] for before in direct), set())
        behind.append(reached)
        needed = {b for b in range(number) if conflict(accesses[b], accesses[number])}
        assert needed <= reached
        assert set(direct) <= needed
        for before in direct:
            assert not any(before in behind[other] for other in direct)


def test_the_work_is_in_proportion_to_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step reads what the one before made, in memory that two take in turns."""
    met = 0
    overlaps = Region.overlaps

    def counted(self: Region, other: Region) -> bool:
        nonlocal met
        met += 1
        return overlaps(self, other)

    monkeypatch.setattr(Region, "overlaps", counted)
    halves = [Region(0, 0, 4), Region(0, 4, 8)]
    steps = [MemoryAccess(reads=(halves[n % 2],), writes=(halves[1 - n % 2],)) for n in range(400)]
    assert dependencies(steps) == [(), *((n,) for n in range(399))]
    assert met <= 3 * len(steps)
