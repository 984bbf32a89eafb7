"""What the cost model knows of a candidate: see `FEATURES`, and `featurise` for their values."""

from retune.search.model.features.vectors import COLUMN, FEATURES, VERSION, Feature, featurise

__all__ = ["COLUMN", "FEATURES", "VERSION", "Feature", "featurise"]
