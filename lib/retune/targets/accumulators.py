"""Accumulators in registers: a reduction's innermost loops, by the rules of every device."""

from collections.abc import Sequence

from retune.schedule.schedule import Schedule
from retune.targets.tiling import unroll_all

WINDOW_LIMIT = 16
"""Reduce iterations that may be written out in full, so that neighbouring results share reads."""


def accumulate_in_registers(
    s: Schedule, outer: Sequence[str], spatial: Sequence[str], lanes: int, near: str = ""
) -> None:
    """The loops `outer` around the results' loops `spatial`, which are written out.

    Every result is then a named register (or, with more than one lane, a part of a vector along
    the last of `spatial`) that stays where it is while `outer` runs. The loop `near`, if any, is
    what a dot product does in each lane. Together they are the reduction's own loops; `lanes` has
    to divide the last one's extent.

    Rewrite of [k] around [y, x] with four lanes:
        for y in range(2):                for k in range(K):
          for x in range(8):        ->      for y in range(2):  # unroll
            for k in range(K):                for x.0 in range(2):  # unroll
              acc[y, x] += ...                  for x.1 in range(4):  # vectorize
                                                  acc[y, x.0*4 + x.1] += ...
    """
    *others, last = spatial
    vector: list[str] = []
    if lanes > 1:
        last, *vector = s.split(last, [lanes])
    s.reorder(*outer, *others, last, *vector, *([near] if near else []))
    for loop in vector:
        s.vectorize(loop)
    unroll_all(s, [*others, last])
