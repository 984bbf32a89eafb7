"""Offline models: trained on the whole record store, judged on networks that they have not seen.

`train` cross-validates, trains, and registers the result beside the records; `offline_model` gives
tuning the newest registered model that proved better than the one in use before it. Models are
JSON: loading one executes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retune.core.errors import InputError
from retune.core.keys import content_key
from retune.core.target import DeviceSpec
from retune.records.conditions import group
from retune.records.cost import COST_COLUMNS, recorded_costs
from retune.records.store import RecordStore
from retune.search.model.cost_model import (
    LOSS,
    CostModel,
    Loss,
    OfflineModel,
    static_score,
    train_offline,
)
from retune.search.model.features import COLUMN, VERSION
from retune.search.model.ranks import rank_correlation
from retune.search.model.registry import (
    Metrics,
    ModelCard,
    card_named,
    model_in_use,
    registered,
    stored_model,
    write_model,
)
from retune.search.model.replayed import COLUMNS as REPLAYED
from retune.search.model.replayed import refeaturised

if TYPE_CHECKING:
    from retune.records import Table

_FOLDS = 5
"""Networks are held out in this many turns at most."""
_LEAST_OUTCOMES = 8
"""Candidates that a task must have for its ranking to say something."""
_LEAST_UNSEEN = 64
"""Rows, new to the model in use, on which a challenger is compared with it."""


@dataclass(frozen=True, eq=False, slots=True)
class Rows:
    """Recorded candidates with today's features. All arrays have n rows."""

    features: np.ndarray
    """float32 [n, len(FEATURES)]"""
    cost: np.ndarray
    """See `records.cost`. float64; NaN for a failure."""
    task: np.ndarray
    """int64: equal for the same task under the same conditions, or where those are unknown on the
    same device."""
    network: np.ndarray
    """int64: equal for rows that are held out together."""
    record_id: np.ndarray
    time: np.ndarray
    """datetime64[us], UTC: when it was measured."""

    def __len__(self) -> int:
        return len(self.task)

    def take(self, which: np.ndarray) -> "Rows":
        """The chosen rows, by index or mask."""
        return Rows(
            self.features[which],
            self.cost[which],
            self.task[which],
            self.network[which],
            self.record_id[which],
            self.time[which],
        )

    @property
    def score(self) -> np.ndarray:
        """Throughput over that of the task's best row; 0 for a failure. float64 [n]"""
        best = np.full(self.task.max(initial=-1) + 1, np.inf)
        np.fmin.at(best, self.task, self.cost)
        return np.nan_to_num(best[self.task] / self.cost)


def load_rows(store: RecordStore) -> Rows:
    """Every right or failed candidate that was recorded with today's features, or replays.

    Networks are told apart by the model that a record names; in a store of one network, its tasks
    are.
    """
    frame = _featured(store)
    frame = frame.loc[~frame["status"].isin(["skipped", "timeout", "crash"]).to_numpy(bool)]
    known = frame["conditions"].to_numpy(object, na_value=None)  # pyrefly: ignore[no-matching-overload]
    owners = (one or device for one, device in zip(known, frame["device"], strict=True))
    keys = np.array([group(*pair) for pair in zip(frame["task_key"], owners, strict=True)])
    models = frame["model"].to_numpy(str)
    task = np.unique(keys, return_inverse=True)[1].astype(np.int64)
    several = len(set(models)) > 1
    network = np.unique(models if several else keys, return_inverse=True)[1].astype(np.int64)
    costs = recorded_costs(frame)[1]
    features = np.array(frame["features"].to_list(), np.float32).reshape(-1, len(COLUMN))
    ids, stamps = frame["record_id"].to_numpy(str), frame["timestamp"].to_numpy("datetime64[us]")
    return Rows(features, costs, task, network, ids, stamps)


def _featured(store: RecordStore) -> "Table":
    """The rows of searches, with today's features: as recorded, or computed again."""
    about = ["record_id", "model", "task_key", "device", "conditions", "timestamp"]
    columns = [*COST_COLUMNS, *about, "features", "feature_set"]
    versions = set(store.scan(None, ["feature_set"])["feature_set"].dropna()) - {""}
    if versions <= {VERSION}:
        return store.scan({"feature_set": VERSION}, columns)
    columns = list(dict.fromkeys([*columns, *REPLAYED]))
    frame = store.scan({"feature_set": sorted(versions)}, columns)
    old = (frame["feature_set"] != VERSION).to_numpy(bool)
    features = np.empty(len(frame), object)
    features[~old] = frame["features"].to_numpy(object)[~old]
    for number, row in zip(
        np.flatnonzero(old), refeaturised(store.root, frame.loc[old]), strict=True
    ):
        features[number] = row if np.isfinite(row).all() else None
    frame["features"] = features
    return frame.loc[frame["features"].notna()]


def judge(rows: Rows, predicted: np.ndarray) -> Metrics:
    """Metrics over the tasks that have some right candidates and enough outcomes.

    Raises: InputError if there is no such task.
    """
    ranks, best, first, fifth = [], 0.0, 0.0, 0.0
    for task in np.unique(rows.task):
        mine = np.flatnonzero(rows.task == task)
        times = rows.cost[mine]
        if len(mine) < _LEAST_OUTCOMES or np.isnan(times).all():
            continue
        times = np.where(np.isnan(times), np.nanmax(times), times)  # a failure is no faster
        order = np.argsort(-predicted[mine], kind="stable")
        ranks.append(rank_correlation(predicted[mine], -times))
        best += times.min()
        first += times[order[0]]
        fifth += times[order[:5]].min()
    if not ranks:
        raise InputError(
            f"no task has {_LEAST_OUTCOMES} recorded candidates with features of version "
            f"{VERSION}; tune something first"
        )
    return Metrics(
        tasks=len(ranks),
        rank_correlation=float(np.mean(ranks)),
        peak1=float(best / first),
        peak5=float(best / fifth),
    )


