"""Values of sizes that meet conditions."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from retune.core.dims import Condition, Size


def holding(conditions: Sequence[Condition], sizes: Iterable[Size]) -> Iterator[dict[str, int]]:
    """All values of the sizes that meet the conditions, the first size the slowest."""
    every = list(sizes)
    for row in product(*(size.values for size in every)):
        values = dict(zip((size.name for size in every), row, strict=True))
        if all(condition.at(values) for condition in conditions):
            yield values
