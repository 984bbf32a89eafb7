"""`retune model`: cost models trained on all records, judged on networks they have not seen."""

from dataclasses import asdict
from typing import Annotated

import typer

from retune_cli.console import print_json, print_line, print_table
from retune_cli.options import Json, Records, record_store
from retune.stages.rows import metrics_row, model_rows

app = typer.Typer(
    help="Train cost models on the record store, and judge them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("train")
def train(
    records: Records = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the folds and the trees.")] = 0,
    json: Json = False,
) -> None:
    """Train and register a model; tuning uses it if it beats the one in use."""
    from retune_prefect.launch import retrain_with_prefect
    from retune.search.registry import card_named

    root = record_store(records).root.resolve()
    card = card_named(root, retrain_with_prefect(str(root), seed))
    if json:
        print_json(asdict(card))
        return
    print_line(f"model {card.name}: {card.rows:,} records of {card.networks} networks or tasks")
    print_table(
        [
            metrics_row("for networks held out", card.held_out),
            metrics_row("static estimate", card.static),
        ]
    )
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
        print_table([metrics_row(key, metrics) for key, metrics in found.items()])


@app.command("list")
def list_models(records: Records = None, json: Json = False) -> None:
    """Print the registered models, oldest first."""
    from retune.search.registry import registered

    cards = registered(record_store(records).root)
    if json:
        print_json([asdict(card) for card in cards])
    else:
        print_table(model_rows(cards), "registered models")
