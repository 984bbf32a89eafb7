"""What tests of offline share with others."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from retune.core.target import GENERIC_CPU
from retune.ir.stmt import from_dag
from retune.records.schema import Measurement, TuningRecord
from retune.records.store import RecordStore
from retune.search.model.features import COLUMN, VERSION, featurise
from retune.targets.cpu.space import cpu_space
from tests.support.dags import conv2d

START = datetime(2026, 1, 1, tzinfo=UTC)

_SIZES = (9, 13, 17)


def records_of_curve(model: int, day: int, count: int = 60, feature_set: str = VERSION):
    """Candidates of one layer whose times the static estimate knows nothing of."""
    size = _SIZES[model]
    space = cpu_space(from_dag(conv2d(1, size, size, 24, 32)), GENERIC_CPU)
    chosen = space.sample(count, np.random.default_rng(100 * model + day))
    features = featurise(space, chosen, GENERIC_CPU)
    times = 50.0 + 40.0 * np.abs(features[:, COLUMN["main.near_depth"]] - 3.0)
    return [
        TuningRecord(
            run_id="run",
            model=f"net{model}",
            target="cpu",
            task_key=f"task{model}",
            task_name="conv2d",
            sketch="s",
            decisions=(),
            trace="{}",
            config_hash=f"{day}-{index}",
            device=GENERIC_CPU.fingerprint,
            features=tuple(row.tolist()),
            feature_set=feature_set,
            measurement=Measurement(
                status="wrong_result" if index % 10 == 9 else "ok",
                median_us=None if index % 10 == 9 else float(time),
                timestamp=START + timedelta(days=day, seconds=index),
            ),
        )
        for index, (row, time) in enumerate(zip(features, times, strict=True))
    ]


def store_of(folder: Path, day: int = 0) -> RecordStore:
    """Three networks of one layer each, measured on a day."""
    store = RecordStore(folder)
    for model in range(len(_SIZES)):
        store.append(records_of_curve(model, day))
    return store
