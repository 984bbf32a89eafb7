"""Tree ensembles: TreeEnsembleClassifier, TreeEnsembleRegressor, and TreeEnsemble of opset 5.

Read `_scores`. Two kernels compute an ensemble: one walks all trees, one adds up their leaves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retune.core.dtypes import FLOAT16, FLOAT32, INT64, Array
from retune.core.errors import ModelError
from retune.frontend.onnx.ops.ml.ensemble import LEAF, MODES, Ensemble, Nodes, masked, packed
from retune.frontend.onnx.ops.ml.scores import (
    TRANSFORMS,
    as_rows,
    best,
    labels_of,
    pair,
    put_label,
    transformed,
)
from retune.frontend.onnx.ops.registry import Emitter, OnnxNode, onnx_op
from retune.ops.trees import MISSING

ROWS = 8
"""So many rows of data fill the lanes of a vector: they lie side by side."""
_FEW, _MANY = 64, 512
"""Leaves of a tree that is compared with all its nodes, where lanes are trees and rows. Larger ones
are walked, which took as long for about 100 and 600 leaves (AMD EPYC, `benchmarks.trees`)."""
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
"""As TreeEnsemble numbers them."""
_REDUCERS = {"AVERAGE": "sum", "SUM": "sum", "MIN": "min", "MAX": "max"}
_NEUTRAL = {"sum": 0.0, "min": np.inf, "max": -np.inf}


@dataclass(frozen=True, slots=True, kw_only=True)
class Votes:
    """What leaves add to targets: one element for each pair of a leaf and a target."""

    node: Array
    target: Array
    weight: Array
    targets: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scores:
    """Values of the graph, [rows, targets]."""

    total: str
    counted: tuple[bool | str, ...]
    """For each target whether some leaf of a row says something of it: always, never, or the
    values [rows, 1] that say it."""


@onnx_op("ai.onnx.ml::TreeEnsembleRegressor")
def regressor(node: OnnxNode, emit: Emitter) -> None:
    """The leaves' weights of each target added up, or their mean, least or greatest. float32"""
    count = node.integer("n_targets", 1)
    aggregate = node.choice("aggregate_function", AGGREGATES, "SUM")
    data = as_rows(emit, node.inputs[0], wide=True)
    trees, indices = _ensemble(node, emit.type(data).dtype.numpy)
    votes = _votes(node, indices, "target", count)
    total = _aggregated(emit, data, trees, votes, aggregate)
    base = _numbers(node, "base_values", emit.type(data).dtype.numpy)
    if base.size == count:
        total = emit.temp("add", total, emit.stored("base", base.reshape(1, -1)))
    made = emit.cast(total, FLOAT32)
    emit.out("identity", _of_targets(emit, made, node.choice("post_transform", TRANSFORMS)))


@onnx_op("ai.onnx.ml::TreeEnsemble", since=5)
def ensemble(node: OnnxNode, emit: Emitter) -> None:
    """As TreeEnsembleRegressor, its leaves apart from its other nodes; the data's type stays."""
    own = emit.type(node.inputs[0]).dtype
    data = as_rows(emit, node.inputs[0], wide=True)
    aggregate = AGGREGATES[node.integer("aggregate_function", 1)]
    transform = TRANSFORMS[node.integer("post_transform", 0)]
    trees, votes = _with_leaves(node, emit.type(data).dtype.numpy)
    total = _aggregated(emit, data, trees, votes, aggregate)
    made = _of_targets(emit, total, transform)
    emit.out("identity", emit.cast(made, FLOAT16 if own == FLOAT16 else emit.type(data).dtype))


