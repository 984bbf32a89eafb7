"""Verdicts on a night's changes as Prefect events, for automations to react to.

Read `emit_verdicts`. `examples/automations.yaml` has automations for them.
"""

from collections.abc import Iterable

from prefect.events import emit_event

from retune.core.names import slug
from retune.records.nights import NightRow

REGRESSION, IMPROVEMENT = "retune.regression.found", "retune.improvement.found"
HARDWARE, METHOD = "retune.hardware.changed", "retune.method.changed"


def emit_verdicts(rows: Iterable[NightRow]) -> list[str]:
    """An event for each change of these rows that is not noise; their names.

    The resource is the network on its device: `retune.network.FLEET.DEVICE.NETWORK`.
    """
    return [_emit(name, row) for row in rows if (name := event_of(row))]


def event_of(row: NightRow) -> str:
    """The name of the event; empty if nothing happened."""
    match row.verdict:
        case "real" if row.change is not None:
            return REGRESSION if row.change > 1 else IMPROVEMENT
        case "hardware":
            return HARDWARE
        case "method":
            return METHOD
        case _:
            return ""


def resource_id(*names: str) -> str:
    """What events and automations call a fleet, a device of it, and a network there."""
    return ".".join(slug(name) for name in names)


def _emit(name: str, row: NightRow) -> str:
    network = resource_id(row.fleet, row.device, row.network)
    emit_event(
        name,
        resource={
            "prefect.resource.id": f"retune.network.{network}",
            "prefect.resource.name": f"{row.network} on {row.device}",
            "retune.fleet": row.fleet,
            "retune.device": row.device,
            "retune.network": row.network,
            "retune.night": row.night,
        },
        related=[
            {
                "prefect.resource.id": f"retune.device.{resource_id(row.fleet, row.device)}",
                "prefect.resource.role": "retune-device",
                "prefect.resource.name": row.device,
            },
            {
                "prefect.resource.id": f"retune.fleet.{resource_id(row.fleet)}",
                "prefect.resource.role": "retune-fleet",
                "prefect.resource.name": row.fleet,
            },
        ],
        payload={
            "night": row.night,
            "verdict": row.verdict,
            "change": row.change,
            "change_low": row.change_low,
            "change_high": row.change_high,
            "time_us": row.time_us,
            "why": row.why,
        },
    )
    return name
