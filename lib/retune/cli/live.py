"""Live progress of a run's tasks: events as a table, or as one line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from retune.cli.console import cell
from retune.core.results import TaskResult
from retune.pipeline.results import TuneEvent

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]

_FRAME_LINES = 9
"""Lines of the table beside its tasks: title, head, rules, sum, where the cursor stands."""


def standing_rows(event: TuneEvent) -> list[Row]:
    """One row for each task, the costliest first; those never right stand before all others.

    `id` is the task's position in the network, `total us` its weight times its latency.
    """
    numbered = sorted(enumerate(event.tasks, 1), key=lambda pair: -_cost(pair[1]))
    return [
        {
            "next": ">" if task.entry.key == event.next_key else "",
            "id": number,
            "task": task.entry.name,
            "weight": task.entry.weight,
            "latency us": task.best_us,
            "GFLOPS": task.gflops,
            "trials": task.trials,
            "total us": None if task.best_us is None else task.best_us * task.entry.weight,
        }
        for number, task in numbered
    ]


def network_text(tasks: Sequence[TaskResult]) -> str:
    """The sum of weight times latency, and how many tasks it lacks, as they were never right."""
    costs = [_cost(task) for task in tasks if task.best_us is not None]
    if not costs:
        return f"network not known yet: none of {len(tasks)} tasks has a right trial"
    missing = len(tasks) - len(costs)
    lacking = f" without {missing} of {len(tasks)} tasks" if missing else ""
    return f"network {sum(costs):,.1f} us{lacking}"


def standing_line(event: TuneEvent) -> str:
    """The event as one line, with the network's sum, the budget and the next task."""
    if not event.tasks:
        return event.text
    following = next((t.entry.name for t in event.tasks if t.entry.key == event.next_key), "none")
    return f"{event.text} | {network_text(event.tasks)} | {_spent(event)} | next {following}"


def standing_table(event: TuneEvent, height: int) -> "Table":
    """The rows as a table of at most `height` lines; the task that is next is always among them."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    rows = standing_rows(event)
    shown = _fitting(rows, max(1, height - _FRAME_LINES))
    hidden = f"; {len(rows) - len(shown)} cheaper tasks not shown" if len(shown) < len(rows) else ""
    table = Table(
        title=event.text,
        title_justify="left",
        caption=f"{network_text(event.tasks)}, {_spent(event)}{hidden}",
        caption_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    for name in shown[0]:
        wide = name in ("next", "task")
        table.add_column(name, justify="left" if wide else "right", no_wrap=True)
    for row in shown:
        table.add_row(*map(cell, row.values()), style="bold" if row["next"] else None)
    return table


class LiveTable:
    """The table of the latest event, redrawn in place on a terminal.

    It is drawn by the thread that calls `show`, between batches, so nothing runs beside a
    measurement.
    """

    def __init__(self, stream: TextIO) -> None:
        """Draws nothing yet."""
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False)
        self._live.start()

    def show(self, event: TuneEvent) -> None:
        """Draws the event's tasks instead of what was drawn before."""
        self._live.update(standing_table(event, self._console.height), refresh=True)

    def say(self, text: str) -> None:
        """One line above the table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leaves the last table where it is, and the cursor below."""
        self._live.stop()


def _fitting(rows: list[Row], count: int) -> list[Row]:
    """The first rows; the last of them makes room for the next task if that is not among them."""
    following = [row for row in rows[count:] if row["next"]]
    return rows[: count - len(following)] + following


def _spent(event: TuneEvent) -> str:
    return f"{event.spent:.0%} of the budget"


def _cost(task: TaskResult) -> float:
    return float("inf") if task.best_us is None else task.best_us * task.entry.weight
