"""Legal values of integer inputs, where the graph alone does not tell: the oracle does.

Read `legal_ranges`. An input may hold lengths of sequences, sizes, divisors or flags; onnxruntime
refuses values that are none. Ranges are tried from the widest to the narrowest.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from retune.bundle.runtime.module import random_inputs
from retune.bundle.verify.peers import Predict
from retune.core.dtypes import TensorType
from retune.core.errors import InputError
from retune.device.measure.inputs import BYTES, INDEX_RANGE

Ranges = Mapping[str, tuple[int, int]]
"""Input -> its least and its greatest value."""


def legal_ranges(
    oracle: Predict,
    types: Mapping[str, TensorType],
    counts: Mapping[str, int],
    least: Mapping[str, int],
    values: Mapping[str, Sequence[int]] | None = None,
) -> dict[str, tuple[int, int]]:
    """The ranges of inputs that neither have `counts` nor take what retune gives by default.

    None of them is below `least`; those with stated `values` have these. Raises: InputError if the
    oracle takes none.
    """
    known = {name: (least.get(name, 0), count - 1) for name, count in counts.items()}
    free = [n for n, t in types.items() if not t.dtype.is_float and t.dtype not in BYTES]
    values = values or {}
    free = [name for name in free if name not in known and name not in values]
    refusal: Exception | None = None
    for low, high in _candidates(types) if free else ():
        ranges = {n: (max(low, least.get(n, 0)), max(high, least.get(n, 0))) for n in free}
        try:
            for feeds in _trials(types, {**known, **ranges}, free, values):
                oracle(feeds)
        except InputError as error:
            refusal = refusal or error
            continue
        return ranges if refusal else {}
    if refusal is None:
        return {}
    raise InputError(
        f"{', '.join(free)}: expected integers that the network takes; none of retune's own "
        f"samples is accepted ({refusal}); give samples with --samples data.npz"
    )


def _candidates(types: Mapping[str, TensorType]) -> Iterator[tuple[int, int]]:
    yield INDEX_RANGE
    least, most = INDEX_RANGE
    extents = sorted({e for t in types.values() for e in t.shape if 1 < e <= most}, reverse=True)
    yield from ((least + 1, high) for high in (most, *extents, 1))
    yield from ((0, 1), (0, 0))


def _trials(
    types: Mapping[str, TensorType],
    ranges: Ranges,
    free: list[str],
    values: Mapping[str, Sequence[int]],
) -> Iterator[dict[str, np.ndarray]]:
    """Samples of the ranges, and those whose free inputs are all at one end."""
    counts = {name: high + 1 for name, (_, high) in ranges.items()}
    least = {name: low for name, (low, _) in ranges.items()}
    feeds = random_inputs(types, 0, counts, least, values)
    yield feeds
    for end in (0, 1):
        yield {n: np.full_like(a, ranges[n][end]) if n in free else a for n, a in feeds.items()}
