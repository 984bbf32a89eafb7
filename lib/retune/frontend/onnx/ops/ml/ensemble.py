"""Decision trees as arrays of nodes, as the operator `tree_leaves` reads them.

Read `Ensemble` and `packed`. Every comparison of ONNX becomes `less or equal` or `less than`:
others swap the children, and tests for equality are two nodes. Trees may share nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from retune.core.dtypes import Array
from retune.core.errors import ModelError
from retune.ops.trees import FEATURE, MISSING, STRICT, ordered, words_of

MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
"""Comparisons as ONNX numbers them from opset 5 on; before, with BRANCH_ in front."""
LEAF = -1
"""The mode of a leaf."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """The nodes of all trees as a file states them, one element for each."""

    modes: Array
    """Numbers of MODES, or LEAF."""
    features: Array
    limits: Array
    missing: Array
    """bool: data that are missing count as if the comparison holds."""
    yes: Array
    """The next node where it holds."""
    no: Array
    members: Sequence[Array] = ()
    """The set of each node of the mode MEMBER, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """Trees that are ready to be walked; arrays are those of `retune.ops.trees`."""

    splits: Array
    limits: Array
    children: Array
    roots: Array
    depth: int
    """Steps from the roots to the last leaf."""
    owner: Array
    """The number of the tree of each node; -1 for one of several trees, or of none."""

    @property
    def flags(self) -> int:
        """Those that some split has."""
        return int(np.bitwise_or.reduce(self.splits % FEATURE, initial=0))

    @property
    def leaves(self) -> Array:
        """bool: whether a node is a leaf."""
        return self.children[:, 0] == np.arange(len(self.children))

    @property
    def features(self) -> int:
        """Columns that the data must have."""
        return int(self.splits.max(initial=0)) // FEATURE + 1


@dataclass(slots=True)
class _Arrays:
    """Nodes with two kinds of comparison; new ones come behind those of the file."""

    features: Array
    limits: Array
    flags: Array
    children: Array
    more: list[tuple[int, float, int, int, int]] = field(
        default_factory=list[tuple[int, float, int, int, int]]
    )
    """Feature, limit, flags, child where less, child where not."""

    def add(self, feature: int, limit: float, flags: int, less: int, other: int) -> int:
        """The number of a new node."""
        self.more.append((feature, limit, flags, less, other))
        return len(self.limits) + len(self.more) - 1

    def whole(self) -> tuple[Array, Array, Array]:
        """Splits, limits and children of all."""
        rows = self.more
        feature, flags = (np.array([row[i] for row in rows], np.int64) for i in (0, 2))
        limits = np.array([row[1] for row in rows], self.limits.dtype)
        children = np.array([row[3:] for row in rows], np.int64).reshape(-1, 2)
        splits = np.concatenate([self.features * FEATURE + self.flags, feature * FEATURE + flags])
        return (
            splits.astype(np.int32),
            np.concatenate([self.limits, limits]),
            np.concatenate([self.children, children]).astype(np.int32),
        )


def packed(nodes: Nodes, roots: Array) -> Ensemble:
    """The trees with these roots. Raises: ModelError for nodes that do not end in leaves."""
    modes, missing = nodes.modes, nodes.missing.astype(bool)
    own, leaf = np.arange(len(modes)), modes == LEAF
    swapped = np.isin(modes, (MODES.index("GTE"), MODES.index("GT")))
    strict = np.isin(modes, (MODES.index("LT"), MODES.index("GTE")))
    children = np.stack([nodes.yes, nodes.no], 1).astype(np.int64)
    children[swapped] = children[swapped][:, ::-1]
    children[leaf] = own[leaf, None]
    if np.any((children < 0) | (children >= len(modes))):
        raise ModelError("a node's child is not in its tree; export the model again")
    flags = STRICT * strict + MISSING * (missing ^ swapped)
    features = np.where(leaf, 0, nodes.features).astype(np.int64)
    made = _Arrays(features, nodes.limits.copy(), np.where(leaf, 0, flags), children)
    for node in np.flatnonzero(modes >= MODES.index("EQ")):
        _split_equality(made, nodes, int(node))
    splits, limits, children = made.whole()
    depth, owner = _walked(children, roots)
    return Ensemble(
        splits=splits,
        limits=limits,
        children=children,
        roots=roots.astype(np.int32),
        depth=depth,
        owner=owner,
    )


