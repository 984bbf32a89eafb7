"""A static estimate of candidates: the order in which to try them before anything is measured."""

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np

from retune.core.dims import assuming, samples_at_hand
from retune.core.target import DeviceSpec
from retune.ir.stmt import sizes_in
from retune.schedule.space import Candidate, Sketch, Space, join
from retune.targets.cost.nests import kernels
from retune.targets.devices import rules_for

_SAMPLES = 1024
_FEW_PREFERRED = 16
"""One of so many candidates meets its sketch's preferences, about."""
_SEED = 0
_SIZES = 12
"""Sizes beside those at hand for which candidates are estimated."""
_EMPHASIS = 4
"""Power of the times over the best ones: 1.1 for all of ten sizes is as good as 1.5 for one."""
_THROUGH_IMAGES = 0.95
"""Time of a program that reads constants through images, as there is one only where that is faster.
By how much no source says, and nothing was measured: it orders what is equal otherwise."""

MOST_ROUNDINGS = 4.0
"""Of what is compiled before anything is measured, see `Sketch.roundings`.

A network amplifies its layers' errors, by how much depends on its weights (inception_v4 makes 2e-3
of errors of 8e-6, vgg11_bn 3e-6 of 6e-6), and it amplifies direct layers' roundings as well. So
what is at most so many times less exact than they are moves a network at most so many times as far
as they do, which is what verification allows (`bundle.verify.rounding`). A tuned selection may go
further: it is compared with the oracle, and what deviates is replaced.
"""


def estimate(sketch: Sketch, rows: np.ndarray, spec: DeviceSpec) -> np.ndarray:
    """Relative time of each row's program, in cycles; smaller is better. float64 [n]

    By the sketch's own cost where it states one. Raises: ValueError for a device of a class that is
    not registered.
    """
    if sketch.cost is not None:
        return sketch.cost(sketch.values(rows))
    cost = rules_for(spec).cost
    total = np.zeros(len(rows))
    for kernel in kernels(sketch, rows):
        total = total + cost(kernel, spec)
    return total * _THROUGH_IMAGES if sketch.program.images else total


def default_candidate(space: Space, spec: DeviceSpec) -> Candidate:
    """What to compile with when no record exists: the best by the estimate, always the same.

    Of those that are exact enough to be used unseen, see MOST_ROUNDINGS. A sketch that states an
    untuned row enters with that row alone. Where extents depend on sizes, see `_regret`.
    """
    rng = np.random.default_rng(_SEED)
    entries: list[tuple[int, np.ndarray]] = []
    for number, sketch in enumerate(space.sketches):
        if sketch.roundings > MOST_ROUNDINGS:
            continue
        stated = sketch.untuned
        count = _SAMPLES * (_FEW_PREFERRED if sketch.preferences else 1)
        rows = sketch.sample(count, rng) if stated is None else stated[None]
        rows = sketch.preferred(rows)[:_SAMPLES] if sketch.preferences else rows
        if len(rows):
            entries.append((number, rows))
    assert entries, "a space has at least one valid candidate"
    every = join([space.population(number, rows) for number, rows in entries])
    times = _times([(space.sketches[number], rows) for number, rows in entries], spec)
    return space.candidate(every, int(np.argmin(_regret(times) if len(times) > 1 else times[0])))


def _regret(times: np.ndarray) -> np.ndarray:
    """How many times longer rows take than the best one for each size does. float64 [rows]

    A power mean, as a program is to be slow for no size: the best tiles for most numbers of rows
    may take almost twice as long as need be for others.
    """
    return ((times / times.min(axis=1, keepdims=True)) ** _EMPHASIS).sum(axis=0)


def _times(entries: Sequence[tuple[Sketch, np.ndarray]], spec: DeviceSpec) -> np.ndarray:
    """The estimates of all rows at some sizes that they are to serve. float64 [sizes, rows]"""
    found: list[np.ndarray] = []
    own = {v.size for sketch, _ in entries for v in sizes_in(sketch.program)}
    for values in samples_at_hand(own, _SIZES):
        with assuming(values) if own else nullcontext():
            found.append(np.concatenate([estimate(s, rows, spec) for s, rows in entries]))
    return np.stack(found)