@onnx_op("ai.onnx.ml::TreeEnsembleClassifier")
def classifier(node: OnnxNode, emit: Emitter) -> None:
    """The label of the class with the greatest score, and the scores of all classes.

    Two classes are told apart as onnxruntime does: by one score where only one has weights.
    """
    labels = labels_of(node, "classlabels_int64s")
    data = as_rows(emit, node.inputs[0], wide=True)
    trees, indices = _ensemble(node, emit.type(data).dtype.numpy)
    votes = _votes(node, indices, "class", len(labels))
    scores = _scores(emit, data, trees, votes, "SUM")
    base = _numbers(node, "base_values", np.dtype(np.float32))
    transform = node.choice("post_transform", TRANSFORMS)
    if len(labels) == 2:
        index, made = _of_two(emit, scores, votes, base, transform)
        if np.unique(votes.target).size > 1:
            labels = [0, 1]  # onnxruntime's labels where both classes have weights
    else:
        index, made = _of_many(emit, scores, base, transform)
    if node.has_output(0):
        put_label(emit, labels, index)
    if node.has_output(1):
        emit.out("identity", made, index=1)


def _aggregated(emit: Emitter, data: str, trees: Ensemble, votes: Votes, aggregate: str) -> str:
    """The targets' values; 0 for those of which no leaf says something."""
    scores = _scores(emit, data, trees, votes, aggregate)
    total = scores.total
    if aggregate == "AVERAGE":
        total = emit.temp("divide", total, emit.scalar(len(trees.roots), total, "trees"))
    if aggregate in ("MIN", "MAX") and not all(counted is True for counted in scores.counted):
        size, limit = emit.temp("abs", total), emit.scalar(np.inf, total, "none")
        nothing = emit.temp("equal", size, limit, label="nothing")
        total = emit.temp("where", nothing, emit.scalar(0.0, total, "zero"), total)
    return total


