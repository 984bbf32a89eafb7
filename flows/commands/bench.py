"""`retune bench`: how long a bundle takes, and a peer measured in turns with it."""

from dataclasses import asdict
from typing import Annotated

import typer

from flows.console import print_json, print_line, print_table, rounded
from flows.options import Json, Module, check_model, check_module, concrete_model
from retune.core.errors import InputError

PEERS = ("onnxruntime",)


def bench(
    module: Module,
    against: Annotated[str | None, typer.Option(help="A peer: onnxruntime.")] = None,
    model: Annotated[str | None, typer.Option(help="The network, for the peer.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each contestant.")] = 50,
    json: Json = False,
) -> None:
    """Measure a bundle's latency, interleaved with a peer's if one is named."""
    check_module(module)
    peer_model = _peer_model(against, model)
    from retune.bundle.bench import interleave
    from retune.bundle.module import Module as Bundle

    loaded = Bundle.load(module)
    contestants = {"retune": loaded.runner()}
    if against and peer_model:
        from retune.bundle.peers import open_peer

        contestants[against] = open_peer(against, concrete_model(peer_model, loaded))
    rows = [
        {"name": name, **asdict(times)} for name, times in interleave(contestants, repeat).items()
    ]
    ratio = rows[1]["median_us"] / rows[0]["median_us"] if len(rows) > 1 else None
    if json:
        print_json({"module": str(module), "rows": rows, "ratio": ratio})
        return
    print_table(rounded(rows), f"latency of {module}")
    if ratio is not None:
        print_line(f"{against} takes {ratio:.2f} x the bundle's time")


def _peer_model(against: str | None, model: str | None) -> str | None:
    if against is None:
        return None
    if against not in PEERS:
        raise InputError(f"--against {against}: expected one of {', '.join(PEERS)}")
    if model is None:
        raise InputError(f"--against {against}: expected --model MODEL beside it, got none")
    check_model(model)
    return model
