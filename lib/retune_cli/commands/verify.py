"""`retune verify`: a bundle's outputs beside those of the oracle."""

from dataclasses import asdict
from typing import Annotated

import typer

from retune_cli.console import print_json, print_line
from retune_cli.options import MODEL_HELP, Json, Module, check_model, check_module

Reference = Annotated[str, typer.Option("--model", help=MODEL_HELP)]


def verify(
    module: Module,
    model: Reference,
    samples: Annotated[int, typer.Option(min=1, help="Seeded random inputs to compare on.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the inputs.")] = 0,
    json: Json = False,
) -> None:
    """Print how far a bundle's outputs are from onnxruntime's; fails if it is too far."""
    check_module(module)
    check_model(model)
    from retune.bundle.examiner import Examiner, Original
    from retune.bundle.format import read_bundle
    from retune.graph.models import resolve_model

    plan = read_bundle(module)
    shapes = plan.input_shapes
    original = Original(onnx=resolve_model(model, shapes=shapes), shapes=shapes)
    with Examiner(plan.device.name) as examiner:
        judged = examiner.verify(module, original, samples=samples, seed=seed)
    found = judged.found
    if json:
        print_json({"module": str(module), "oracle": judged.oracle, **asdict(found)})
    else:
        verdict = "agrees" if found.passed else "DOES NOT AGREE"
        print_line(
            f"{module} {verdict} with {judged.oracle}: at most {found.max_abs:.3e} away, "
            f"{found.max_rel_range:.2e} of the output's range ({found.samples} samples, "
            f"allowed: {found.tolerance:.0e})"
        )
        if found.by_parts:
            print_line("compared part by part, as results of host steps jump at rounding")
    if not found.passed:
        raise typer.Exit(1)
