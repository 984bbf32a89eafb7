"""`retune bench`: how long a bundle takes, and a peer measured in turns with it."""

from typing import Annotated, Any

import typer

from retune.core.errors import InputError
from retune_cli.console import print_json, print_line, print_table, rounded
from retune_cli.options import MODEL_HELP, Json, Module, check_model, check_module

BUDGET_S = 60.0
"""No round starts after this time."""


def bench(
    module: Module,
    against: Annotated[str | None, typer.Option(help="A peer, such as onnxruntime.")] = None,
    model: Annotated[str | None, typer.Option(help=f"For the peer: {MODEL_HELP}")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Rounds; each has one of each.")] = 50,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also the time of each kernel.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure a bundle's latency, interleaved with a peer's if one is named."""
    peer_model = _peer_model(against, model)
    check_module(module)
    from retune.bundle.bench import BenchOptions, compare_times
    from retune.bundle.module import Module as Bundle

    bundle = Bundle.load(module)
    feeds = bundle.random_inputs()
    contenders = {"retune": lambda: bundle.run(feeds)}
    if against and peer_model:
        predict = _open(against, peer_model, {n: t.shape for n, t in bundle.inputs.items()})
        contenders[against] = lambda: predict(feeds)
    options = BenchOptions(min_rounds=repeat, max_rounds=repeat, budget_s=BUDGET_S)
    found = compare_times(contenders, baseline="retune", options=options)
    rows = [_row(timing) for timing in found.timings]
    # `ratio` of the library says who wins; here it is the peer's time in units of the bundle's.
    ratio = rows[1]["median_us"] / rows[0]["median_us"] if len(rows) > 1 else None
    kernels = _profile(bundle) if profile else []
    if json:
        result = {"module": str(module), "rounds": found.rounds, "rows": rows, "ratio": ratio}
        print_json(result | ({"profile": kernels} if profile else {}))
        return
    if kernels:
        print_table(rounded(kernels, 1), f"kernels of {module}, in the order in which they run")
    print_table(rounded(rows, 1), f"latency of {module}, {found.rounds} rounds")
    if ratio is not None:
        print_line(f"{against} takes {ratio:.2f} x the bundle's time")


def _profile(bundle: Any) -> list[dict[str, Any]]:
    """A row for each launch and host step; the roofline is measured on this device now."""
    from retune.device.ceilings import Ceilings

    return [
        {
            "group": f"on the host: {row.kernel}" if row.host else row.label,
            "us": 1e6 * row.median_s,
            "share %": 100 * row.share,
            "GFLOP/s": None if row.host else row.gflops,
            "GB/s": None if row.host else row.gbytes_per_s,
            "roofline %": 100 * row.roofline if row.roofline is not None else None,
        }
        for row in bundle.profile(ceilings=Ceilings(bundle.device))
    ]


def _peer_model(against: str | None, model: str | None) -> str | None:
    if against is None and model is not None:
        raise InputError(f"--model {model}: expected --against PEER beside it, got none")
    if against is None:
        return None
    if model is None:
        raise InputError(f"--against {against}: expected --model MODEL beside it, got none")
    check_model(model)
    return model


def _open(name: str, model: str, shapes: dict[str, tuple[int, ...]]) -> Any:
    from retune.bundle.peers import open_peer
    from retune.graph.models import resolve_model

    return open_peer(name, resolve_model(model, shapes=shapes), shapes=shapes)


def _row(timing: Any) -> dict[str, Any]:
    return {
        "name": timing.name,
        "median_us": timing.median_s * 1e6,
        "p25_us": timing.first_quartile_s * 1e6,
        "p75_us": timing.third_quartile_s * 1e6,
        "samples": len(timing.times_s),
    }
