"""A cost model of your own from the record store, in a dozen lines of pandas and xgboost.

    .venv/bin/python examples/06_train_cost_model.py [STORE]

Trains on all networks but one, and says how well it orders that one's candidates. `retune model
train` does this for every network in turn, and registers a model that tuning then uses.
"""

import sys

import numpy as np
import xgboost

import retune.records
from retune.search.model.features import VERSION

ALIKE = ["task_name", "device", "conditions"]
"""Times compare where these are equal."""


def main() -> None:
    """Prints the rank correlation for each task of the network that was held out."""
    store = sys.argv[1] if len(sys.argv) > 1 else None
    columns = ["model", *ALIKE, "task_key", "median_us", "features"]
    rows = retune.records.load(store, columns=columns, status="ok", feature_set=VERSION)
    if rows["model"].nunique() < 2:
        sys.exit("expected records of two networks, to train on one and judge on the other")
    rows = rows.astype({"median_us": float}).fillna({"conditions": ""})  # "": of early versions
    rows["score"] = rows.groupby(ALIKE)["median_us"].transform("min") / rows["median_us"]
    held = rows["model"] == rows["model"].iloc[-1]
    seen = ~held & ~rows["task_key"].isin(rows.loc[held, "task_key"])
    features = np.stack(rows["features"].tolist())
    data = xgboost.DMatrix(features[seen], rows.loc[seen, "score"])
    model = xgboost.train({"max_depth": 6, "eta": 0.15}, data, num_boost_round=100)
    rows["predicted"] = model.predict(xgboost.DMatrix(features))
    print("rank correlation on the network held out")
    for (name, *_), some in rows[held].groupby(ALIKE):
        if len(some) > 1:
            ranks = some["predicted"].corr(some["score"], method="spearman")
            print(f"{name}: {ranks:.2f} over {len(some)} candidates")


if __name__ == "__main__":
    main()
