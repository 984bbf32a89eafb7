"""GEMM and ALU instructions as operations on whole memories, prepared once for equal ones.

Read `plan_gemm`. An instruction is a list of (dst, src, wgt) in the order in which the core takes
them. Sums of products of bytes are exact in float32 as long as there are few enough of them, so
that products of matrices do the work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from retune.targets.vta.folding import LATENCY
from retune.targets.vta.workload import alu

_EXACT = 1024
"""Products of bytes that float32 sums exactly: 1024 * 128 * 128 is 2**24."""

Region = slice | np.ndarray
"""Elements of a memory: a slice where they lie side by side, as such are copied fastest."""


def region_of(elements: np.ndarray) -> Region:
    """Those elements, int64 [n], each once, and in order."""
    return _listed(np.flatnonzero(np.bincount(elements)))


def _listed(elements: np.ndarray) -> Region:
    """Those elements in the order in which they come."""
    flat = elements.reshape(-1)
    if len(flat) and bool((np.diff(flat) == 1).all()):
        return slice(int(flat[0]), int(flat[-1]) + 1)
    return flat


class _Group:
    """Products of the same inputs for several lists of sums."""

    def __init__(self, src: np.ndarray, wgt: np.ndarray, dst: np.ndarray) -> None:
        """`src` is int64 [sums, depth], `wgt` [lists, depth], `dst` [lists, sums] without an
        element twice."""
        self._src = src
        self._lists = len(wgt)
        self._wgt = _listed(wgt)
        self._dst = _listed(dst)
        self._columns: tuple[int, np.ndarray] = (-1, src)
        """Of what inputs they were gathered last, and those."""

    def run(self, inp: np.ndarray, wgt: np.ndarray, acc: np.ndarray, version: int) -> None:
        """As `Gemm.run`."""
        batch, block = inp.shape[1:]
        if self._columns[0] != version:
            self._columns = version, _gathered(inp, self._src)
        x = self._columns[1]
        w = wgt[self._wgt].reshape(self._lists, -1, block)
        for k in range(0, x.shape[1], _EXACT):
            total = np.matmul(x[:, k : k + _EXACT], w[:, k : k + _EXACT])
            acc[self._dst] += total.astype(np.int32).reshape(-1, batch, block)


def _gathered(inp: np.ndarray, src: np.ndarray) -> np.ndarray:
    """Inputs by sum and row of the batch. float32 [sums * B, depth * C]"""
    sums, depth = src.shape
    batch, block = inp.shape[1:]
    found = inp.take(src.reshape(-1), axis=0).reshape(sums, depth, batch, block)
    return found.swapaxes(1, 2).reshape(sums * batch, depth * block)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Gemm:
    """A GEMM instruction; a reset reads nothing, and has no groups."""

    writes: Region
    inputs: Region
    weights: Region
    groups: tuple[_Group, ...]

    def run(self, inp: np.ndarray, wgt: np.ndarray, acc: np.ndarray, version: int) -> None:
        """Adds products of inputs float32 [n, B, C] and weights [n, C in, C out] to sums int32.

        Inputs of the same `version` are the same.
        """
        if not self.groups:
            acc[self.writes] = 0
        for group in self.groups:
            group.run(inp, wgt, acc, version)


def plan_reset(dst: np.ndarray) -> Gemm:
    """The instruction that sets these sums to zero, int64 [n]."""
    return Gemm(writes=region_of(dst), inputs=slice(0), weights=slice(0), groups=())


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
    return Gemm(
        writes=region_of(dst),
        inputs=region_of(src),
        weights=region_of(wgt),
        groups=tuple(_groups(dst, src, wgt)),
    )


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

    writes: Region
    reads: Region
    """Beside those that it writes."""
    pairs: tuple[tuple[Region, Region], ...]
    """What is written, and what is read for it, one after the other: a single pair unless elements
    are written twice, or read after they were written."""

    def run(self, steps: Sequence[tuple[str, int | None]], acc: np.ndarray) -> None:
        """`acc[dst] = op(acc[dst], acc[src])`, or with an immediate, one step after the other."""
        for op, imm in steps:
            for dst, src in self.pairs:
                acc[dst] = alu(op, acc[dst], acc[src] if imm is None else imm)


def plan_alu(dst: np.ndarray, src: np.ndarray, *, immediate: bool) -> Alu:
    """The instruction that takes these, int64 [n] each, one after the other."""
    writes = region_of(dst)
    reads = slice(0) if immediate else region_of(src)
    apart = immediate or np.array_equal(src, dst) or not np.intersect1d(dst, src).size
    if apart and np.bincount(dst).max() == 1:
        order = np.argsort(dst)
        pairs: tuple[tuple[Region, Region], ...] = ((_listed(dst[order]), _listed(src[order])),)
    else:
        both = zip(dst.tolist(), src.tolist(), strict=True)
        pairs = tuple((slice(d, d + 1), slice(s, s + 1)) for d, s in both)
    return Alu(writes=writes, reads=reads, pairs=pairs)
