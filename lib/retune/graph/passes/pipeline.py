"""The graph passes, as one list, and their driver. Each keeps what a valid graph computes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from retune.core.config import knob
from retune.core.dtypes import FLOAT16
from retune.graph.graph import Graph
from retune.graph.passes.attention import fuse_attention
from retune.graph.passes.beside import products_beside
from retune.graph.passes.branches import merge_branches
from retune.graph.passes.channels_last import channels_last
from retune.graph.passes.empty import fold_empty
from retune.graph.passes.fold import dense_of_transposed, fold_scales, lower_batch_norm
from retune.graph.passes.groups import groups_of_channels
from retune.graph.passes.precision import Precision, in_precision
from retune.graph.passes.products import simplify_products
from retune.graph.passes.rows import rows_as_images
from retune.graph.passes.shared import share_equal
from retune.graph.passes.simplify import (
    canonical_arithmetic,
    fold_constants,
    join_slices,
    materialise_outputs,
    merge_pads,
    name_global_pools,
    remove_identities,
)
from retune.graph.passes.sink import sink_reshapes
from retune.graph.passes.states import own_appended
from retune.graph.passes.storage import in_compute_types
from retune.graph.passes.transposed import lower_transposed
from retune.graph.passes.wide import narrow_joins
from retune.graph.scan import with_bodies

Layout = Literal["NCHW", "NHWC"]
"""Order of the dimensions of image data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One named step."""

    name: str
    run: Callable[[Graph], Graph]
    layout: Layout | None = None
    """Only run for this layout."""
    parts: bool = False
    """Whether it writes an op as several others, which is the last thing that is done to it."""
    once: bool = False
    """Whether it converts what was imported, in the first round alone. Later passes may write what
    it made in another way, which it would convert again."""


_ENDS = (
    Pass(name="materialise-outputs", run=materialise_outputs),
    Pass(name="own-appended", run=own_appended),
)
"""What gives values that leave a network memory of their own."""
PASSES: tuple[Pass, ...] = (
    Pass(name="fold-empty", run=fold_empty),
    Pass(name="fold-constants", run=fold_constants),
    Pass(name="lower-batch-norm", run=lower_batch_norm),
    Pass(name="remove-identities", run=remove_identities),
    Pass(name="canonical-arithmetic", run=canonical_arithmetic),
    Pass(name="rows-as-images", run=rows_as_images, once=True),
    Pass(name="groups-of-channels", run=groups_of_channels),
    Pass(name="sink-reshapes", run=sink_reshapes),
    Pass(name="name-global-pools", run=name_global_pools),
    Pass(name="merge-pads", run=merge_pads),
    Pass(name="fold-scales", run=fold_scales),
    Pass(name="merge-branches", run=merge_branches),
    Pass(name="lower-transposed", run=lower_transposed, parts=True),
    Pass(name="channels-last", run=channels_last, layout="NHWC", once=True),
    Pass(name="dense-of-transposed", run=dense_of_transposed),
    Pass(name="join-slices", run=join_slices),
    Pass(name="simplify-products", run=simplify_products),
    Pass(name="share-equal", run=share_equal),
    Pass(name="narrow-joins", run=narrow_joins),
    *_ENDS,
)
"""The passes of all networks, in the order of a round. Rounds end when one changes nothing."""
MOST_ROUNDS = 10
"""Passes that undo each other would go on for ever. What a round makes is valid all the same."""
FLOAT32_PRECISION = Precision()


def optimise(
    graph: Graph,
    layout: Layout = "NHWC",
    *,
    precision: Precision = FLOAT32_PRECISION,
    whole: bool = False,
) -> Graph:
    """The graph after all passes, its image data in `layout`; inputs and outputs are unchanged.

    Bodies of loops go through the same passes, and stay in float32: their states add up errors.
    Ops that are the layers of networks stay `whole` if that is asked for: others take them apart.
    """
    inside = Precision(own=precision.own)
    graph = with_bodies(graph, lambda body: optimise(body, layout, precision=inside, whole=whole))
    before, rounds, after = _phases(layout, precision, whole)
    graph = to_fixed_point(_in_order(graph, before), rounds)
    return _in_order(graph, after)


def to_fixed_point(graph: Graph, passes: Sequence[Pass]) -> Graph:
    """The graph after rounds of the passes, or MOST_ROUNDS, until each changed nothing in turn."""
    repeated = [step for step in passes if not step.once]
    idle = 0
    for number in range(MOST_ROUNDS):
        for step in repeated if number else passes:
            last, graph = graph, _in_order(graph, [step])
            idle = idle + (not step.once) if graph is last or graph.same(last) else 0
            if idle == len(repeated):
                return graph
    return graph


def _in_order(graph: Graph, passes: Iterable[Pass]) -> Graph:
    check = knob("RETUNE_VERIFY") == "1"
    for step in passes:
        graph = step.run(graph)
        if check:
            graph.verify()
    return graph


def passes_for(layout: Layout, *, precision: Precision = FLOAT32_PRECISION) -> tuple[Pass, ...]:
    """The passes that `optimise` runs, in order."""
    return tuple(step for phase in _phases(layout, precision, whole=False) for step in phase)


def _phases(
    layout: Layout, precision: Precision, whole: bool
) -> tuple[list[Pass], list[Pass], list[Pass]]:
    """The passes before the rounds, in each round, and after them."""
    rounds = [
        step for step in PASSES if step.layout in (None, layout) and not (whole and step.parts)
    ]
    before: list[Pass] = []
    after: list[Pass] = []
    if FLOAT16 not in precision.own:
        before = [Pass(name="widen-half", run=partial(in_compute_types, own=precision.own))]
    if precision.changes:
        after = [Pass(name="precision", run=partial(in_precision, precision=precision))]
    if precision.attention:
        run = partial(fuse_attention, fusion=precision.attention)
        after += [Pass(name="attention", run=run), *_ENDS]
    if precision.beside:
        after.append(Pass(name="products-beside", run=products_beside))
    return before, rounds, after
