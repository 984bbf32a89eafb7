"""`retune bench`: how long a bundle takes, with another bundle or a peer measured in turns."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from retune.cli.commands.farm import Certs, Device, Scheduler, farm_device
from retune.cli.console import print_json, print_line, print_table, rounded, say
from retune.cli.options import (
    MODEL_HELP,
    Digest,
    Json,
    Module,
    Sizes,
    Trusted,
    opened_bundle,
    sizes_of,
    stated_shapes,
)
from retune.core.errors import InputError
from retune.core.names import check_model_file
from retune.core.quantities import counted, numbered

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.bundle.verify.bench import Benchmark
    from retune.bundle.verify.examination import Entrant, Rival

BUDGET_S = 30.0
"""No round starts after this time."""


Against = Annotated[
    str | None,
    typer.Option(
        help="Peer that is measured in turns with it: onnxruntime, openvino. Default: none."
    ),
]
Required = Annotated[
    str | None,
    typer.Option(
        help="Peer that the bundle must be as fast as, measured as by --against; the exit code "
        "is 1 if it is slower. Default: none."
    ),
]
Repeat = Annotated[
    int, typer.Option(min=1, help="Number of rounds; each runs every contender once.")
]


Other = Annotated[
    Path | None,
    typer.Argument(metavar="OTHER", help="Bundle that is measured in turns with the first one."),
]


def bench(
    module: Module,
    other: Other = None,
    against: Against = None,
    model: Annotated[str | None, typer.Option(help=f"{MODEL_HELP} The peer runs it.")] = None,
    device: Device = "",
    scheduler: Scheduler = "",
    certs: Certs = None,
    repeat: Repeat = 50,
    fail_if_slower_than: Required = None,
    profile: Annotated[
        bool, typer.Option("--profile", help="Print the time of each kernel, too.")
    ] = False,
    size: Sizes = None,
    trust: Trusted = None,
    digest: Digest = "",
    json: Json = False,
) -> None:
    """Measure a bundle's latency, in turns with another bundle's or a peer's."""
    against = _compared(against, fail_if_slower_than)
    _check_other(other, against, digest)
    peer_model = _peer_model(against, model)
    from retune.bundle.verify.bench import rounds_within
    from retune.bundle.verify.farm_examiner import open_examiner

    options = rounds_within(repeat, BUDGET_S)
    with ExitStack() as opened:
        bundle, plan = opened.enter_context(opened_bundle(module, trust, digest))
        sizes = sizes_of(plan, size)
        entrants: dict[str, Entrant] = {"retune" if other is None else str(module): bundle}
        entrants |= _rivals(against, peer_model, plan, sizes)
        if other is not None:
            second, own = opened.enter_context(opened_bundle(other, trust, ""))
            _check_alike((module, plan), (other, own))
            entrants[str(other) if other != module else f"{other} (again)"] = second
        most = f"{counted(repeat, 'round')} or {BUDGET_S:.0f} s"
        say(f"retune: measuring {', '.join(entrants)}, {most} ...")
        name = farm_device(device or plan.device.name, scheduler, certs)
        with open_examiner(name) as examiner:
            baseline = next(iter(entrants))
            found = examiner.compare(entrants, baseline=baseline, options=options, sizes=sizes)
            board = examiner.where
            steps = examiner.profile(bundle, sizes=sizes) if profile else ()
    kernels = [_kernel(row) for row in steps]
    ratio = _told(module, found, kernels, board, json=json)
    if slower := _slower(fail_if_slower_than, ratio):
        say(f"retune: {module}: {slower}")
        raise typer.Exit(1)


def _told(
    module: Path,
    found: "Benchmark",
    kernels: Sequence[Mapping[str, Any]],
    board: str,
    *,
    json: bool,
) -> float | None:
    """Prints the times; returns the time of what was compared with, in units of the bundle's."""
    from retune.pipeline.slowness import busy_sentence

    rows = [_row(timing) for timing in found.timings]
    ratio = rows[1]["median_us"] / rows[0]["median_us"] if len(rows) > 1 else None
    if json:
        result = {"module": str(module), "rounds": found.rounds, "rows": rows, "ratio": ratio}
        result["waited_percent"] = round(100 * found.waited, 1)
        where = {"board": board} if board else {}
        print_json(result | where | ({"profile": kernels} if kernels else {}))
        return ratio
    if kernels:
        print_table(
            _told_apart(kernels),
            f"kernels of {module}, in order",
            optional=("gbytes_per_s", "runs"),
        )
    print_table(rounded(rows), f"latency of {module}, {counted(found.rounds, 'round')}")
    if board:
        print_line(f"on board {board}")
    if ratio is not None:
        first = rows[0]["name"]
        name = "the bundle" if first == "retune" else first
        print_line(f"{rows[1]['name']} takes {ratio:.2f} x the time of {name}")
    if busy := busy_sentence(found.waited):
        print_line(busy)
    return ratio


