"""What tests of registry share with others."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from retune.search.model.cost_model import OfflineModel
from retune.search.model.registry import (
    Metrics,
    ModelCard,
    model_in_use,
    write_model,
)

START = datetime(2026, 1, 1, tzinfo=UTC)

METRICS = Metrics(tasks=1, rank_correlation=0.5, peak1=0.5, peak5=0.5)


def register(
    root: Path, number: int, *, better: bool = True, feature_set: str = "1", trust: float = 0.6
) -> None:
    """A model of so many days after START."""
    card = ModelCard(
        number=number,
        created=(START + timedelta(days=number)).isoformat(timespec="seconds"),
        feature_set=feature_set,
        rows=1,
        networks=1,
        classes=("cpu",),
        data="",
        until="",
        held_out=replace(METRICS, rank_correlation=trust),
        static=METRICS,
        beats="something" if better else "",
        in_use=better,
    )
    write_model(root, card, OfflineModel(members=("{}",), name=card.name))


def in_use(root: Path, day: float | None = None, feature_set: str = "1") -> str | None:
    moment = None if day is None else START + timedelta(days=day)
    card = model_in_use(root, feature_set, moment)
    return card and card.name
