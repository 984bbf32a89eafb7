"""Deviation of a network's outputs by rounding alone: a limit beside the share of the range.

A deep network may make much of little: copies of it whose numbers differ in their last bits come to
other outputs, and so do two correct programs that add in another order. The oracle itself may be
inexact: onnxruntime's sigmoid is 1e-7 off, which is 3 % of the range of a text detector that finds
nothing. Read `RoundingModel`. What it does by numpy and by the oracle are compared within each
alone, so that an error of the importer does not look like rounding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from retune.core.arrays import array_bytes, view_arrays
from retune.core.config import cache_root
from retune.core.dtypes import dtype_of
from retune.core.errors import RecordError
from retune.core.keys import CODE_VERSION, content_key
from retune.core.replacing import replacing
from retune.graph.evaluate import run_parts
from retune.graph.graph import Graph
from retune.ir.plan import quiet
from retune.ops import Array, lookup
from retune.ops.registry import OpDef

FACTOR = 4.0
"""An element may deviate by so many times what rounding does to it.

Between two correct programs there are the roundings of both, kernels add in longer rows than numpy,
and the largest of a million normal numbers is 2.5 times the largest of four."""
_RUNS = 4
_UNITS = 0.5
"""Units in the last place by which each number is changed (standard deviation)."""
_UNITS_OF_SUMS = 2.0
"""The same of sums. Those of some hundred products in any order are that far from float64: layers
of rexnet_100 on PoCL, each compared by itself, are off by 1e-7 to 8e-7 of their root mean
square."""
SUMS = ("heavy", "reduction", "host")
"""Kinds of operators that add many numbers up, or may do so."""
_EXACT_BITS = {False: 11, True: 4}
"""Numbers of so few bits, such as 0, 0.5 and small integers, are exact in every program. They are
not changed: floors, comparisons and indices that follow from them are the same everywhere. Of small
floats, which have not many more, fewer are."""
_VERSIONS = (CODE_VERSION, np.__version__, _RUNS, _UNITS, _UNITS_OF_SUMS)
_STORED_BYTES = 64 << 20
"""Of a file; more, of feature maps as outputs, is computed again."""
_NUMPY, _ORACLE = "numpy/", "oracle/"
_MOVES = ("injective", "opaque")
"""Kinds of operators that pass elements on without arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OutputRounding:
    """What rounding does to one output of a network for some inputs.

    Of both arrays the first axis counts runs; the first one is of the network as it is.
    """

    numpy: Array
    """By the numpy meaning, every number changed in its last bits."""
    oracle: Array
    """By the oracle, the inputs changed so, and without its optimisations where these only
    approximate: how far it goes. Empty where it is numpy."""

    def spread(self, runs: Array) -> Array:
        """By how much each element of a float moves in the runs: the root mean square at least."""
        if not len(runs):
            return np.zeros(runs.shape[1:])
        exact, *changed = runs.astype(np.float64)
        with quiet():
            moved = np.max([np.abs(run - exact) for run in changed], axis=0)
        moved = np.where(np.isfinite(moved), moved, 0.0)
        mean = np.sqrt(np.mean(np.square(moved))) if moved.size else 0.0
        return np.maximum(moved, mean)

    def interchangeable(self, got: Array, expected: Array) -> Array:
        """Where both are values that some run of a kind has: rounding decides between them."""
        return np.logical_or.reduce(
            [
                (runs == got).any(axis=0) & (runs == expected).any(axis=0)
                for runs in (self.numpy, self.oracle)
            ]
        )


Rounding = Callable[[Mapping[str, Array]], Mapping[str, OutputRounding]]
"""What rounding does to each output, by name, for inputs by name. Outputs whose shape follows from
rounding are left out."""
Program = Callable[[Mapping[str, Array]], Mapping[str, Array]]


