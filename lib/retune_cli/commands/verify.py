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
    from retune.bundle.by_parts import parts_of
    from retune.bundle.module import Module as Bundle
    from retune.bundle.peers import open_reference
    from retune.bundle.verify import verify as compare
    from retune.graph.models import load_model, resolve_model

    bundle = Bundle.load(module)
    shapes = {name: kind.shape for name, kind in bundle.inputs.items()}
    path, graph = resolve_model(model, shapes=shapes), load_model(model, shapes)
    oracle = open_reference(path, graph, shapes=shapes)
    parts = parts_of(bundle, path, graph)
    feeds = bundle.random_inputs
    found = compare(bundle, oracle, feeds, samples=samples, seed=seed, parts=parts)
    if json:
        print_json({"module": str(module), "oracle": oracle.name, **asdict(found)})
    else:
        verdict = "agrees" if found.passed else "DOES NOT AGREE"
        print_line(
            f"{module} {verdict} with {oracle.name}: at most {found.max_abs:.3e} away, "
            f"{found.max_rel_range:.2e} of the output's range ({found.samples} samples, "
            f"allowed: {found.tolerance:.0e})"
        )
        if found.by_parts:
            print_line("compared part by part, as results of host steps jump at rounding")
    if not found.passed:
        raise typer.Exit(1)
