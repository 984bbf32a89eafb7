"""`retune model`: cost models trained on all records, judged on networks they have not seen."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from retune.cli.console import print_json, print_line, print_table, say
from retune.cli.options import Json, Records, record_store
from retune.pipeline.rows import metrics_row, model_rows

if TYPE_CHECKING:
    from retune.search.model.registry import ModelCard

app = typer.Typer(
    help="Train, evaluate and list cost models.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("train")
def train(
    records: Records = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the folds and the trees.")] = 0,
    json: Json = False,
) -> None:
    """Train a model on all records, and register it.

    Tuning uses it if it beats the one in use.
    """
    from retune.prefect.launch import run_flow
    from retune.search.model.offline import check_trainable

    store = record_store(records)
    check_trainable(store)
    root = store.root.resolve()
    say(f"retune: training a model on the records of {root}; this takes a while ...")
    card = run_flow(lambda: _retrain(str(root), seed))
    if json:
        print_json(card)
        return
    print_line(f"model {card.name}: {card.rows:,} records of {card.networks} networks or tasks")
    print_table(
        [
            metrics_row("for networks held out", card.held_out),
            metrics_row("static estimate", card.static),
        ]
    )
    print_line(card.verdict)


def _retrain(records: str, seed: int) -> "ModelCard":
    from flows.retrain_cost_model import retrain_cost_model

    return cast("ModelCard", retrain_cost_model(records, seed))


@app.command("evaluate")
def evaluate(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of a model. Default: the newest.")
    ] = None,
    records: Records = None,
    json: Json = False,
) -> None:
    """Evaluate how a model orders the candidates that were measured after its training."""
    from retune.search.model.offline import evaluate_model

    found = evaluate_model(record_store(records), name)
    if json:
        print_json(found)
    else:
        print_table([metrics_row(key, metrics) for key, metrics in found.items()])


@app.command("list")
def list_models(records: Records = None, json: Json = False) -> None:
    """List the models, and which one is in use."""
    from retune.search.model.features import VERSION
    from retune.search.model.registry import model_in_use, registered

    root = record_store(records).root
    cards, present = registered(root), model_in_use(root, VERSION)
    if json:
        print_json([{**asdict(card), "current": card == present} for card in cards])
    else:
        print_table(model_rows(cards), "registered models")
        print_line(_in_use(present))


@app.command("rollback")
def rollback(records: Records = None, json: Json = False) -> None:
    """Use the model before the current one again."""
    from retune.search.model.features import VERSION
    from retune.search.model.registry import rollback_model

    present = rollback_model(record_store(records).root, VERSION)
    if json:
        print_json(present)
    else:
        print_line(_in_use(present))


def _in_use(card: "ModelCard | None") -> str:
    return f"in use: model {card.name}" if card else "in use: none, but the static estimate"