def _scores(emit: Emitter, data: str, trees: Ensemble, votes: Votes, aggregate: str) -> _Scores:
    """What the leaves that the trees reach add up to."""
    if emit.shape(data)[1] < trees.features:
        raise ModelError(
            f"data of {emit.shape(data)[1]} features: the trees read {trees.features}; expected "
            "the data that the model was trained with"
        )
    groups, order = _grouped(trees, votes)
    rows, count = emit.shape(data)[0], len(trees.roots)
    columns = rows >= ROWS
    reached, nodes = _reached(emit, data, trees, order, columns)
    shape = (groups, count // groups)
    leaves = emit.reshaped(reached, (*shape, rows) if columns else (rows, *shape))

    def added(weight: Array, reducer: str, dtype: np.dtype[Any]) -> str:
        table = np.full((len(trees.splits), votes.targets), _NEUTRAL[reducer], dtype)
        if reducer == "sum":
            np.add.at(table, (votes.node, votes.target), weight)
        else:
            table[votes.node, votes.target] = weight
        if groups > 1:
            table = _of_own_target(table, votes)
        weights = emit.stored("weights", table[nodes])
        return emit.temp("leaf_sums", leaves, weights, reducer=reducer, columns=columns)

    total = added(votes.weight, _REDUCERS[aggregate], trees.limits.dtype)
    counted = _counted(trees, votes)
    if None not in counted:
        return _Scores(total=total, counted=tuple(bool(item) for item in counted))
    there = added(np.ones(len(votes.node)), "sum", np.dtype(np.float32))
    some = emit.temp("less", emit.scalar(0.0, there, "zero"), there, label="counted")
    return _Scores(
        total=total,
        counted=tuple(
            emit.part(some, 1, target, 1) if item is None else item
            for target, item in enumerate(counted)
        ),
    )


def _reached(
    emit: Emitter, data: str, trees: Ensemble, order: Array, columns: bool
) -> tuple[str, Array]:
    """Numbers of the leaves that trees in that order reach, and the node of each number.

    The numbers are [trees, rows] with `columns`, else [rows, trees].
    """
    small = masked(trees, order, _MANY if columns else _FEW)
    if small is not None:
        missing = bool(trees.flags & MISSING)
        keys = emit.temp(
            "tree_keys", emit.part(data, 1, 0, trees.features), missing=missing, columns=columns
        )
        stored = [small.features, small.limits, small.masks]
        operands = [emit.stored("trees", array) for array in stored]
        made = emit.temp("tree_exits", keys, *operands, parts=small.parts, columns=columns)
        return made, small.leaves
    stored = [trees.splits, trees.limits, trees.children, trees.roots[order]]
    operands = [emit.stored("trees", array) for array in stored]
    leaves = emit.temp("tree_leaves", data, *operands, depth=trees.depth, flags=trees.flags)
    if columns:
        leaves = emit.temp("transpose", leaves, perm=(1, 0))
    return leaves, np.arange(len(trees.splits))


def _grouped(trees: Ensemble, votes: Votes) -> tuple[int, Array]:
    """Trees in the order of their targets, as many for each; else one group of all trees.

    So it is where each tree says something of one target only, as boosted trees of several classes
    do: a leaf then has one weight.
    """
    count, order = len(trees.roots), np.arange(len(trees.roots))
    owner = trees.owner[votes.node]
    if votes.targets == 1 or np.any(owner < 0):
        return 1, order
    target = np.full(count, -1)
    target[owner] = votes.target
    if np.any(target[owner] != votes.target) or count % votes.targets:
        return 1, order
    if np.any(np.bincount(target + 1, minlength=votes.targets + 1)[1:] != count // votes.targets):
        return 1, order
    return votes.targets, np.argsort(target, kind="stable")


def _of_own_target(table: Array, votes: Votes) -> Array:
    """The column of each leaf's own target."""
    own = np.zeros(len(table), np.int64)
    own[votes.node] = votes.target
    return table[np.arange(len(table)), own].reshape(-1, 1)


def _counted(trees: Ensemble, votes: Votes) -> list[bool | None]:
    """Whether rows always, never or (None) sometimes reach a leaf that has weights of a target."""
    owned = trees.owner[trees.leaves]
    expected = np.bincount(owned[owned >= 0], minlength=len(trees.roots))
    apart = np.all(owned >= 0)  # else a tree may reach leaves that are not among these
    found: list[bool | None] = []
    for target in range(votes.targets):
        nodes = np.unique(votes.node[votes.target == target])
        if not nodes.size:
            found.append(False)
            continue
        owner = trees.owner[nodes]
        there = np.bincount(owner[owner >= 0], minlength=len(trees.roots))
        found.append(True if apart and np.any((there == expected) & (expected > 0)) else None)
    return found


def _of_targets(emit: Emitter, total: str, transform: str) -> str:
    """The transform of several targets; of one only PROBIT, as onnxruntime has it."""
    if emit.shape(total)[1] == 1 and transform != "PROBIT":
        return total
    return transformed(emit, total, transform)


def _of_many(emit: Emitter, scores: _Scores, base: Array, transform: str) -> tuple[str, str]:
    """The index of the best class and the scores; one without any score is not chosen."""
    total, count = emit.cast(scores.total, FLOAT32), len(scores.counted)
    counted = scores.counted
    if base.size == count:
        total = emit.temp("add", total, emit.stored("base", base.reshape(1, -1)))
        counted = (True,) * count
    made = transformed(emit, total, transform)
    if count == 1:
        above = emit.temp("less", emit.scalar(0.0, total, "zero"), total, label="above")
        return emit.reshaped(emit.cast(above, INT64), emit.shape(total)[:1]), made
    if not all(item is True for item in counted):
        chosen = _mask(emit, counted, emit.shape(total)[0])
        total = emit.temp("where", chosen, total, emit.scalar(-np.inf, total, "never"))
    return best(emit, total), made


def _mask(emit: Emitter, counted: Sequence[bool | str], rows: int) -> str:
    parts = [
        item if isinstance(item, str) else emit.stored("counts", np.full((rows, 1), item))
        for item in counted
    ]
    return emit.temp("concat", *parts, label="mask", axis=1)


def _of_two(
    emit: Emitter, scores: _Scores, votes: Votes, base: Array, transform: str
) -> tuple[str, str]:
    """The index of one of two classes, and both scores; see onnxruntime's FinalizeScores."""
    both = scores.counted[1]
    single, double = (
        (find(emit, scores, votes, base, transform) if wanted else None)
        for find, wanted in ((_by_first, both is not True), (_by_second, both is not False))
    )
    if single is None or double is None:
        found = single or double
        assert found is not None, "one of both is there"
        return found
    assert isinstance(both, str), "only where it depends on the data"
    row = emit.reshaped(both, emit.shape(both)[:1])
    return (
        emit.temp("where", row, double[0], single[0]),
        emit.temp("where", both, double[1], single[1]),
    )


def _by_first(
    emit: Emitter, scores: _Scores, votes: Votes, base: Array, transform: str
) -> tuple[str, str]:
    """Only the first class has weights: they are of the second one, unless there are two bases."""
    score = emit.part(emit.cast(scores.total, FLOAT32), 1, 0, 1)
    if base.size:
        score = emit.temp("add", score, emit.stored("base", base[:1].reshape(1, 1)))
    index = _above(emit, score, votes)
    if base.size == 2:
        nothing = emit.temp("multiply", score, emit.scalar(0.0, score, "zero"))
        two = emit.temp("concat", score, nothing, axis=1)
        return index, transformed(emit, two, transform)
    return index, pair(emit, score, transform, positive=_one_class(votes) and _positive(votes))


def _by_second(
    emit: Emitter, scores: _Scores, votes: Votes, base: Array, transform: str
) -> tuple[str, str]:
    """The second class has a score, and the first one may have."""
    total = emit.cast(scores.total, FLOAT32)
    first, second = emit.part(total, 1, 0, 1), emit.part(total, 1, 1, 1)
    if base.size == 2:
        second = emit.temp("add", first, emit.stored("base", base[1:].reshape(1, 1)))
        first = _mirrored(emit, second, scores.counted[0])
    elif base.size == 1 and scores.counted[0]:
        first = emit.temp("add", first, emit.stored("base", base.reshape(1, 1)))
    two = emit.temp("concat", first, second, axis=1)
    return _above(emit, second, votes), transformed(emit, two, transform)


def _mirrored(emit: Emitter, second: str, counted: bool | str) -> str:
    """The first score of two bases: the second one's opposite where the first class has weights."""
    first, zero = emit.temp("negative", second), emit.scalar(0.0, second, "zero")
    if isinstance(counted, str):
        return emit.temp("where", counted, first, zero)
    return first if counted else emit.temp("multiply", second, zero)


def _above(emit: Emitter, score: str, votes: Votes) -> str:
    """1 where the score is that of the second class, by its sign or, of chances, by a half."""
    limit = 0.5 if _one_class(votes) and _positive(votes) else 0.0
    above = emit.temp("less", emit.scalar(limit, score, "limit"), score, label="above")
    return emit.reshaped(emit.cast(above, INT64), emit.shape(score)[:1])


def _one_class(votes: Votes) -> bool:
    return np.unique(votes.target).size == 1


def _positive(votes: Votes) -> bool:
    return not np.any(votes.weight < 0)


def _numbers(node: OnnxNode, key: str, dtype: np.dtype[Any]) -> Array:
    """The numbers of an attribute, or of its form as a tensor."""
    stated = node.attrs.get(f"{key}_as_tensor", node.attrs.get(key, ()))
    return np.asarray(stated, dtype).reshape(-1)


def _whole(node: OnnxNode, key: str) -> Array:
    return np.asarray(node.attrs.get(key, ()), np.int64)


class _Indices:
    """The number of each node by its tree and its own number there."""

    def __init__(self, trees: Array, nodes: Array) -> None:
        self._wide = int(nodes.max(initial=0)) + 1
        self._order = np.argsort(trees * self._wide + nodes, kind="stable")
        self._keys = (trees * self._wide + nodes)[self._order]
        if np.any(nodes < 0) or np.any(self._keys[1:] == self._keys[:-1]):
            raise ModelError("two nodes of a tree have one number; export the model again")

    def of(self, trees: Array, nodes: Array) -> Array:
        """The indices of these nodes. Raises: ModelError for one that is not there."""
        keys = trees * self._wide + nodes
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        if np.any(self._keys[found] != keys) or np.any(nodes >= self._wide):
            raise ModelError("a node is not in the tree that refers to it; export again")
        return self._order[found]


def _ensemble(node: OnnxNode, dtype: np.dtype[Any]) -> tuple[Ensemble, _Indices]:
    """The trees before opset 5, leaves among their nodes."""
    trees, numbers = _whole(node, "nodes_treeids"), _whole(node, "nodes_nodeids")
    names = list(node.attrs.get("nodes_modes", ()))
    known: Mapping[str, int] = {f"BRANCH_{mode}": i for i, mode in enumerate(MODES)} | {
        "LEAF": LEAF
    }
    strange = sorted(set(names) - known.keys())
    if strange or not names:
        raise ModelError(f"nodes_modes: expected {', '.join(known)}; got {strange or 'no nodes'}")
    modes = np.array([known[name] for name in names])
    indices, inner = _Indices(trees, numbers), modes != LEAF

    def children(key: str) -> Array:
        found = np.zeros(len(modes), np.int64)
        found[inner] = indices.of(trees[inner], _whole(node, key)[inner])
        return found

    first = np.flatnonzero(np.diff(trees, prepend=trees[0] - 1))
    nodes = Nodes(
        modes=modes,
        features=_whole(node, "nodes_featureids"),
        limits=_numbers(node, "nodes_values", dtype),
        missing=_missing(node, len(modes)),
        yes=children("nodes_truenodeids"),
        no=children("nodes_falsenodeids"),
    )
    return packed(nodes, first), indices


def _missing(node: OnnxNode, count: int) -> Array:
    stated = _whole(node, "nodes_missing_value_tracks_true")
    return np.concatenate([stated, np.zeros(max(0, count - len(stated)), np.int64)])[:count] == 1


def _votes(node: OnnxNode, indices: _Indices, what: str, targets: int) -> Votes:
    """The weights of leaves; `what` begins the names of the attributes."""
    ids = _whole(node, f"{what}_ids")
    if np.any((ids < 0) | (ids >= targets)) or not targets:
        raise ModelError(
            f"{what}_ids: expected numbers below {targets}; got up to {ids.max(initial=-1)}"
        )
    return Votes(
        node=indices.of(_whole(node, f"{what}_treeids"), _whole(node, f"{what}_nodeids")),
        target=ids,
        weight=_numbers(node, f"{what}_weights", np.dtype(np.float64)),
        targets=targets,
    )


def _with_leaves(node: OnnxNode, dtype: np.dtype[Any]) -> tuple[Ensemble, Votes]:
    """The trees of opset 5: leaves have numbers of their own, and come behind the other nodes."""
    inner = _whole(node, "nodes_featureids")
    modes = np.asarray(node.attrs["nodes_modes"]).astype(np.int64).reshape(-1)
    target = _whole(node, "leaf_targetids")
    count, leaves = len(inner), len(target)

    def children(kind: str) -> Array:
        ids, leaf = _whole(node, f"nodes_{kind}nodeids"), _whole(node, f"nodes_{kind}leafs")
        return np.concatenate([ids + count * (leaf != 0), np.zeros(leaves, np.int64)])

    def padded(values: Array) -> Array:
        return np.concatenate([values, np.zeros(leaves, values.dtype)])

    nodes = Nodes(
        modes=np.concatenate([modes, np.full(leaves, LEAF)]),
        features=padded(inner),
        limits=padded(np.asarray(node.attrs["nodes_splits"], dtype).reshape(-1)),
        missing=padded(_missing(node, count)),
        yes=children("true"),
        no=children("false"),
        members=_members(node),
    )
    votes = Votes(
        node=count + np.arange(leaves),
        target=target,
        weight=np.asarray(node.attrs["leaf_weights"], np.float64).reshape(-1),
        targets=node.integer("n_targets", 1),
    )
    return packed(nodes, _whole(node, "tree_roots")), votes


def _members(node: OnnxNode) -> list[Array]:
    """The set of each node that tests for members; a NaN ends a set."""
    values = np.asarray(node.attrs.get("membership_values", ()), np.float64).reshape(-1)
    ends = np.flatnonzero(np.isnan(values))
    parts = np.split(values, ends + 1)
    return [part[~np.isnan(part)] for part in parts]
