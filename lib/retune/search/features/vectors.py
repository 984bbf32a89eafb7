"""The feature vector: which features there are, in which order, and their values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from retune.core.dtypes import itemsize
from retune.core.target import DeviceSpec
from retune.ir.evaluate import evaluate
from retune.ir.expr import Scope, Var
from retune.schedule.estimate import estimate
from retune.schedule.space import Candidates, Sketch, Space
from retune.search.features.access import ACCESS, access_features
from retune.search.features.access import RATIOS as ACCESS_RATIOS
from retune.search.features.loops import BLOCK, block_features
from retune.search.features.loops import RATIOS as BLOCK_RATIOS
from retune.search.features.nests import analyse
from retune.search.features.volumes import Array, Numbers, Volumes, volumes

VERSION = "1"
"""Changes whenever the meaning or the order of the features does: models belong to one version.
Records name it as the `feature_set` of the features that they store."""

SLOTS = ("main", "second")
"""The blocks with most operations, whose features are given one by one; the others are summed."""
PLACES = {"main": ("write", "read0", "read1", "read2"), "second": ("write", "read0")}
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
        *(f"{s}.{p}.{name}" for s in SLOTS for p in PLACES[s] for name in ACCESS_RATIOS),
    }
)
"""Features that are given as they are; the others as log2(1 + x)."""


def _features() -> Iterator[Feature]:
    for name, doc in _PROGRAM.items():
        yield Feature(f"program.{name}", doc)
    for slot in SLOTS:
        for name, doc in BLOCK.items():
            yield Feature(f"{slot}.{name}", doc)
        for place in PLACES[slot]:
            for name, doc in ACCESS.items():
                yield Feature(f"{slot}.{place}.{name}", doc)
    for name, doc in _DEVICE.items():
        yield Feature(f"device.{name}", doc)


FEATURES: tuple[Feature, ...] = tuple(_features())
"""Every column. Missing slots and accesses are zero."""

COLUMN: Mapping[str, int] = {feature.name: i for i, feature in enumerate(FEATURES)}
"""Feature name -> its column."""


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
    values = sketch.symbols(rows)
    nests = analyse(sketch)
    numbers = Numbers(values, len(rows))
    found = [volumes(nest, numbers) for nest in nests]
    named = {f"program.{k}": v for k, v in _program(sketch, rows, found, values, spec).items()}
    for slot, v in zip(SLOTS, found, strict=False):
        named |= {f"{slot}.{name}": x for name, x in block_features(v, spec).items()}
        reads = iter(a for a in v.accesses if not a.access.write)
        writes = iter(a for a in v.accesses if a.access.write)
        for place in PLACES[slot]:
            access = next(writes if place == "write" else reads, None)
            if access is not None:
                columns = access_features(v, access, spec)
                named |= {f"{slot}.{place}.{name}": x for name, x in columns.items()}
    named |= {f"device.{name}": _device(spec, name) for name in _DEVICE}
    table = np.empty((len(named), len(rows)))
    for line, column in zip(table, named.values(), strict=True):
        line[...] = column
    scaled = [place for place, name in enumerate(named) if name not in _PLAIN]
    table[scaled] = np.log2(1.0 + table[scaled])
    result = np.zeros((len(rows), len(FEATURES)), np.float32)
    result[:, [COLUMN[name] for name in named]] = table.T
    return result


def _program(
    sketch: Sketch,
    rows: np.ndarray,
    found: list[Volumes],
    values: Mapping[Var, np.ndarray],
    spec: DeviceSpec,
) -> dict[str, Array | float]:
    zero = np.zeros(len(rows))
    ops = [v.inside[0] * v.nest.operations for v in found]
    rest = found[len(SLOTS) :]
    time = np.maximum(estimate(sketch, rows, spec), 1.0)
    total = sum(ops, zero)
    overlap = np.max([zero + 1.0, *map(_overlap, found)], axis=0)
    local = zero + _held(sketch, "local", values)
    return {
        "estimate": np.log2(time),
        "estimate_rate": total / overlap / time,
        "ops": total,
        "overlap": overlap,
        "blocks": float(len(found)),
        "kernels": float(len(sketch.program.body.stmts)),
        "rest_ops": sum(ops[len(SLOTS) :], zero),
        "rest_bytes": sum((v.bytes(0) for v in rest), zero),
        "total_bytes": sum((v.bytes(0) for v in found), zero),
        "scratch_bytes": zero + _held(sketch, "global", values),
        "local_bytes": local,
        "local_share": local / max(spec.local_memory_bytes, 1),
    }


def _overlap(v: Volumes) -> Array:
    """Iterations for each element that is written and each reduce iteration."""
    written = next((a.elements[0] for a in v.accesses if a.access.write), None)
    if written is None:
        return v.ones  # to registers: the block that stores them has the same tiles
    reduce = v.product(i for i, loop in enumerate(v.nest.loops) if loop.reduce)
    return v.inside[0] / (written * reduce)


def _held(sketch: Sketch, scope: Scope, values: Mapping[Var, np.ndarray]) -> Array | float:
    """Bytes of the program's own buffers in a scope."""
    total: Array | float = 0.0
    for buffer in sketch.program.scratch:
        if buffer.scope == scope:
            size = np.float64(itemsize(buffer.dtype))
            for extent in buffer.shape:
                size = size * np.asarray(evaluate(extent, values), np.float64)
            total = total + size
    return total


def _device(spec: DeviceSpec, name: str) -> float:
    return float(spec.device_class == "gpu") if name == "is_gpu" else float(getattr(spec, name))
