"""A cost model of your own from the record store, in a dozen lines of pandas and xgboost.

    .venv/bin/python examples/train_cost_model.py [STORE]

Trains on all networks but one, and says how well it orders that one's candidates. `retune model
train` does this for every network in turn, and registers a model that tuning then uses.
"""

import sys

import numpy as np
import xgboost

import retune.records


def main() -> None:
    """Prints the rank correlation for each task of the network that was held out."""
    store = sys.argv[1] if len(sys.argv) > 1 else None
    rows = retune.records.load(store, columns=["model", "task_key", "median_us", "features"])
    rows = rows[(rows["features"].str.len() > 0) & rows["median_us"].notna()].astype(
        {"median_us": float}
    )
    rows["score"] = rows.groupby("task_key")["median_us"].transform("min") / rows["median_us"]
    held = rows["model"] == rows["model"].iloc[-1]
    seen = ~held & ~rows["task_key"].isin(rows.loc[held, "task_key"])
    features = np.stack(rows["features"].tolist())
    model = xgboost.XGBRegressor(n_estimators=100, max_depth=6, learning_rate=0.15)
    model.fit(features[seen], rows.loc[seen, "score"])
    rows["predicted"] = model.predict(features)
    print("rank correlation on the network held out")
    for task, some in rows[held].groupby("task_key"):
        print(task, len(some), round(some["predicted"].corr(some["score"], method="spearman"), 2))


if __name__ == "__main__":
    main()
