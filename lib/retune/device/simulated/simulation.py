"""Invented kernel times of simulated boards, the same in every process.

Read `program_times_us`. A kernel's time follows from its text and its range alone. It has what
search needs: a roofline, gains for candidates that keep all units busy and use wide vectors, which
a model can learn, and a part that is luck. Nothing here is measured.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil, prod

import numpy as np

from retune.codegen.source import Run, three
from retune.core.dtypes import BOOL, dtype_of
from retune.core.keys import content_key
from retune.device.measure.ceilings import Lower
from retune.device.simulated.board import SimulatedBoard

_GFLOPS = 50.0
_GBYTES_PER_S = 20.0
_UNITS = 4
"""Work-groups that a board runs at once."""
_LANES = 8
"""Vectors narrower than this waste arithmetic."""
_LAUNCH_US = 1.0
_LUCK = 4.0
"""The unluckiest kernel takes this many times as long as the luckiest."""
_FALSE_SPEEDUP = 50.0
"""A program that is wrong in its bundle only seems this many times as fast: more than all that
candidates of a task differ by otherwise, so that it is chosen."""
_VECTOR = re.compile(r"\b(?:float|half|vload|vstore)(2|4|8|16)\b")
_HEX_DIGITS = 12


def kernel_key(run: Run) -> str:
    """Equal for kernels of one text and range, in whichever program or bundle they are."""
    kernel, launch = run
    return content_key(
        kernel.name, kernel.text, three(launch.global_size), three(launch.local_size)
    )


def program_key(runs: Sequence[Run]) -> str:
    """The same of kernels that run one after the other."""
    return content_key([kernel_key(run) for run in runs])


def program_times_us(
    runs: Sequence[Run], board: SimulatedBoard, offending: frozenset[str] = frozenset()
) -> tuple[float, ...]:
    """Microseconds of each launch of a program on the board, all of them positive.

    `offending` are the keys of programs that look better than they are, see `Fault`.
    """
    speedup = _FALSE_SPEEDUP if offending and program_key(runs) in offending else 1.0
    return tuple(_kernel_us(run, board) / board.speed / speedup for run in runs)


@dataclass(frozen=True, slots=True)
class BoardRoofline:
    """What a board can do at best; no kernel is faster, but for what only looks so."""

    board: SimulatedBoard

    def least_s(self, flops: int, traffic: int) -> float:
        """Seconds that so much arithmetic and so many bytes take at the very least."""
        return 1e-6 * _least_us(flops, traffic) / self.board.speed

    def least_lower_s(self, bits: Lower, flops: int, traffic: int) -> float:
        """The same of smaller values, which it has no instructions to multiply."""
        return self.least_s(flops, traffic * bits // 32)


def fraction(*values: object) -> float:
    """A number from 0 to below 1 that follows from the values' contents."""
    return int(content_key(*values)[:_HEX_DIGITS], 16) / 16**_HEX_DIGITS


def corrupted(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, each with a first element that is wrong by more than any tolerance."""
    return {name: corrupted_array(array) for name, array in arrays.items()}


def corrupted_array(array: np.ndarray) -> np.ndarray:
    """A copy whose first element, if there is one, is far from what it was."""
    found = np.array(array, order="C")
    if not found.size:
        return found
    first = found.reshape(-1)[:1]
    dtype = dtype_of(found)
    if dtype == BOOL:
        first[:] = ~first
    elif dtype.is_integer:
        low, high = dtype.limits
        first[0] = low if int(first[0]) > (low + high) // 2 else high
    else:
        finite = np.abs(found[np.isfinite(found)])
        largest = float(dtype.finfo.max)
        moved = min(1.0 + 2.0 * float(finite.max(initial=0.0)), largest)
        first[0] = moved if not first[0] > 0 else -moved
    return found


def _kernel_us(run: Run, board: SimulatedBoard) -> float:
    kernel, launch = run
    groups = max(1, prod(launch.global_size) // max(1, prod(launch.local_size)))
    idle = ceil(groups / _UNITS) * _UNITS / groups
    lanes = max((int(width) for width in _VECTOR.findall(kernel.text)), default=1)
    narrow = max(1.0, _LANES / lanes) ** 0.5
    luck = _LUCK ** fraction(board.model, board.driver, kernel_key(run))
    slower = prod(s.factor for s in board.slower if fnmatchcase(kernel.name, s.kernel))
    return slower * luck * (_LAUNCH_US + idle * narrow * _least_us(launch.flops, launch.bytes))


def _least_us(flops: int, traffic: int) -> float:
    return 1e-3 * max(flops / _GFLOPS, traffic / _GBYTES_PER_S)
