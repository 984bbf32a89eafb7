"""`retune model`: cost models trained on all records, judged on networks they have not seen."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.console import print_json, print_line, print_table
from flows.options import Json, Records, record_store

if TYPE_CHECKING:
    from retune.search.registry import Metrics, ModelCard

app = typer.Typer(
    help="Train cost models on the record store, and judge them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("train")
def train(
    records: Records = None,
    seed: Annotated[int, typer.Option(help="Of the folds and the trees.")] = 0,
    json: Json = False,
) -> None:
    """Train and register a model; tuning uses it if it beats the one in use."""
    from retune.search.offline import train as train_model

    card = train_model(record_store(records), seed)
    if json:
        print_json(asdict(card))
        return
    print_line(f"model {card.name}: {card.rows:,} records of {card.networks} networks or tasks")
    print_table([_metrics("held-out", card.held_out), _metrics("static estimate", card.static)])
    print_line(f"in use: it beats {card.beats}" if card.in_use else "not in use: it is no better")


@app.command("evaluate")
def evaluate(
    name: Annotated[str | None, typer.Argument(help="A model's name; default: the newest.")] = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Print how a model orders the candidates that were measured after it was trained."""
    from retune.search.offline import evaluate_model

    found = evaluate_model(record_store(records), name)
    if json:
        print_json({key: asdict(metrics) for key, metrics in found.items()})
    else:
        print_table([_metrics(key, metrics) for key, metrics in found.items()])


@app.command("list")
def list_models(records: Records = None, json: Json = False) -> None:
    """Print the registered models, oldest first."""
    from retune.search.registry import registered

    cards = registered(Path(record_store(records).root))
    if json:
        print_json([asdict(card) for card in cards])
    else:
        print_table([_row(card) for card in cards], "registered models")


def _metrics(what: str, metrics: "Metrics") -> dict[str, Any]:
    return {"predictions": what} | {
        key: round(value, 3) if isinstance(value, float) else value
        for key, value in asdict(metrics).items()
    }


def _row(card: "ModelCard") -> dict[str, Any]:
    shown = _metrics("", card.held_out)
    del shown["predictions"]
    return {
        "model": card.name,
        "created": card.created,
        "features": card.feature_set,
        "records": card.rows,
        "networks": card.networks,
        **shown,
        "beats": card.beats or "-",
    }
