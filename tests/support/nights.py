"""Rows of nights for tests, by three times and their noise."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from retune.nightly.verdicts import judge
from retune.records.nights import NightRow

FIRST = datetime(2026, 3, 1, 22, tzinfo=UTC)
RATIO_US = {"time_us": 1000.0, "control_us": 500.0, "kernel_us": 800.0}
TURNS = 0.002
"""Standard error of a time in its own night."""


def night(
    number: int,
    time: float = 1.0,
    control: float = 1.0,
    kernel: float | None = 1.0,
    **changes: object,
) -> NightRow:
    """The night of that number: times as parts of the usual ones."""
    reach = np.exp(1.96 * TURNS)
    usual = RATIO_US["time_us"] * time, RATIO_US["control_us"] * control
    values: dict[str, object] = {
        "fleet": "fleet",
        "night": f"{FIRST + timedelta(days=number):%Y-%m-%d}",
        "network": "mlp",
        "device": "board",
        "measured": FIRST + timedelta(days=number),
        "driver": "1",
        "retune": "0.1.0",
        "budget": "60 minutes a night",
        "control_program": "c",
        "version": 1,
        "program": "p",
        "rounds": 32,
        "time_us": usual[0],
        "time_low_us": usual[0] / reach,
        "time_high_us": usual[0] * reach,
        "control_us": usual[1],
        "control_low_us": usual[1] / reach,
        "control_high_us": usual[1] * reach,
        "ratio": usual[0] / usual[1],
        "ratio_low": usual[0] / usual[1] / reach,
        "ratio_high": usual[0] / usual[1] * reach,
        "status": "done",
    }
    if kernel is not None:
        us = RATIO_US["kernel_us"] * kernel
        values |= {
            "kernel_us": us, "kernel_low_us": us / reach, "kernel_high_us": us * reach,
        }  # fmt: skip
    return NightRow(**{**values, **changes})  # type: ignore[arg-type]


def quiet(
    count: int, seed: int = 0, wander: float = 0.004, drift: float = 0.01, start: int = 0
) -> list[NightRow]:
    """So many nights in which nothing happens: each time wanders by itself, the machine drifts."""
    rng = np.random.default_rng(seed)
    return [
        night(start + i, *np.exp(rng.normal(0, drift) + rng.normal(0, wander, 3)).tolist())
        for i in range(count)
    ]


def slowed(row: NightRow, time: float = 1.0, control: float = 1.0, kernel: float = 1.0) -> NightRow:
    """The same night with times that are so many times as long."""
    found = {
        name: value * factor
        for prefix, factor in (
            ("time", time), ("control", control), ("kernel", kernel), ("ratio", time / control),
        )
        for name in (f"{prefix}_us", f"{prefix}_low_us", f"{prefix}_high_us", prefix,
                     f"{prefix}_low", f"{prefix}_high")
        if isinstance(value := getattr(row, name, None), float)
    }  # fmt: skip
    return replace(row, **found)


def judged(rows: Sequence[NightRow]) -> list[NightRow]:
    """Every night with its verdict, one after the other."""
    found: list[NightRow] = []
    for row in rows:
        found.append(judge(found, row))
    return found
