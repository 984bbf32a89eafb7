"""`retune verify`: a bundle's outputs beside those of the oracle."""

from dataclasses import asdict
from typing import Annotated

import typer

from flows.console import print_json, print_line
from flows.options import MODEL_HELP, Json, Module, check_model, check_module, concrete_model

Reference = Annotated[str, typer.Option("--model", help=MODEL_HELP)]


def verify(
    module: Module,
    model: Reference,
    samples: Annotated[int, typer.Option(min=1, help="Seeded random inputs to compare on.")] = 4,
    seed: Annotated[int, typer.Option(help="Seed of the inputs.")] = 0,
    json: Json = False,
) -> None:
    """Print how far a bundle's outputs are from onnxruntime's; fails if it is too far."""
    check_module(module)
    check_model(model)
    from retune.bundle.module import Module as Bundle
    from retune.bundle.verify import verify as compare

    loaded = Bundle.load(module)
    found = compare(loaded, concrete_model(model, loaded), samples=samples, seed=seed)
    if json:
        print_json({**asdict(found), "passed": found.passed})
    else:
        print_line(
            f"{'good' if found.passed else 'WRONG'}: {module} is at most {found.max_abs:.3e} from "
            f"{found.oracle}, {found.max_rel:.2e} of the output's range ({samples} samples)"
        )
    if not found.passed:
        raise typer.Exit(1)
