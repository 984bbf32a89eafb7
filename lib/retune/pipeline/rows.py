"""Finished runs and trained models as rows and lines, for the console, JSON and the Prefect UI."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from retune.core.quantities import time_text
from retune.core.results import Latency, TaskResult, VerifyResult
from retune.pipeline.results import TuneResult

if TYPE_CHECKING:
    from retune.search.model.registry import Metrics, ModelCard

Row = dict[str, Any]
PRINTED = tuple(
    each.name
    for each in fields(TuneResult)
    if each.name not in ("verified", "published", "max_error", "largest_error")
)
"""Fields of a result that `--json` prints under their own names."""


def task_rows(result: TuneResult) -> list[Row]:
    """One row for each task, the costliest first."""
    return [_task_row(task) for task in result.tasks]


def match_rows(result: TuneResult) -> list[Row]:
    """One row for each kind of match that tasks had with existing records, the most first."""
    matches = Counter(task.match for task in result.tasks if task.match is not None)
    return [
        {"match": match.kind, "whose": match.level or None, "tasks": count, "why": match.why}
        for match, count in matches.most_common()
    ]


def latency_lines(result: TuneResult) -> list[str]:
    """One line for each contender, with its ratio to the tuned bundle; at each of the sizes."""
    if not result.sizes:
        return _latency_lines(result.latency)
    return [f"{each.sizes}: {line}" for each in result.sizes for line in _latency_lines(each.rows)]


def _latency_lines(rows: Sequence[Latency]) -> list[str]:
    tuned = next((row.median_us for row in rows if row.name == "tuned"), None)
    return [_latency_line(row, tuned) for row in rows]


def result_data(result: TuneResult) -> Row:
    """The whole result as plain data, for `--json`."""
    verified = result.verified
    checked = {each.name: getattr(verified, each.name) for each in fields(VerifyResult)}
    errors = {"max_error": result.max_error, "largest_error": result.largest_error}
    return {
        **{name: getattr(result, name) for name in PRINTED},
        "statuses": dict(result.statuses),
        "tasks": task_rows(result),
        "sizes": [{"sizes": each.sizes, "latency": each.rows} for each in result.sizes],
        "failed": dict(result.failed),
        "verification": {**checked, "used": verified.share, **errors},
    }


def _task_row(task: TaskResult) -> Row:
    entry = task.entry
    return {
        "task": entry.name,
        "op": "+".join((entry.op, *entry.epilogue)),
        "output": "x".join(map(str, entry.output_shape)),
        "weight": entry.weight,
        "mflop": round(entry.flops / 1e6, 3),
        "trials": task.trials,
        "failed": task.failed,
        "best_us": None if task.best_us is None else round(task.best_us, 2),
        "gflops": None if task.gflops is None else round(task.gflops, 1),
        "total_us": None if task.best_us is None else round(task.best_us * entry.weight, 2),
        "expected_percent": _percent(task.expected),
        "gained_percent": _percent(task.gained),
        "further_percent": _percent(task.further),
        "records": task.match.text if task.match else None,
    }


def _percent(part: float | None) -> float | None:
    return None if part is None else round(100 * part, 1)


def _latency_line(row: Latency, tuned: float | None) -> str:
    text = f"{row.name}: {time_text(row.median_us)}"
    text += f" (quartiles {time_text(row.p25_us)} to {time_text(row.p75_us)})"
    if tuned and row.name != "tuned":
        text += f", {row.median_us / tuned:.2f} x the tuned bundle's time"
    return text


def metrics_row(what: str, metrics: "Metrics") -> Row:
    """The metrics of predictions: how well they ordered the candidates."""
    return {
        "predictions": what,
        "tasks": metrics.tasks,
        "rank correlation": round(metrics.rank_correlation, 3),
        "peak@1": round(metrics.peak1, 3),
        "peak@5": round(metrics.peak5, 3),
    }


def model_rows(cards: "Sequence[ModelCard]") -> list[Row]:
    """One row for each registered model, with its metrics on held-out networks."""
    return [
        {
            "model": card.name,
            "created": card.created,
            "records": card.rows,
            "networks": card.networks,
            **{k: v for k, v in metrics_row("", card.held_out).items() if k != "predictions"},
            "trusted": "yes" if card.trusted else "no",
            "beats": card.beats or "-",
        }
        for card in cards
    ]
