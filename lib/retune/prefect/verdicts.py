"""Verdicts on a night's changes as Prefect events, for automations to react to.

Read `emit_verdicts`. `examples/automations.yaml` has automations for them.
"""

from collections.abc import Iterable

from retune.prefect.events import tell
from retune.records.nights import NightRow

REGRESSION, IMPROVEMENT = "regression.found", "improvement.found"
HARDWARE, METHOD = "hardware.changed", "method.changed"


def emit_verdicts(rows: Iterable[NightRow]) -> None:
    """The feed has an event for each change of these rows that is not noise.

    Its resource is the network on its device, `retune.network.FLEET.DEVICE.NETWORK`, with labels
    `retune.fleet`, `retune.device`, `retune.network` and `retune.night`.
    """
    for row in rows:
        if event := event_of(row):
            _emit(event, row)


def event_of(row: NightRow) -> str:
    """The event's name after `retune.`; empty if nothing happened."""
    match row.verdict:
        case "real" if row.change is not None:
            return REGRESSION if row.change > 1 else IMPROVEMENT
        case "hardware":
            return HARDWARE
        case "method":
            return METHOD
        case _:
            return ""


def _emit(event: str, row: NightRow) -> None:
    tell(
        event,
        "network",
        (row.fleet, row.device, row.network),
        payload={
            "night": row.night,
            "verdict": row.verdict,
            "change": row.change,
            "change_low": row.change_low,
            "change_high": row.change_high,
            "time_us": row.time_us,
            "why": row.why,
        },
        labels={
            "retune.fleet": row.fleet,
            "retune.device": row.device,
            "retune.network": row.network,
            "retune.night": row.night,
        },
    )
