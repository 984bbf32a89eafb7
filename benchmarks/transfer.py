"""A cost model on a device that it has not seen, trained on the records of other devices.

    python -m benchmarks.transfer --records artifacts/records [--records OTHER] [--seeds 3]

For each device of the record stores: how well candidates that were measured there are ranked by the
static estimate alone (no model), by a model of all other devices' records, by one that takes these
for this device's (so that the features `device.*` tell it nothing), and by a model of this device's
own records of other networks, which is what tuning on it would bring. The rank correlation, and how
much of the best time the model's first choice and the best of its first five reach, over tasks with
at least eight candidates. Networks are not held out from other devices: a farm's next board gets
the networks that the first one has.

Records of a second device come from tuning there, such as on Intel's CPU runtime (`pip install
intel-opencl-rt intel-cmplr-lib-rt`), with `--tuner random`, so that no model chose them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.command import parser_of
from retune.core.errors import InputError
from retune.records.store import RecordStore
from retune.search.model.cost_model import OfflineModel, static_score, train_offline
from retune.search.model.features import FEATURES, VERSION
from retune.search.model.offline import Rows, cross_validate, judge, load_rows, predictions

OF_DEVICE = np.array([feature.name.startswith("device.") for feature in FEATURES])
"""Which features are the device's numbers. bool [len(FEATURES)]"""


@dataclass(frozen=True, eq=False, slots=True)
class DeviceRows:
    """What was measured on one device."""

    name: str
    rows: Rows


def device_rows(stores: list[Path]) -> tuple[DeviceRows, ...]:
    """The records of all stores by device. Raises: InputError for none."""
    found: dict[str, list[Rows]] = {}
    for root in stores:
        store = RecordStore(root)
        rows = load_rows(store)
        named = store.scan({"feature_set": VERSION}, ["record_id", "device"])
        device_of = dict(zip(named["record_id"], named["device"], strict=True))
        devices = np.array([device_of[record] for record in rows.record_id], str)
        for device in np.unique(devices):
            found.setdefault(str(device), []).append(rows.take(devices == device))
    if not found:
        raise InputError(f"{', '.join(map(str, stores))}: expected records with today's features")
    return tuple(DeviceRows(name, joined(parts)) for name, parts in found.items())


def joined(parts: list[Rows]) -> Rows:
    """The rows of several stores, whose tasks and networks are others in each."""
    tasks: list[np.ndarray] = []
    networks: list[np.ndarray] = []
    most_task = most_network = 0
    for part in parts:
        tasks.append(part.task + most_task)
        networks.append(part.network + most_network)
        most_task += int(part.task.max()) + 1
        most_network += int(part.network.max()) + 1
    return Rows(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.cost for part in parts]),
        np.concatenate(tasks),
        np.concatenate(networks),
        np.concatenate([part.record_id for part in parts]),
        np.concatenate([part.time for part in parts]),
    )


def alike(rows: Rows, device: np.ndarray) -> Rows:
    """The same rows, as if all were of a device with the numbers that are among these features."""
    features = rows.features.copy()
    features[:, OF_DEVICE] = device[OF_DEVICE]
    return replace(rows, features=features)


def rankings(
    unseen: DeviceRows, others: list[Rows], seed: int
) -> Iterator[tuple[str, Rows, np.ndarray]]:
    """What is asked, the rows that it is asked of, and the scores that it gives to them."""
    rows = unseen.rows
    yield "static estimate", rows, static_score(rows.features)
    if others:
        seen = joined(others)
        yield "other devices", rows, predictions(_trained(seen, seed), rows)
        blind = _trained(alike(seen, rows.features[0]), seed)
        yield "other devices, as if this", rows, predictions(blind, rows)
    if len(np.unique(rows.network)) > 1:
        yield "its own, other networks", rows, cross_validate(rows, seed)


def _trained(rows: Rows, seed: int) -> OfflineModel:
    return train_offline(rows.features, rows.score, rows.task, seed)


def main() -> None:
    """Prints a table for each device."""
    parser = parser_of(__doc__)
    parser.add_argument("--records", type=Path, action="append", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    try:
        devices = device_rows(options.records)
    except InputError as error:
        parser.error(str(error))
    for unseen in devices:
        others = [other.rows for other in devices if other is not unseen]
        found: dict[str, list[np.ndarray]] = {}
        for seed in range(options.seeds):
            for name, rows, scores in rankings(unseen, others, seed):
                told = judge(rows, scores)
                numbers = np.array([told.rank_correlation, told.peak1, told.peak5])
                found.setdefault(name, []).append(numbers)
        tasks = judge(unseen.rows, unseen.rows.score).tasks
        print(f"{len(unseen.rows)} records of {tasks} tasks: {unseen.name}")
        for name, numbers in found.items():
            rank, first, fifth = np.mean(numbers, axis=0)
            print(f"  {name:28} rank {rank:.3f}  peak@1 {first:.3f}  peak@5 {fifth:.3f}")


if __name__ == "__main__":
    main()
