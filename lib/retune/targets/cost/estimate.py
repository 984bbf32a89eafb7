"""A static estimate of candidates: the order in which to try them before anything is measured."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from retune.core.dims import Size, SizeValues, assuming, samples_at_hand
from retune.core.target import DeviceSpec
from retune.ir.stmt import sizes_in
from retune.schedule.space import Candidate, Sketch, Space, join
from retune.targets.cost.nests import kernels
from retune.targets.devices import rules_for

_SAMPLES = 1024
_FEW_PREFERRED = 16
"""One of so many candidates meets its sketch's preferences, about."""
_SEED = 0
_SIZES = 16
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


@dataclass(frozen=True, slots=True, eq=False)
class Defaults:
    """The candidates of a space that its default schedule is chosen from, always the same."""

    space: Space
    """Of what is exact enough to be used unseen, see MOST_ROUNDINGS."""
    entries: Sequence[tuple[int, np.ndarray]]
    """Numbers of sketches, each with rows of it."""

    @staticmethod
    def of(space: Space) -> "Defaults":
        """Those of a space. A sketch that states an untuned row enters with that row alone."""
        space = space.within(MOST_ROUNDINGS)
        rng = np.random.default_rng(_SEED)
        entries: list[tuple[int, np.ndarray]] = []
        for number, sketch in enumerate(space.sketches):
            stated = sketch.untuned
            count = _SAMPLES * (_FEW_PREFERRED if sketch.preferences else 1)
            rows = sketch.sample(count, rng) if stated is None else stated[None]
            rows = sketch.preferred(rows)[:_SAMPLES] if sketch.preferences else rows
            if len(rows):
                entries.append((number, rows))
        assert entries, "a space has at least one valid candidate"
        return Defaults(space, entries)

    @property
    def sizes(self) -> frozenset[Size]:
        """Those that their extents depend on."""
        programs = (self.space.sketches[number].program for number, _ in self.entries)
        return frozenset(v.size for program in programs for v in sizes_in(program))

    def times(self, samples: Sequence[SizeValues], spec: DeviceSpec) -> np.ndarray:
        """The estimates of all of them at these sizes. float64 [samples, candidates]"""
        own, found = {size.name for size in self.sizes}, dict[object, np.ndarray]()
        keys = [tuple((n, v) for n, v in values.items() if n in own) for values in samples]
        for key, values in zip(keys, samples, strict=True):
            if key not in found:
                with assuming(values) if values else nullcontext():
                    every = (estimate(self.space.sketches[n], r, spec) for n, r in self.entries)
                    found[key] = np.concatenate(list(every))
        return np.stack([found[key] for key in keys])

    def candidate(self, number: int) -> Candidate:
        """That one of them."""
        every = join([self.space.population(sketch, rows) for sketch, rows in self.entries])
        return self.space.candidate(every, number)


def default_candidate(space: Space, spec: DeviceSpec) -> Candidate:
    """What to compile with when no record exists: the best by the estimate, always the same.

    Where extents depend on sizes, that of the least regret over them.
    """
    found = Defaults.of(space)
    times = found.times(samples_at_hand(found.sizes, _SIZES), spec)
    return found.candidate(least_regret(times))


def least_regret(times: np.ndarray) -> int:
    """Which candidate takes the fewest times longer than the best one for each size does.

    `times` are float64 [sizes, candidates].
    """
    return int(np.argmin(regretted(times / times.min(axis=1, keepdims=True))))


def regretted(ratios: np.ndarray) -> np.ndarray:
    """How many times longer than the best one it takes, over all sizes, from these of each size.

    A power mean, as a program is to be slow for no size: the best tiles for most numbers of rows
    may take almost twice as long as need be for others. `ratios` are float64 [sizes, ...].
    """
    return (ratios**_EMPHASIS).mean(axis=0) ** (1.0 / _EMPHASIS)
