"""`retune verify`: compare a bundle's outputs with those of the oracle."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from retune.cli.commands.farm import Certs, Device, Scheduler, farm_device
from retune.cli.console import print_json, print_line, say
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
from retune.core.names import check_model_file
from retune.core.quantities import counted

if TYPE_CHECKING:
    from retune.bundle.plan import NetworkPlan
    from retune.bundle.verify.compare import SampleSet
    from retune.bundle.verify.examination import Comparison, Verdict

_RANDOM = 4
"""Random inputs that are compared by default."""

Reference = Annotated[str, typer.Option("--model", help=MODEL_HELP)]


def verify(
    module: Module,
    model: Reference,
    samples: Annotated[
        str,
        typer.Option(
            help="Samples that are compared: a number, an .npz file with an array for each input, "
            "or a folder of them. Default: those that the bundle was tuned with, or 4 random ones."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the inputs.")] = 0,
    device: Device = "",
    scheduler: Scheduler = "",
    certs: Certs = None,
    size: Sizes = None,
    trust: Trusted = None,
    digest: Digest = "",
    json: Json = False,
) -> None:
    """Compare a bundle's outputs with onnxruntime's.

    Exit code 1 if they differ by more than is allowed.

    A quantized bundle must compute exactly what numpy computes for the quantized network; its
    distance from the float network is printed as well.
    """
    check_model_file(model)
    from retune.bundle.verify.farm_examiner import open_examiner
    from retune.device.opening import playing

    with opened_bundle(module, trust, digest) as (bundle, plan):
        sizes = sizes_of(plan, size)
        taken = _sampling(plan, model, samples, sizes)
        kind = "given" if taken.given else "random"
        say(f"retune: comparing the outputs of {counted(taken.count, f'{kind} input')} ...")
        player = device or playing(plan.device.name)
        with open_examiner(farm_device(player, scheduler, certs)) as examiner:
            comparison = _comparison(plan, model, taken, seed, sizes)
            judged, floats = _judged(partial(examiner.verify, bundle), plan, comparison)
    if json:
        print_json({"module": str(module), **_data(judged, floats)})
    else:
        _print(str(module), judged, floats)
        if player != plan.device.name:
            print_line(f"its kernels ran on {player}; it was compiled for {plan.device.name}")
    if not judged.found.passed:
        raise typer.Exit(1)


def _sampling(
    plan: "NetworkPlan", model: str, samples: str, sizes: Mapping[str, int]
) -> "SampleSet":
    """What the option asks for. Raises: InputError."""
    from retune.bundle.verify.compare import sampling
    from retune.frontend.models import resolve_model
    from retune.frontend.onnx.importer import load_file
    from retune.graph.quantize.samples import load_samples, stacked_samples
    from retune.pipeline.request import check_samples

    if not samples:
        return sampling(plan, None if plan.samples else _RANDOM, {}, sizes)
    if samples.isdecimal() and int(samples) > 0:
        return sampling(plan, int(samples), {}, sizes)
    check_samples(samples)
    file, own = resolve_model(model, shapes=stated_shapes(plan)), plan.at(sizes)
    graph = load_file(file, own.input_shapes, own.values)
    arrays = stacked_samples(graph, load_samples(Path(samples), graph, finite=False))
    return sampling(plan, None, arrays)


def _comparison(
    plan: "NetworkPlan", model: str, taken: "SampleSet", seed: int, sizes: Mapping[str, int]
) -> "Comparison":
    """With the network that the bundle was made of."""
    from retune.bundle.plan import RECIPE_NOTE
    from retune.bundle.verify.examination import Comparison, Original
    from retune.frontend.models import resolve_model

    file = resolve_model(model, shapes=stated_shapes(plan))
    recipe, own = plan.notes.get(RECIPE_NOTE, ""), plan.at(sizes)
    return Comparison(
        network=Original(onnx=file, shapes=own.input_shapes, values=own.values, recipe=recipe),
        samples=taken.count,
        given=taken.arrays,
        seed=seed,
        sizes=sizes,
    )


def _judged(
    judge: "Callable[[Comparison], Verdict]", plan: "NetworkPlan", comparison: "Comparison"
) -> "tuple[Verdict, Verdict | None]":
    """The bundle beside the oracle; a quantized one also beside the float network."""
    from retune.bundle.plan import INTEGERS_NOTE, ROWS_NOTE

    judged, network = judge(comparison), comparison.network
    if not network.recipe and not {INTEGERS_NOTE, ROWS_NOTE} & plan.notes.keys():
        return judged, None
    floats = replace(network, recipe="", integers=False)
    return judged, judge(replace(comparison, network=floats, tolerance=inf))


def _data(judged: "Verdict", floats: "Verdict | None") -> dict[str, object]:
    apart = {"float_rel_range": floats.found.max_rel_range} if floats else {}
    found = judged.found
    decided = {"passed": found.passed, "criterion": found.criterion, "decision": found.decision}
    notes = {"notes": list(judged.notes)}
    return {"oracle": judged.oracle, **asdict(found), **decided, **notes, **apart}


def _print(module: str, judged: "Verdict", floats: "Verdict | None") -> None:
    found = judged.found
    verdict = "agrees" if found.passed else "DOES NOT AGREE"
    oracle = f"{judged.oracle} on the quantized network" if floats else judged.oracle
    print_line(
        f"{module} {verdict} with {oracle}: at most {found.max_abs:.3e} away, "
        f"{found.max_rel_range:.2e} of the output's range ({counted(found.samples, 'sample')}), "
        f"{found.decision}"
    )
    if found.top1 is not None:
        print_line(f"top-1: {100 * found.top1:.1f}% of the rows as {oracle}")
    if found.by_parts:
        print_line("compared part by part, as results of host steps or int8 jump at rounding")
    for note in judged.notes:
        print_line(f"note: {note}")
    if floats is not None:
        apart, part = floats.found.max_abs, floats.found.max_rel_range
        print_line(
            f"the network as its file has it, by {floats.oracle}: at most {apart:.3e} away, "
            f"{part:.2e} of the output's range"
        )