def _check_other(other: Path | None, against: str | None, digest: str) -> None:
    """Raises: InputError for options that are for one bundle alone."""
    if other is not None and against is not None:
        raise InputError(
            f"{other}: expected one to compare with, got the peer {against}, too; leave one out"
        )
    if other is not None and digest:
        raise InputError(f"--digest {digest}: expected one bundle, got two; use --trust for both")


def _check_alike(first: "tuple[Path, NetworkPlan]", second: "tuple[Path, NetworkPlan]") -> None:
    """Raises: InputError for bundles that do not take the same inputs."""
    (one, plan), (two, other) = first, second
    wanted, got = _interface(plan), _interface(other)
    if wanted != got:
        raise InputError(f"{two}: expected the inputs of {one} ({wanted}), got {got}")


def _interface(plan: "NetworkPlan") -> str:
    shapes = plan.input_shapes
    return ", ".join(
        f"{name} {plan.buffer(name).dtype}[{', '.join(map(str, shapes[name]))}]"
        for name in plan.inputs
    )


def _compared(against: str | None, required: str | None) -> str | None:
    """The peer that takes part. Raises: InputError for two."""
    if against and required and against != required:
        raise InputError(
            f"--fail-if-slower-than {required}: expected the peer of --against, got {against} "
            "there; leave one out"
        )
    return against or required


def _slower(required: str | None, ratio: float | None) -> str:
    """Why the bundle is not as fast as it has to be; '' if it is."""
    from retune.pipeline.slowness import NOISE

    if required is None or ratio is None or ratio >= 1 / NOISE:
        return ""
    return f"expected a bundle that is as fast as {required}, got one that is slower ({ratio:.2f}x)"


def _rivals(
    peer: str | None, model: str | None, plan: "NetworkPlan", sizes: Mapping[str, int]
) -> "dict[str, Rival]":
    """The peer that takes part, if one does, with the network at these sizes."""
    from retune.bundle.verify.examination import Original, Rival
    from retune.frontend.models import resolve_model

    if not peer or not model:
        return {}
    file = resolve_model(model, shapes=stated_shapes(plan))
    own = plan.at(sizes)
    original = Original(onnx=file, shapes=own.input_shapes, values=own.values)
    return {peer: Rival(peer=peer, network=original)}


def _kernel(row: Any) -> dict[str, Any]:
    """A launch or host step; its roofline was measured on this device just now."""
    return {
        "group": f"on the host: {row.kernel}" if row.host else row.label,
        "runs": row.times,
        "us": 1e6 * row.median_s,
        "share_percent": 100 * row.share,
        "gflops": None if row.host else row.gflops,
        "gbytes_per_s": None if row.host else row.gbytes_per_s,
        "roofline_percent": 100 * row.roofline if row.roofline is not None else None,
    }


def _told_apart(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows; those of a group of several kernels say which."""
    groups = numbered([row["group"] for row in kernels])
    shown = rounded(kernels)
    return [{**row, "group": group} for row, group in zip(shown, groups, strict=True)]


def _peer_model(against: str | None, model: str | None) -> str | None:
    if against is None:
        if model is not None:
            raise InputError(f"--model {model}: expected --against PEER beside it, got none")
        return None
    if model is None:
        raise InputError(f"--against {against}: expected --model MODEL beside it, got none")
    check_model_file(model)
    return model


def _row(timing: Any) -> dict[str, Any]:
    return {
        "name": timing.name,
        "median_us": timing.median_s * 1e6,
        "p25_us": timing.first_quartile_s * 1e6,
        "p75_us": timing.third_quartile_s * 1e6,
        "samples": len(timing.times_s),
    }
