"""What a GEMM or ALU instruction does to whole memories at once, worked out once for equal ones.

Read `plan_gemm`. An instruction is a list of (dst, src, wgt) in the order in which the core takes
them. Sums of bytes are exact in float32 as long as there are few enough of them, so that products
of matrices do the work.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from retune.vta.folding import LATENCY
from retune.vta.workload import alu

_EXACT = 64
"""Tensor products of 16 x 16 that float32 sums exactly: 64 * 16 * 128 * 128 is 2**24."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Touched:
    """Elements that an instruction reads and writes, each once. int64"""

    dst: np.ndarray
    src: np.ndarray
    wgt: np.ndarray


@dataclass(frozen=True, eq=False, slots=True)
class _Group:
    """Products of the same inputs for several lists of sums."""

    src: np.ndarray
    """int64 [sums, depth]"""
    wgt: np.ndarray
    """int64 [lists, depth]"""
    dst: np.ndarray
    """int64 [lists, sums]; no element twice"""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Gemm:
    """A GEMM instruction that is no reset."""

    touched: Touched
    groups: tuple[_Group, ...]

    def run(self, inp: np.ndarray, wgt: np.ndarray, acc: np.ndarray) -> None:
        """Adds to int32 [n, B, C] the products of inputs and weights, integers as float32."""
        for group in self.groups:
            (sums, depth), lists = group.src.shape, len(group.wgt)
            batch, block = inp.shape[1:]
            exact = max(1, _EXACT * 16 // block)
            total = np.zeros((sums * batch, lists * block), np.int32)
            for k in range(0, depth, exact):
                x = inp[group.src[:, k : k + exact]].swapaxes(1, 2).reshape(sums * batch, -1)
                w = wgt[group.wgt[:, k : k + exact]]
                w = w.transpose(1, 3, 0, 2).reshape(-1, lists * block)
                total += (x @ w).astype(np.int32)
            acc[group.dst] += total.reshape(sums, batch, lists, block).transpose(2, 0, 1, 3)


def indices(
    micro: np.ndarray, name: str, counts: tuple[int, int], factors: tuple[int, int]
) -> np.ndarray:
    """An index of every micro-op in every iteration, in the order of execution. int64 [n]"""
    outer = np.arange(counts[0])[:, None, None] * factors[0]
    inner = np.arange(counts[1])[None, :, None] * factors[1]
    return (outer + inner + micro[name][None, None, :]).reshape(-1)


def first_hazard(dst: np.ndarray) -> int:
    """Position of the first micro-op whose sum one of those just before it writes too; -1: none."""
    found = [
        int(close[0]) + apart
        for apart in range(1, LATENCY)
        if len(close := np.flatnonzero(dst[apart:] == dst[:-apart]))
    ]
    return min(found, default=-1)


def plan_gemm(dst: np.ndarray, src: np.ndarray, wgt: np.ndarray) -> Gemm:
    """The instruction that takes these, int64 [n] each, one after the other."""
    touched = Touched(dst=np.unique(dst), src=np.unique(src), wgt=np.unique(wgt))
    return Gemm(touched=touched, groups=tuple(_groups(dst, src, wgt)))


def _groups(dst: np.ndarray, src: np.ndarray, wgt: np.ndarray) -> Iterator[_Group]:
    """Weights that are used equally often, for the same sums: loops give a single group."""
    order = np.argsort(wgt, kind="stable")
    weights, begins, counts = np.unique(wgt[order], return_index=True, return_counts=True)
    for count in np.unique(counts):
        mine = np.flatnonzero(counts == count)
        at = order[begins[mine][:, None] + np.arange(count)]
        yield from _same_count(weights[mine], dst[at], src[at])


def _same_count(weights: np.ndarray, dst: np.ndarray, src: np.ndarray) -> Iterator[_Group]:
    """Of weights [g], each for sums and inputs [g, n]."""
    sorted_ = np.sort(dst, axis=1)
    twice = (sorted_[:, 1:] == sorted_[:, :-1]).any(axis=1)
    for g in np.flatnonzero(twice):  # the same product again: one after the other
        for d, s in zip(dst[g], src[g], strict=True):
            yield _Group(np.full((1, 1), s), weights[g].reshape(1, 1), np.full((1, 1), d))
    weights, dst, src = weights[~twice], dst[~twice], src[~twice]
    if not len(weights):
        return
    lists, which = np.unique(dst, axis=0, return_inverse=True)
    which = which.reshape(-1)
    members = [np.flatnonzero(which == number) for number in range(len(lists))]
    while members:
        first = members[0]
        alike = [m for m in members if len(m) == len(first) and np.array_equal(src[m], src[first])]
        rows = np.asarray([which[m[0]] for m in alike])
        if len(np.unique(lists[rows])) < lists[rows].size:
            alike, rows = alike[:1], rows[:1]
        yield _Group(src[first].T, weights[np.asarray(alike)], lists[rows])
        done = {int(m[0]) for m in alike}
        members = [m for m in members if int(m[0]) not in done]


# -- the ALU -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Alu:
    """An ALU instruction."""

    touched: Touched
    dst: np.ndarray
    src: np.ndarray
    at_once: bool
    """Whether no element is written twice, or read after it was written."""

    def run(self, op: str, imm: int | None, acc: np.ndarray) -> None:
        """`acc[dst] = op(acc[dst], acc[src])`, or with an immediate, in the order of execution."""
        by = None if imm is None else np.int32(imm)
        if self.at_once:
            acc[self.dst] = alu(op, acc[self.dst], acc[self.src] if by is None else by)
            return
        for d, s in zip(self.dst.tolist(), self.src.tolist(), strict=True):
            acc[d] = alu(op, acc[d], acc[s] if by is None else by)


def plan_alu(dst: np.ndarray, src: np.ndarray, *, immediate: bool) -> Alu:
    """The instruction that takes these, int64 [n] each, one after the other."""
    writes = np.unique(dst)
    reads = np.zeros(0, np.int64) if immediate else np.unique(src)
    apart = immediate or np.array_equal(src, dst) or not np.intersect1d(writes, reads).size
    none = np.zeros(0, np.int64)
    touched = Touched(dst=writes, src=reads, wgt=none)
    return Alu(touched=touched, dst=dst, src=src, at_once=len(writes) == len(dst) and apart)
