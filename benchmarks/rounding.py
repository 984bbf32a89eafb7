"""How far roundings alone move what a network makes: what a deviation has to be held against.

A deep network may make much of little. A copy of it whose values are all off by their last bits
comes to other outputs, and so does any two programs' order of sums: timm's rexnet_100 with random
weights turns 2**-22 of each value into 0.0001 to 0.002 of the range of its scores, and numpy's,
onnxruntime's and retune's float32 are all up to 0.0001 of it or more from float64. Read
`moved_by_rounding`; `agrees` is the verdict of the surveys.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.bundle.verify.compare import TOLERANCE, compare
from retune.graph.evaluate import run_parts
from retune.graph.graph import Graph
from retune.ops import Array

_ROUNDING = 2.0**-22
"""What is added to each value, normally distributed: as a part of the root of its mean square.

That is what float32's rounding makes of sums of some hundred products, in any order: layers of
rexnet_100 on PoCL, each compared with float64 by itself, are off by 1e-7 to 8e-7 of it."""
_RUNS = 4


def moved_by_rounding(graph: Graph, inputs: Mapping[str, Array], seed: int = 0) -> float:
    """The largest deviation, as a part of an output's range, among runs whose values are rounded.

    Each float that a node makes is changed by about as much as the order of a sum changes it. The
    same seed gives the same.
    """
    rng = np.random.default_rng(seed)

    def change(_: str, arrays: Sequence[Array]) -> Sequence[Array]:
        exact, *others = arrays
        if exact.dtype.kind != "f" or not exact.size:
            return arrays
        step = _ROUNDING * np.sqrt(np.mean(np.square(exact, dtype=np.float64)))
        return [
            exact,
            *((a + step * rng.standard_normal(a.shape)).astype(exact.dtype) for a in others),
        ]

    exact, *others = run_parts(graph, [inputs] * (1 + _RUNS), change)
    found = (
        compare(n, run[n], array).max_rel_range for run in others for n, array in exact.items()
    )
    return max((deviation for deviation in found if np.isfinite(deviation)), default=0.0)


def agrees(deviation: float, moved: float = 0.0) -> bool:
    """Whether outputs are as near as those of a network have to be that roundings move so far."""
    return deviation <= max(TOLERANCE, moved)
