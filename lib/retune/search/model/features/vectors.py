"""The feature vector: which features there are, in which order, and their values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from retune.core.target import DeviceSpec
from retune.schedule.space import Candidates, Sketch, Space
from retune.search.model.features.access import ACCESS, access_features
from retune.search.model.features.access import RATIOS as ACCESS_RATIOS
from retune.search.model.features.layout import Array, Layout
from retune.search.model.features.loops import BLOCK, block_features, overlap_of
from retune.search.model.features.loops import RATIOS as BLOCK_RATIOS
from retune.search.model.features.volumes import Volumes, volumes
from retune.targets.cost.estimate import estimate

VERSION = "1"
"""Changes whenever the meaning or the order of the features does: models belong to one version.
Records name it as the `feature_set` of the features that they store."""

SLOTS = ("main", "second")
"""The blocks with most operations, whose features are given one by one; the others are summed."""
ACCESSES = {"main": ("write", "read0", "read1", "read2"), "second": ("write", "read0")}
"""The accesses of a slot whose features are given."""


@dataclass(frozen=True, slots=True)
class Feature:
    """One column of the feature vector."""

    name: str
    doc: str


_PROGRAM: Mapping[str, str] = {
    "estimate": "time by the static estimate",
    "estimate_rate": "operations over that time; those that overlapping tiles repeat count once",
    "ops": "operations of all blocks",
    "overlap": "work over that without overlapping tiles, of the block where it is largest",
    "blocks": "blocks",
    "kernels": "root nests, each of which is launched by itself",
    "rest_ops": "operations of the blocks without a slot",
    "rest_bytes": "distinct bytes that each block without a slot touches, summed",
    "total_bytes": "distinct bytes that each block touches, summed",
    "scratch_bytes": "bytes of global memory between blocks",
    "local_bytes": "bytes of local memory",
    "local_share": "local memory over the device's",
}
_DEVICE: Mapping[str, str] = {
    "compute_units": "cores or multiprocessors",
    "lanes_f32": "float32 lanes of its vectors",
    "vector_registers": "vector registers of a core",
    "l1_bytes": "first-level cache",
    "l2_bytes": "second-level cache",
    "l3_bytes": "last-level cache",
    "cache_line_bytes": "cache line",
    "local_memory_bytes": "local memory",
    "max_work_group": "work-items of a work-group at most",
    "is_gpu": "1 for a GPU",
}
_PLAIN = frozenset(
    {
        "program.estimate",
        "program.local_share",
        "program.overlap",
        "device.is_gpu",
        *(f"{slot}.{name}" for slot in SLOTS for name in BLOCK_RATIOS),
        *(f"{s}.{p}.{name}" for s in SLOTS for p in ACCESSES[s] for name in ACCESS_RATIOS),
    }
)
"""Features that are given as they are; the others as log2(1 + x)."""


def _features() -> Iterator[Feature]:
    for name, doc in _PROGRAM.items():
        yield Feature(f"program.{name}", doc)
    for slot in SLOTS:
        for name, doc in BLOCK.items():
            yield Feature(f"{slot}.{name}", doc)
        for position in ACCESSES[slot]:
            for name, doc in ACCESS.items():
                yield Feature(f"{slot}.{position}.{name}", doc)
    for name, doc in _DEVICE.items():
        yield Feature(f"device.{name}", doc)


FEATURES: tuple[Feature, ...] = tuple(_features())
"""Every column. Missing slots and accesses are zero."""

COLUMN: Mapping[str, int] = {feature.name: i for i, feature in enumerate(FEATURES)}
"""Feature name -> its column."""

_SCALED = np.array([i for i, feature in enumerate(FEATURES) if feature.name not in _PLAIN])


def featurise(space: Space, candidates: Candidates, spec: DeviceSpec) -> np.ndarray:
    """The features of each candidate. float32 [n, len(FEATURES)], finite."""
    result = np.zeros((len(candidates), len(FEATURES)), np.float32)
    for number, sketch in enumerate(space.sketches):
        mine = np.flatnonzero(candidates.sketch == number)
        if len(mine):
            rows = candidates.rows[mine][:, : len(sketch.decisions)]
            result[mine] = featurise_rows(sketch, rows, spec)
    return result


def featurise_rows(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """The features of option rows of one sketch. float32 [n, len(FEATURES)]"""
    v = volumes(sketch, rows)
    slots = _slot_columns(v.layout)
    table = np.zeros((len(FEATURES), len(rows)))
    for name, value in _program(sketch, rows, v, spec).items():
        table[COLUMN[f"program.{name}"]] = value
    blocks = block_features(v, spec)
    for name, columns in slots.blocks.items():
        for column, values in zip(columns, blocks[name], strict=False):
            table[column] = values
    accesses = access_features(v, spec)
    for name, columns in slots.accesses.items():
        for column, access in zip(columns, slots.chosen, strict=True):
            table[column] = accesses[name][access]
    for name in _DEVICE:
        table[COLUMN[f"device.{name}"]] = _device(spec, name)
    table[_SCALED] = np.log2(1.0 + table[_SCALED])
    return table.T.astype(np.float32)


@dataclass(frozen=True, eq=False, slots=True)
class _SlotColumns:
    """The columns of a sketch's blocks and accesses, by the names of their features."""

    blocks: Mapping[str, tuple[int, ...]]
    """Of the first blocks."""
    accesses: Mapping[str, tuple[int, ...]]
    """Of the chosen accesses."""
    chosen: tuple[int, ...]
    """The accesses that have a position in a slot."""


@lru_cache(maxsize=256)
def _slot_columns(layout: Layout) -> _SlotColumns:
    slots = SLOTS[: len(layout.nests)]
    chosen: list[int] = []
    positions: list[str] = []
    for b, slot in enumerate(slots):
        mine = np.flatnonzero(layout.owner == b).tolist()
        reads = iter([a for a in mine if not layout.accesses[a].write])
        writes = iter([a for a in mine if layout.accesses[a].write])
        for position in ACCESSES[slot]:
            access = next(writes if position == "write" else reads, None)
            if access is not None:
                chosen.append(access)
                positions.append(f"{slot}.{position}")
    return _SlotColumns(
        {name: tuple(COLUMN[f"{slot}.{name}"] for slot in slots) for name in BLOCK},
        {name: tuple(COLUMN[f"{position}.{name}"] for position in positions) for name in ACCESS},
        tuple(chosen),
    )


def _program(
    sketch: Sketch, rows: np.ndarray, v: Volumes, spec: DeviceSpec
) -> dict[str, Array | float]:
    ops = v.inside[0] * v.layout.operations
    covered = v.block_bytes[0]
    time = np.maximum(estimate(sketch, rows, spec), 1.0)
    total = ops.sum(axis=0)
    overlap = overlap_of(v)
    local = v.held["local"]
    return {
        "estimate": np.log2(time),
        "estimate_rate": total / overlap / time,
        "ops": total,
        "overlap": overlap,
        "blocks": float(len(ops)),
        "kernels": float(len(sketch.program.body.stmts)),
        "rest_ops": ops[len(SLOTS) :].sum(axis=0),
        "rest_bytes": covered[len(SLOTS) :].sum(axis=0),
        "total_bytes": covered.sum(axis=0),
        "scratch_bytes": v.held["global"],
        "local_bytes": local,
        "local_share": local / max(spec.local_memory_bytes, 1),
    }


def _device(spec: DeviceSpec, name: str) -> float:
    return float(spec.device_class == "gpu") if name == "is_gpu" else float(getattr(spec, name))
