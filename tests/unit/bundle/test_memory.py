"""Temporaries that are alive at once never overlap, and the arena stays near its lower bound."""

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.bundle.memory import MemoryBlock, most_alive, place, plan_memory, temp_blocks
from retune.bundle.plan import NetworkPlan


@st.composite
def blocks(draw: st.DrawFn) -> tuple[MemoryBlock, ...]:
    spans = draw(
        st.lists(st.tuples(st.integers(1, 40), st.integers(0, 20), st.integers(0, 8)), max_size=30)
    )
    return tuple(
        MemoryBlock(name=f"t{i}", bytes=64 * size, first=first, last=first + length)
        for i, (size, first, length) in enumerate(spans)
    )


@given(blocks())
def test_blocks_alive_at_once_never_overlap(blocks: tuple[MemoryBlock, ...]) -> None:
    offsets, _ = place(blocks)
    for a, b in combinations(blocks, 2):
        if a.first <= b.last and b.first <= a.last:
            start_a, start_b = offsets[a.name], offsets[b.name]
            assert start_a + a.bytes <= start_b or start_b + b.bytes <= start_a


@given(blocks())
def test_the_arena_holds_every_block_and_no_less_than_what_is_alive(
    blocks: tuple[MemoryBlock, ...],
) -> None:
    offsets, arena = place(blocks)
    assert arena == max((offsets[b.name] + b.bytes for b in blocks), default=0)
    assert most_alive(blocks) <= arena <= sum(b.bytes for b in blocks)


@given(blocks())
def test_offsets_stay_aligned(blocks: tuple[MemoryBlock, ...]) -> None:
    offsets, arena = place(blocks)
    assert all(at % 64 == 0 for at in (*offsets.values(), arena))


@given(blocks())
def test_the_lower_bound_is_the_fullest_moment(blocks: tuple[MemoryBlock, ...]) -> None:
    moments = [sum(b.bytes for b in blocks if b.first <= t <= b.last) for t in range(30)]
    assert most_alive(blocks) == max(moments)


def test_a_chain_needs_two_blocks_only() -> None:
    chain = tuple(MemoryBlock(name=f"t{i}", bytes=640, first=i, last=i + 1) for i in range(50))
    assert place(chain)[1] == most_alive(chain) == 1280


def test_a_gap_is_filled_by_the_best_fit() -> None:
    held = (
        MemoryBlock(name="long", bytes=64, first=0, last=9),
        MemoryBlock(name="early", bytes=256, first=0, last=1),
        MemoryBlock(name="late", bytes=192, first=2, last=3),
        MemoryBlock(name="small", bytes=64, first=2, last=3),
    )
    assert place(held)[1] == most_alive(held) == 320


def test_nothing_needs_nothing() -> None:
    assert place(()) == ({}, 0)


def test_an_alias_keeps_its_root_alive(plan: NetworkPlan) -> None:
    spans = {block.name: (block.first, block.last) for block in temp_blocks(plan)}
    assert spans == {"sum": (0, 1), "four": (2, 3)}


def test_temporaries_that_never_meet_share_memory(plan: NetworkPlan) -> None:
    memory = plan_memory(plan, align_bytes=64)
    assert memory.offsets == {"sum": 0, "four": 0}
    assert (memory.arena_bytes, memory.lower_bound_bytes, memory.unshared_bytes) == (128, 128, 256)
    assert (memory.weight_bytes, memory.io_bytes, memory.peak_bytes) == (128, 384, 640)


def test_a_temporary_that_no_launch_names_takes_no_memory(plan: NetworkPlan) -> None:
    without = replace(plan, launches=plan.launches[:2])
    assert plan_memory(without).offsets.keys() == {"sum"}


@pytest.mark.parametrize("align", [64, 512, 4096])
def test_the_device_may_ask_for_a_wider_alignment(plan: NetworkPlan, align: int) -> None:
    assert plan_memory(plan, align_bytes=align).arena_bytes == max(128, align)