Answer = Callable[[OfflineModel, Rows], np.ndarray]
"""What is asked of a model for some rows. float64 [n]"""


def predictions(model: OfflineModel, rows: Rows) -> np.ndarray:
    """The scores that tuning expects with a model. float64 [n]"""
    return CostModel(0, model).predict(rows.features).mean


def cross_validate(
    rows: Rows, seed: int, loss: Loss = LOSS, answer: Answer = predictions
) -> np.ndarray:
    """Answers for each row by a model that saw neither its network nor its task. float64 [n]

    Raises: InputError if all rows are of one network.
    """
    networks = np.unique(rows.network)
    if len(networks) < 2:
        raise InputError("the records are of one task only; tune a second one to train a model")
    order = np.random.default_rng(seed).permutation(networks)
    predicted = np.zeros(len(rows))
    for held in np.array_split(order, min(_FOLDS, len(order))):
        out = np.isin(rows.network, held)
        seen = rows.take(~out & ~np.isin(rows.task, rows.task[out]))
        predicted[out] = answer(_train(seen, seed, loss=loss), rows.take(out))
    return predicted


def _train(rows: Rows, seed: int, name: str = "", loss: Loss = LOSS) -> OfflineModel:
    return train_offline(rows.features, rows.score, rows.task, seed, name, loss)


def check_trainable(store: RecordStore) -> None:
    """Holds after the call: the store has records with features. Raises: InputError."""
    if not set(store.scan(None, ["feature_set"])["feature_set"].dropna()) - {""}:
        raise _nothing_known(store)


def _nothing_known(store: RecordStore) -> InputError:
    return InputError(
        f"{store.root}: no record has features of version {VERSION}; run `retune tune` first"
    )


def train(store: RecordStore, seed: int = 0) -> ModelCard:
    """A new registered model of all records; in use from now on if it beats the one before.

    It does if, on rows that the model in use has not seen, its cross-validated predictions rank
    the candidates better, and their first choices are as fast. Any model has to be better than the
    static estimate in both.

    Raises: InputError if there are too few records.
    """
    rows = load_rows(store)
    if not len(rows):
        raise _nothing_known(store)
    held_out = cross_validate(rows, seed)
    metrics, static = judge(rows, held_out), judge(rows, static_score(rows.features))
    number = 1 + max((card.number for card in registered(store.root)), default=0)
    beats = _beaten(store, rows, held_out) if metrics.exceed_estimate(static) else None
    card = ModelCard(
        number=number,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        feature_set=VERSION,
        rows=len(rows),
        networks=len(np.unique(rows.network)),
        classes=_classes(rows),
        data=content_key(sorted(rows.record_id.tolist())),
        until=str(rows.time.max()),
        held_out=metrics,
        static=static,
        beats=beats or "",
        in_use=beats is not None,
    )
    write_model(store.root, card, _train(rows, seed, card.name))
    return card


def _beaten(store: RecordStore, rows: Rows, held_out: np.ndarray) -> str | None:
    """What the new model, which is better than none, replaces; None if nothing."""
    present = model_in_use(store.root, VERSION)
    if present is None:
        return "the static estimate"
    new = unseen(rows, present)
    if new.sum() < _LEAST_UNSEEN:
        return None  # nothing to judge by: the one in use has seen all of it
    before = judge(rows.take(new), predictions(stored_model(store.root, present), rows.take(new)))
    after = judge(rows.take(new), held_out[new])
    return present.name if after.exceed(before) else None


def unseen(rows: Rows, card: ModelCard) -> np.ndarray:
    """The rows that were measured after the model was trained. bool [n]"""
    return rows.time > np.datetime64(card.until)


def offline_model(
    root: Path, spec: DeviceSpec, began: datetime | None = None
) -> OfflineModel | None:
    """The registered model in use for devices of this class; None where there is none.

    A run that began at some time goes on with the model of that time. Models of other features
    than today's are passed over: `retune model train` makes a new one.
    """
    card = model_in_use(root, VERSION, began)
    if card is None or spec.device_class not in card.classes:
        return None
    return stored_model(root, card)


def _classes(rows: Rows) -> tuple[str, ...]:
    gpu = rows.features[:, COLUMN["device.is_gpu"]] > 0
    return tuple(name for name, some in (("cpu", (~gpu).any()), ("gpu", gpu.any())) if some)


def evaluate_model(store: RecordStore, name: str | None = None) -> dict[str, Metrics]:
    """Metrics of a registered model and of the static estimate, on rows that are new to it.

    Without a name: the newest model. Raises: LookupFailed for another name; InputError if the
    store has no new rows.
    """
    cards = registered(store.root)
    card = cards[-1] if cards and name is None else card_named(store.root, name or "newest")
    rows = load_rows(store)
    rows = rows.take(unseen(rows, card))
    if not len(rows):
        raise InputError(
            f"model {card.name}: no record is newer than it; it was trained on all of them "
            "(`retune model list` shows how it did on held-out networks)"
        )
    return {
        f"model {card.name}": judge(rows, predictions(stored_model(store.root, card), rows)),
        "static estimate": judge(rows, static_score(rows.features)),
    }
