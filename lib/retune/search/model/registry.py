"""Registered offline models: a folder for each, beside the records that they were trained on.

    models/0001/card.json       what it was trained on, and how good it is
    models/0001/member-0.json   one model of the ensemble, in xgboost's JSON
    models/history.json         which were in use, one after the other, see core.succession

A folder appears whole or not at all, and is never changed. A model whose card says `in_use` is in
use from the moment at which its folder appears, until a better one is, or until it is taken back.
"""

import json
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

from retune.core.errors import InputError, LookupFailed, RecordError
from retune.core.locking import exclusive
from retune.core.replacing import whole_folder
from retune.core.succession import Change, Succession, read_succession, write_succession
from retune.search.model.cost_model import OfflineModel

FOLDER = "models"
_HISTORY = "history.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How well predictions order the candidates of each task."""

    tasks: int
    rank_correlation: float
    """Spearman's, mean over the tasks."""
    peak1: float
    """TenSet's: the tasks' best times summed, over those of their best predicted candidates."""
    peak5: float
    """The same with the fastest of the five best predicted."""

    def exceed(self, other: "Metrics") -> bool:
        """Whether these predictions order better, and their first choices are at least as fast."""
        return self.rank_correlation > other.rank_correlation and self.peak1 >= other.peak1

    def exceed_estimate(self, static: "Metrics") -> bool:
        """Whether they are better than none: they order candidates, and better than the estimate
        whose metrics these are."""
        return self.rank_correlation > 0.0 and self.exceed(static)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What is known of a registered model."""

    number: int
    created: str
    """ISO time, UTC."""
    feature_set: str
    rows: int
    networks: int
    classes: tuple[str, ...]
    """Device classes that the rows are of."""
    data: str
    """Content key of the rows' record ids."""
    until: str
    """When the newest of the rows was measured: later ones are new to the model."""
    held_out: Metrics
    """Of predictions for networks that the predicting model had not seen."""
    static: Metrics
    """Of the static estimate, on the same rows."""
    beats: str
    """What it was better than: a model's name, or the static estimate; empty if it was not."""
    in_use: bool
    """True if it was promoted as it was made; `model_in_use` says which one is in use now."""

    @property
    def name(self) -> str:
        """Its folder's name."""
        return f"{self.number:04d}"

    @property
    def trust(self) -> float:
        """How far it is trusted: its rank correlation on networks that it had not seen."""
        return self.held_out.rank_correlation

    @property
    def trusted(self) -> bool:
        """Whether it is better than none, on networks that it had not seen."""
        return self.held_out.exceed_estimate(self.static)

    @property
    def verdict(self) -> str:
        """Whether it was promoted as it was made, and why."""
        if self.in_use:
            return f"in use: it beats {self.beats}"
        lacking = "the model in use" if self.trusted else "the static estimate"
        return f"not in use: it does not beat {lacking} in both rank correlation and peak@1"


def registered(root: Path) -> list[ModelCard]:
    """The cards of all models beside the records at `root`, oldest first.

    Raises: RecordError for a card that cannot be read.
    """
    return [_read_card(path) for path in sorted((root / FOLDER).glob("[0-9]*/card.json"))]


def card_named(root: Path, name: str) -> ModelCard:
    """The model's card. Raises: LookupFailed naming the models there are."""
    cards = {card.name: card for card in registered(root)}
    if name not in cards:
        known = ", ".join(cards) or "none; `retune model train` makes one"
        raise LookupFailed(f"no model {name!r} beside the records in {root}; there are: {known}")
    return cards[name]


def model_in_use(root: Path, feature_set: str, moment: datetime | None = None) -> ModelCard | None:
    """The model of these features that was promoted last, is trusted, and was not taken back.

    Earlier versions promoted models that ordered nothing: those are passed over.
    With a moment: the one that was in use then.
    """
    cards = registered(root)
    history = _history(root, cards)
    line = (history.until(moment) if moment else history).line
    fitting = (card for card in cards if card.feature_set == feature_set and card.trusted)
    known = {card.number: card for card in fitting}
    return next((known[number] for number in reversed(line) if number in known), None)


def rollback_model(root: Path, feature_set: str) -> ModelCard | None:
    """The model in use is taken back; gives the one in use from now on, which was before it.

    None: none was. What runs goes on with the model that it began with. Raises: InputError if no
    model of these features is in use.
    """
    with exclusive(root / FOLDER / ".lock"):
        present = model_in_use(root, feature_set)
        if present is None:
            raise InputError(
                f"{root}: expected a cost model in use to take back, got none; tuning goes by the "
                "static estimate, and `retune model train` makes a model"
            )
        history = _history(root, registered(root))
        before = history.line[: history.line.index(present.number)]
        now = datetime.now(UTC).isoformat()
        history = history.taken_back(before[-1] if before else None, now)
        write_succession(root / FOLDER / _HISTORY, history)
        return model_in_use(root, feature_set)


def _history(root: Path, cards: list[ModelCard]) -> Succession:
    """Every change of the model in use.

    The file lacks promotions whose process was killed before it told the file, and those of a
    retune that knew no such file: they came after all that it holds, and the cards have them.
    """
    stored = read_succession(root / FOLDER / _HISTORY) or Succession()
    told = {change.number for change in stored.changes}
    untold = (
        Change(number=card.number, when=card.created)
        for card in cards
        if card.in_use and card.number not in told
    )
    return Succession(changes=(*stored.changes, *untold))


def stored_model(root: Path, card: ModelCard) -> OfflineModel:
    """The model that the card describes. Raises: RecordError if its files are gone."""
    folder = root / FOLDER / card.name
    paths = sorted(folder.glob("member-*.json"), key=lambda p: int(p.stem.split("-")[1]))
    members = tuple(path.read_text(encoding="utf-8") for path in paths)
    if not members:
        raise RecordError(f"{folder}: holds no model; delete the folder and train again")
    return OfflineModel(members=members, name=card.name, trust=card.trust)


def write_model(root: Path, card: ModelCard, model: OfflineModel) -> Path:
    """The model's folder, complete; the model is in use if its card says so.

    Raises: RecordError if another process has just registered a model of that number.
    """
    folder = root / FOLDER / card.name
    with exclusive(root / FOLDER / ".lock"):
        try:
            with whole_folder(folder, replace=False) as fresh:
                for number, text in enumerate(model.members):
                    (fresh / f"member-{number}.json").write_text(text, encoding="utf-8")
                text = json.dumps(asdict(card), indent=1, allow_nan=False)
                (fresh / "card.json").write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            if not folder.exists():
                raise
            raise RecordError(
                f"{folder}: another process has registered this model already; train again"
            ) from error
        write_succession(root / FOLDER / _HISTORY, _history(root, registered(root)))
    return folder


def _read_card(path: Path) -> ModelCard:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name: data[f.name] for f in fields(ModelCard)}
        known["classes"] = tuple(known["classes"])
        for name in ("held_out", "static"):
            known[name] = Metrics(**known[name])
        return ModelCard(**known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: is not a model's card ({error}); delete its folder and train again"
        ) from error
