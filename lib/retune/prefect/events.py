"""Events on the Prefect server: its feed shows them, automations react to them.

Every event's name begins with `retune.`; `docs/nightly.md` lists them. A server that does not
answer is told nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from prefect.events import emit_event
from prefect.runtime import flow_run as current

from retune.core.names import model_name, slug
from retune.pipeline.results import TuneResult
from retune.prefect.artifacts import fleet_of_context
from retune.prefect.contact import SERVER


def tell(
    event: str,
    kind: str,
    names: Sequence[str],
    payload: Mapping[str, Any],
    labels: Mapping[str, str] | None = None,
) -> None:
    """The feed has an event `retune.EVENT` of the resource `retune.KIND.NAME.NAME`...

    It is related to the flow run of this context. `labels` are those of the resource, which
    automations can match and count by.
    """
    if SERVER.lost:
        return
    run = {
        "prefect.resource.id": f"prefect.flow-run.{current.id}",
        "prefect.resource.role": "flow-run",
        "prefect.resource.name": str(current.name),
    }
    emit_event(
        event=f"retune.{event}",
        resource={
            "prefect.resource.id": ".".join(["retune", kind, *(slug(name) for name in names)]),
            "prefect.resource.name": " on ".join(reversed(names[-2:])),
            **(labels or {}),
        },
        related=[run] if current.id else [],
        payload=dict(payload),
    )


def tell_finished(result: TuneResult, device: str) -> None:
    """Events of a finished run: `retune.run.finished`, and `retune.bundle.promoted` if it was.

    Their resource is `retune.network.FLEET.DEVICE.NETWORK`, without a fleet that of the rest.
    """
    model, published = model_name(result.model), result.published
    names = (*fleet_of_context(), device, model)
    payload = {
        "model": model,
        "device": device,
        "trials": result.trials,
        "minutes": round(result.seconds / 60, 3),
        "latency_us": {row.name: row.median_us for row in result.latency},
        "reason": published.why if published else "",
    }
    tell("run.finished", "network", names, payload)
    if published and published.promoted:
        tell("bundle.promoted", "network", names, payload)
