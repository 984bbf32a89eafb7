"""Rows of a table of layers: speed, share of the roofline, ratio to peers; means by class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One layer."""

    layer: str
    kind: str
    flops: int
    us: dict[str, float]
    """Median of each contender."""
    gflops: float
    ceiling_gflops: float
    share: float
    """Of the roofline: arithmetic or traffic, whichever binds."""

    @property
    def ratio(self) -> float | None:
        """Time over that of the fastest peer."""
        peers = [us for name, us in self.us.items() if name != "retune"]
        return self.us["retune"] / min(peers) if peers else None


def show(row: Row) -> str:
    """One line."""
    peers = (f"{n} {row.us['retune'] / us:.2f}x" for n, us in row.us.items() if n != "retune")
    return (
        f"{row.kind:12} {row.layer:36} {row.us['retune']:9.1f} us {row.gflops:6.0f} GFLOPS "
        f"{row.share:4.0%} of the roofline ({row.ceiling_gflops:.0f})  {'  '.join(peers)}"
    )


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric mean and extremes of each kind."""
    lines: list[str] = []
    for kind in dict.fromkeys(row.kind for row in rows):
        mine = [row for row in rows if row.kind == kind]
        shares = [row.share for row in mine]
        share = f"share {geometric_mean(shares):.0%}, least {min(shares):.0%}"
        text = f"{kind:12} {len(mine):3} layers: {share}"
        ratios = [row.ratio for row in mine if row.ratio is not None]
        if ratios:
            text += (
                f"; {geometric_mean(ratios):.2f}x the fastest peer's time, worst {max(ratios):.2f}x"
            )
        lines.append(text)
    return lines


def geometric_mean(values: ArrayLike) -> float:
    """The mean of ratios, all positive: of one and its inverse it is 1."""
    return float(np.exp(np.mean(np.log(values))))
