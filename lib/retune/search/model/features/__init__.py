"""Features of candidates for the cost model: names in `FEATURES`, values by `featurise`."""

from retune.search.model.features.vectors import COLUMN, FEATURES, VERSION, Feature, featurise

__all__ = ["COLUMN", "FEATURES", "VERSION", "Feature", "featurise"]