def _split_equality(made: _Arrays, nodes: Nodes, node: int) -> None:
    """One value is met where the data is not greater than it, and not less."""
    mode = MODES[nodes.modes[node]]
    yes, no = int(nodes.yes[node]), int(nodes.no[node])
    feature, missing = int(made.features[node]), bool(nodes.missing[node])
    values = [float(made.limits[node])]
    if mode == "NEQ":
        yes, no, missing = no, yes, False
    if mode == "MEMBER":
        rank = int(np.count_nonzero(nodes.modes[:node] == nodes.modes[node]))
        values = [float(value) for value in nodes.members[rank]]
    tests = [(value, made.add(feature, value, STRICT, -1, yes)) for value in values]
    last = no
    for value, exact in tests[:0:-1]:
        _connect(made, exact, last)
        last = made.add(feature, value, 0, exact, last)
    if not tests:  # nothing is in the empty set
        made.children[node] = (no, no)
        return
    value, exact = tests[0]
    _connect(made, exact, last)
    made.limits[node], made.flags[node] = value, MISSING * missing
    made.children[node] = (exact, last)


def _connect(made: _Arrays, exact: int, less: int) -> None:
    """The node leads to `less` where the data is less."""
    index = exact - len(made.limits)
    feature, limit, flags, _, other = made.more[index]
    made.more[index] = (feature, limit, flags, less, other)


def _walked(children: Array, roots: Array) -> tuple[int, Array]:
    """The depth of the deepest tree, and the tree of each node.

    Raises: ModelError where a walk does not end.
    """
    owner = np.full(len(children), -1, np.int64)
    shared = np.zeros(len(children), bool)
    reached, trees, depth = roots.astype(np.int64), np.arange(len(roots)), 0
    while True:
        shared[reached[(owner[reached] >= 0) & (owner[reached] != trees)]] = True
        owner[reached] = trees
        shared[reached[owner[reached] != trees]] = True
        inner = children[reached, 0] != reached
        if not inner.any():
            break
        depth += 1
        if depth > len(children):
            raise ModelError("a tree leads back to one of its nodes; export the model again")
        pairs = np.stack([children[reached[inner]].ravel(), np.repeat(trees[inner], 2)], 1)
        reached, trees = np.unique(pairs, axis=0).T
    owner[shared] = -1
    return depth, owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Masked:
    """Trees with few leaves, as `tree_exits` reads them."""

    features: Array
    limits: Array
    masks: Array
    parts: int
    """Of each tree, 32 leaves each."""
    leaves: Array
    """The node of each bit of each part of each tree."""


def masked(trees: Ensemble, order: Array, most: int) -> Masked | None:
    """The trees in that order by masks; None where one has more leaves than `most`.

    Features are those of `tree_keys`, with `missing` where the trees have that flag.
    """
    walks = [_walk(trees.children, int(root), most) for root in trees.roots[order]]
    found = [walk for walk in walks if walk is not None]
    if len(found) < len(walks):
        return None
    parts = max(-(-len(walk.leaves) // 32) for walk in found)
    rows = [list(walk.within(32 * part)) for walk in found for part in range(parts)]
    nodes = np.full((max(1, *map(len, rows)), len(rows)), -1)
    masks = np.full(nodes.shape, 0xFFFFFFFF, np.uint32)
    for column, row in enumerate(rows):
        for i, (node, first, end) in enumerate(row):
            nodes[i, column] = node
            masks[i, column] ^= np.uint32(((1 << (end - first)) - 1) << (32 - end))
    leaves = np.zeros((len(found), parts * 32), np.int64)
    for tree, walk in enumerate(found):
        leaves[tree, : len(walk.leaves)] = walk.leaves
    splits = np.where(nodes < 0, 0, trees.splits[nodes])
    missing = (splits & MISSING > 0) * trees.features
    keys = ordered(trees.limits)[nodes]
    strict = (splits & STRICT > 0) & (keys > np.iinfo(keys.dtype).min)
    return Masked(
        features=(splits // FEATURE + missing).astype(np.int32),
        limits=words_of((keys - strict).astype(keys.dtype)),
        masks=masks.view(np.int32),
        parts=parts,
        leaves=leaves.ravel(),
    )


@dataclass(frozen=True, slots=True)
class _Walk:
    """The leaves of a tree from the left on, and which of them are below each node's left child."""

    leaves: list[int]
    less: list[tuple[int, int, int]]
    """Node, first leaf, end."""

    def within(self, start: int) -> Iterator[tuple[int, int, int]]:
        """Nodes that rule out some of the 32 leaves from `start` on, and which of those."""
        for node, first, end in self.less:
            if first < start + 32 and end > start:
                yield node, max(first - start, 0), min(end - start, 32)


def _walk(children: Array, root: int, most: int) -> _Walk | None:
    """None where the tree has more leaves; those of shared nodes count several times."""
    leaves: list[int] = []
    less: list[tuple[int, int, int]] = []
    left: list[tuple[int, int]] = [(root, -1)]
    while left:
        node, first = left.pop()
        if first >= 0:
            less.append((node, first, len(leaves)))
        elif children[node, 0] == node:
            leaves.append(node)
        else:
            left += [
                (int(children[node, 1]), -1),
                (node, len(leaves)),
                (int(children[node, 0]), -1),
            ]
        if max(len(leaves), len(left) // 2) > most:
            return None
    return _Walk(leaves, less)
