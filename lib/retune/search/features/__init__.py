"""What the cost model knows of a candidate: see `FEATURES`, and `featurise` for their values."""

from retune.search.features.vectors import (
    COLUMN,
    FEATURE_SET,
    FEATURES,
    VERSION,
    Feature,
    featurise,
    featurise_list,
)

__all__ = [
    "COLUMN",
    "FEATURES",
    "FEATURE_SET",
    "VERSION",
    "Feature",
    "featurise",
    "featurise_list",
]