class RoundingModel:
    """What rounding does to the outputs of a network, by runs of it that differ in last bits.

    In numpy every float that the network reads, holds as a weight or computes is changed in its
    last bits, independently. The same inputs give the same, in every process.
    """

    def __init__(
        self,
        graph: Callable[[], Graph],
        oracle: Program | None = None,
        unoptimised: Callable[[], Program | None] = lambda: None,
    ) -> None:
        """`graph` is asked for when the first inputs come, and so is the oracle without its
        optimisations, if it can run so."""
        self._graph = cache(graph)
        self._oracle = oracle
        self._unoptimised = cache(unoptimised)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, OutputRounding]:
        graph = self._graph()
        with quiet():
            (exact,) = run_parts(graph, [inputs], lambda _, arrays: arrays)
            changed = [_changed(graph, inputs, seed) for seed in range(_RUNS)]
        own, theirs = _stacked([exact, *changed]), _stacked(self._of_oracle(inputs))
        none = {name: runs[:0] for name, runs in own.items()}
        return {
            name: OutputRounding(numpy=runs, oracle=theirs.get(name, none[name]))
            for name, runs in own.items()
            if not theirs or (name in theirs and theirs[name].shape[1:] == runs.shape[1:])
        }

    def _of_oracle(self, inputs: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        if self._oracle is None:
            return []
        found = [self._oracle(inputs)]
        for seed in range(_RUNS):
            rng = np.random.default_rng(seed)
            found.append(self._oracle({name: _moved(a, rng) for name, a in inputs.items()}))
        unoptimised = self._unoptimised()
        return [*found, unoptimised(inputs)] if unoptimised else found


def _stacked(runs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The outputs along a new axis; those that have the same shape in all runs."""
    names = runs[0] if runs else ()
    arrays = {name: [np.asarray(run[name]) for run in runs] for name in names}
    return {n: np.stack(a) for n, a in arrays.items() if len({x.shape for x in a}) == 1}


def _changed(graph: Graph, inputs: Mapping[str, Array], seed: int) -> dict[str, Array]:
    """The outputs of the graph whose numbers have other last bits."""
    rng = np.random.default_rng(seed)
    weights = {name: _moved(array, rng) for name, array in graph.constants.items()}
    given = {name: _moved(np.asarray(array), rng) for name, array in inputs.items()}
    units = {v: _units(lookup(node.op)) for node in graph.nodes for v in node.outputs}

    def change(value: str, arrays: Sequence[Array]) -> Sequence[Array]:
        return [_moved(array, rng, units[value]) for array in arrays]

    return run_parts(replace(graph, constants=weights), [given], change)[0]


def _units(definition: OpDef) -> float:
    """By how many units in the last place correct programs differ in what the operator makes."""
    if definition.kind in _MOVES:
        return 0.0
    return _UNITS_OF_SUMS if definition.kind in SUMS else _UNITS


def _moved(array: Array, rng: np.random.Generator, units: float = _UNITS) -> Array:
    """The array with other last bits, but for numbers that are exact in every program."""
    if not array.size or not units or not dtype_of(array).is_float:
        return array
    eps, small = float(dtype_of(array).finfo.eps), dtype_of(array).is_small_float
    wide = array.astype(np.float64)
    units = min(units, _UNITS) if small else units
    with quiet():
        moved = (wide * (1 + units * eps * rng.standard_normal(wide.shape))).astype(array.dtype)
    kept = _is_exact(wide, _EXACT_BITS[small]) | ~np.isfinite(moved.astype(np.float64))
    return np.where(kept, array, moved)


def _is_exact(values: Array, bits: int) -> Array:
    mantissa, _ = np.frexp(values)
    scaled = np.ldexp(mantissa, bits)
    return scaled == np.rint(scaled)


class StoredRounding:
    """The same from a folder of files, one for each content of network and inputs."""

    def __init__(
        self, found: Rounding, content: Callable[[], object], folder: Path | None = None
    ) -> None:
        """`content` says of which network it is, once it is asked for."""
        self._found = found
        self._content = content
        self._folder = folder or cache_root() / "rounding"

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, OutputRounding]:
        key = content_key(self._content(), dict(inputs), *_VERSIONS)
        path = self._folder / f"{key}.safetensors"
        stored = _read(path)
        if stored is not None:
            return stored
        made = dict(self._found(inputs))
        arrays = dict(_arrays(made))
        if sum(array.nbytes for array in arrays.values()) <= _STORED_BYTES:
            with replacing(path) as stream:
                stream.write(array_bytes(arrays))
        return made


def _arrays(found: Mapping[str, OutputRounding]) -> Iterator[tuple[str, Array]]:
    for name, entry in found.items():
        yield f"{_NUMPY}{name}", entry.numpy
        yield f"{_ORACLE}{name}", entry.oracle


def _read(path: Path) -> dict[str, OutputRounding] | None:
    """What a file holds; None for none, and for one that is damaged: it is made again."""
    try:
        arrays = view_arrays(memoryview(path.read_bytes()), error=RecordError)
        names = [name.removeprefix(_NUMPY) for name in arrays if name.startswith(_NUMPY)]
        return {
            name: OutputRounding(numpy=arrays[_NUMPY + name], oracle=arrays[_ORACLE + name])
            for name in names
        }
    except (OSError, RecordError, KeyError):
        return None
