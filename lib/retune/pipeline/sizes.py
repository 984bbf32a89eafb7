"""Requests with ranges: the sizes to tune for, and which sizes what is made serves.

Read `tuned_requests`, then `covering`. Kernels are searched at a few sizes, by requests of fixed
shapes. A bundle for a range has programs that were traced at these sizes, each for all sizes that
meet its conditions (`core.dims`), and further ones where some size meets none.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isqrt, prod
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np

from retune.core.dims import (
    Assumptions,
    Condition,
    Dim,
    Size,
    SizeValues,
    assuming,
    condition_of,
    dim_of,
)
from retune.core.errors import InputError
from retune.core.keys import cached_by_file
from retune.core.ranges import FIXED, TunedSizes, tuned_sizes, usual_sizes
from retune.core.results import Regret
from retune.frontend.onnx.importer import load_file
from retune.frontend.onnx.inputs import OpenInputs, lengths_of_states, open_inputs
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.annotate import means_over_sizes
from retune.graph.quantize.settings import QuantizeSettings
from retune.pipeline.grid import SizeGrid
from retune.pipeline.request import Shapes, TuneRequest, model_file
from retune.proto.file import read_onnx
from retune.schedule.space import Candidate
from retune.search.regret import SizeTimes
from retune.targets.cost.estimate import regretted

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_RANDOM_SIZES = 3
_GOAL = Regret(mean=1.03, worst=1.10)
"""A program whose regret is above it is made for a part of its sizes, and another for the rest."""
_MOST_PARTS = 3
"""Of a region; each is a program more to keep and to load."""
_WORTH = 1.02
"""By at least this factor a cut lowers what a program takes too long."""
_LEAST_SAMPLES = 3
"""Sizes that are looked at in each part: of a single one nothing is regretted."""
MOST_PROGRAMS = 16
"""Programs of a bundle for a range of sizes."""
MOST_COMBINATIONS = 1 << 24
"""Of sizes that a bundle is for: each of them is looked at for the program that serves it."""


def opened(request: TuneRequest) -> OpenInputs:
    """The request's shapes and values, with a size for each of them that has a range.

    Raises: ModelError for a model that cannot be read, and for what is not a range.
    """
    if not (request.shapes or request.values):
        return OpenInputs({}, {})
    return _opened(model_file(request), request.shapes, request.values, request.states)


@cached_by_file(8)
def _opened(path: Path, shapes: Shapes, values: Shapes, states: tuple[str, ...]) -> OpenInputs:
    graph = read_onnx(path).graph
    stored = {entry.name for entry in graph.initializer}
    found = open_inputs(graph, dict(shapes), dict(values), stored)
    if prod(len(each.size.values) for each in found.extents) > MOST_COMBINATIONS:
        ranges = ", ".join(str(each.size) for each in found.extents)
        raise InputError(
            f"{ranges}: expected at most {MOST_COMBINATIONS} combinations of sizes; give narrower "
            "ranges, or steps such as 16..4096:16"
        )
    ranges = {name for name, stated in shapes if any(".." in str(each) for each in stated)}
    return found.tuned_once(lengths_of_states(graph, states) & ranges)


def sizes(request: TuneRequest) -> tuple[Size, ...]:
    """The sizes that the request leaves open, by name."""
    return tuple(each.size for each in opened(request).extents)


def fixed_request(request: TuneRequest, values: SizeValues, share: float = 1.0) -> TuneRequest:
    """The request for these sizes alone, with that share of the budget.

    The network is quantized there as it is for all sizes: one recipe is for every one of them.
    """
    stated = opened(request).at(values)
    trials = None if request.trials is None else round(request.trials * share)
    minutes = None if request.minutes is None else request.minutes * share
    return replace(
        request,
        shapes=stated.shapes,
        values=stated.values,
        trials=trials,
        minutes=minutes,
        quantize=request.quantize and _for_all_sizes(request, request.quantize, values),
    )


def _for_all_sizes(
    request: TuneRequest, settings: QuantizeSettings, values: SizeValues
) -> QuantizeSettings:
    """The settings, with means left in floats that are of more elements for some sizes."""
    given = request.shapes, request.values, request.states, tuple(values.items())
    means = _means_over_sizes(model_file(request), *given)
    return replace(settings, skip=(*settings.skip, *means))


@cached_by_file(32)
def _means_over_sizes(
    path: Path,
    shapes: Shapes,
    values: Shapes,
    states: tuple[str, ...],
    sizes: tuple[tuple[str, int], ...],
) -> tuple[str, ...]:
    """Names of means over open sizes that the network has at these sizes, too; cached."""
    stated = _opened(path, shapes, values, states)
    with assuming(dict(sizes)):
        graph = optimise(load_file(path, stated.shapes, stated.values), "NCHW", whole=True)
        means = means_over_sizes(graph)
    if not means:
        return ()
    own = stated.at(dict(sizes))
    fixed = optimise(load_file(path, own.shapes, own.values), "NCHW", whole=True)
    there = {node.outputs[0] for node in fixed.nodes}
    return tuple(name for name in means if name in there)


def fixed_inputs(request: TuneRequest) -> OpenInputs:
    """The shapes and values of a request without ranges. Raises: InputError for one with them."""
    stated = opened(request)
    if stated.extents:
        ranges = ", ".join(str(each.size) for each in stated.extents)
        raise InputError(f"{ranges}: expected single numbers here; write one of the range")
    return stated


def tuned_requests(request: TuneRequest) -> list[tuple[TunedSizes, TuneRequest]]:
    """The sizes to tune for, the least first, each with the request that does it.

    The budget is shared out by how often sizes occur. A request without ranges is the only one.
    """
    points = tuned_sizes(opened(request).extents)
    found = [(each, fixed_request(request, dict(each.values), each.weight)) for each in points]
    return found or [(FIXED, request)]


def usual_values(request: TuneRequest) -> dict[str, int]:
    """The sizes that occur most of a request with ranges; none of another one."""
    points = tuned_sizes(opened(request).extents)
    return dict(usual_sizes(points).values) if points else {}


def usual_request(request: TuneRequest) -> TuneRequest:
    """The request for the sizes that occur most; itself if it has no ranges."""
    values = usual_values(request)
    return fixed_request(request, values) if values else request


def regions(every: Sequence[Size], tuned: Sequence[TunedSizes]) -> list[tuple[Condition, ...]]:
    """For each of them the sizes that it is for: those that meet its conditions, and none before.

    Between two sizes that are tuned, the border is their geometric mean. One is a region by itself:
    loops of a single iteration are gone, so that programs for one are others. Where a single
    condition keeps a region apart from one before it, the region has the contrary as a condition,
    so that its programs need not serve lesser sizes. In the last one every size stays open.
    """
    reach, dims = [dict(each.values) for each in tuned], {s.name: dim_of(s) for s in every}
    stated: list[list[Condition]] = []
    found: list[tuple[Condition, ...]] = []
    for own in reach:
        conditions: list[Condition] = []
        for name, value in own.items():
            higher = sorted({other[name] for other in reach if other[name] > value})
            last = value if value == 1 or not higher else isqrt(value * higher[0])
            beyond = dims[name] - last - 1 if higher else 0
            if isinstance(beyond, Dim):
                conditions.append(condition_of("lt", beyond, holds=True))
        contrary = _contrary(stated, conditions)
        if len(found) == len(reach) - 1:
            contrary = [c for c in contrary if not Assumptions({}, [c]).fixed]
        stated.append(conditions)
        found.append((*conditions, *contrary))
    return found


def _contrary(before: Sequence[Sequence[Condition]], own: Sequence[Condition]) -> list[Condition]:
    """The conditions that hold here and in no earlier region, each stated once."""
    same = set(own)  # by their forms: comparing extents would ask
    others = ([c for c in each if c not in same] for each in before)
    single = [replace(c, holds=not c.holds) for c, *more in filter(None, others) if not more]
    found: list[Condition] = []
    for condition in reversed(single):  # the strictest ones of a size come last
        (size,) = condition.dim.sizes
        known = Assumptions({}, found)
        if Assumptions({}, [*found, condition]).ends(size) != known.ends(size):
            found.append(condition)
    return found


def parts(
    region: Sequence[Condition], every: Sequence[Size], times: SizeTimes
) -> list[tuple[Condition, ...]]:
    """The region in the fewest parts whose regret meets the goal, in decreasing order of need.

    Tiles for many rows waste most of their work where there are few, and how many these are is a
    size or a product of all. Every program takes memory and time to load, so what is cut gains by
    it; borders are powers of two, as vectors are so long.
    """
    found = [tuple(region)]
    while len(found) < _MOST_PARTS and (above := [c for c in found if not _is_met(c, times)]):
        cuts = ((own, cut) for own in above for cut in _cuts(own, every, times))
        gains = ((_strain([own], times) / _strain(cut, times), own, cut) for own, cut in cuts)
        gain, own, cut = max(gains, key=lambda each: each[0], default=(1.0, (), []))
        if gain < _WORTH:
            break
        number = found.index(own)
        found[number : number + 1] = cut
    return found


def _is_met(region: Sequence[Condition], times: SizeTimes) -> bool:
    """Whether the regret of one program for a region meets the goal."""
    regret = times.regret(region)
    return regret.mean <= _GOAL.mean and regret.worst <= _GOAL.worst


def _strain(regions: Sequence[Sequence[Condition]], times: SizeTimes) -> float:
    """What cuts are compared by: a power mean of how many times longer programs take, as schedules
    are chosen by."""
    return float(regretted(np.concatenate([times.ratios(region) for region in regions])))


def _cuts(
    region: tuple[Condition, ...], every: Sequence[Size], times: SizeTimes
) -> Generator[list[tuple[Condition, ...]]]:
    """All ways to cut a region in two of which the estimates say something; sizes stay open."""
    known = Assumptions({}, region)
    spans = [(dim_of(size), known.ends(size)) for size in every]
    if len(spans) > 1:
        lows, highs = zip(*(ends for _, ends in spans), strict=True)
        spans.append((prod(dim for dim, _ in spans), (prod(lows), prod(highs))))
    for dim, (low, high) in spans:
        for border in (1 << n for n in range(low.bit_length(), high.bit_length())):
            beyond = dim - border
            if border <= low or not isinstance(beyond, Dim):
                continue
            lower, upper = (condition_of("lt", beyond, holds=holds) for holds in (True, False))
            cut: list[tuple[Condition, ...]] = [(*region, lower), (*region, upper)]
            fixes = any(Assumptions({}, half).fixed.keys() - known.fixed.keys() for half in cut)
            if not fixes and min(times.regret(half).sizes for half in cut) >= _LEAST_SAMPLES:
                yield cut


@dataclass(frozen=True, slots=True)
class Traced(Generic[T]):
    """A program, and the sizes that it is for."""

    program: T
    conditions: tuple[Condition, ...]
    """Those that it needs, and those of its region."""
    at: Mapping[str, int]
    """Where it was traced."""
    regret: Regret = field(default_factory=Regret)
    """Of default schedules over all sizes of its region, by the estimate."""


class TraceProgram(Protocol[T_co]):
    """Makes a program."""

    def __call__(
        self,
        at: SizeValues,
        number: int,
        region: Sequence[Condition],
        defaults: Mapping[str, Candidate],
        /,
    ) -> tuple[T_co, Sequence[Condition]]:
        """The program that is made at sizes, by the choices of the tuned sizes of that number; it
        is to be for sizes that meet the conditions of a region.

        On what conditions it holds: these and others. `defaults` are default schedules by tasks'
        keys, of those whose default schedule is known already.
        """
        ...


def covering(
    every: Sequence[Size],
    tuned: Sequence[TunedSizes],
    trace: TraceProgram[T],
    times: Callable[[SizeValues, int, Sequence[Condition]], SizeTimes],
) -> list[Traced[T]]:
    """Programs in the order in which they are asked: each size meets the conditions of some.

    `times` estimates what is not chosen at the tuned sizes of that number; sizes that are tuned at
    one value, unlike others, are not cut by it. Where a region is not cut, what the estimates are
    for is what its first program has. Raises: InputError if too many would be needed.
    """
    grid = SizeGrid(every)
    found: list[Traced[T]] = []
    alike = {s.name for s in every if len({dict(each.values)[s.name] for each in tuned}) == 1}
    cut = [s for s in every if len(tuned) == 1 or s.name not in alike]
    left, before = np.ones(grid.count, bool), list[Sequence[Condition]]()
    for number, whole in enumerate(regions(every, tuned)):
        wanted = dict(tuned[number].values)
        middle = grid.nearest(left & grid.meets(whole), wanted)
        if middle is None:
            continue
        known = times(middle, number, whole).beyond(before)
        before.append(whole)
        for region in parts(whole, cut, known):
            own = left & grid.meets(region)
            left &= ~own
            start: SizeValues | None = grid.nearest(own, wanted)
            while start is not None:
                same = start == middle and region == tuple(whole)  # so spaces are the same
                defaults = known.defaults(region) if same else {}
                program, needed = trace(start, number, region, defaults)
                conditions = grid.without_implied(tuple(dict.fromkeys((*region, *needed))))
                found.append(Traced(program, conditions, start, known.regret(region)))
                own &= ~grid.meets(conditions)
                start = grid.greatest(own)
                if len(found) > MOST_PROGRAMS:
                    raise InputError(_too_many(every, needed))
    return found


def _too_many(every: Sequence[Size], needed: Sequence[Condition]) -> str:
    named = ", ".join(map(str, every))
    why = "; ".join(str(c) for c in needed if c.relation == "eq" and c.holds) or "its conditions"
    return (
        f"{named}: expected a network whose kernels serve many sizes; more than {MOST_PROGRAMS} "
        f"programs would be needed ({why}); give narrower ranges, or single extents"
    )


def checked_sizes(request: TuneRequest, traced: Sequence[SizeValues]) -> list[dict[str, int]]:
    """The sizes at which a bundle is compared with the oracle.

    The least and the greatest, those for which its programs were `traced`, and some at random.
    """
    every = sizes(request)
    found = [{s.name: s.least for s in every}, {s.name: s.most for s in every}]
    found += [usual_values(request)]
    found += [dict(values) for values in traced]
    found += random_sizes(every, _RANDOM_SIZES, request.seed)
    return [dict(row) for row in dict.fromkeys(tuple(values.items()) for values in found)]


def random_sizes(every: Sequence[Size], count: int, seed: int) -> list[dict[str, int]]:
    """Random values of the sizes, `count` of them; equal seeds give equal values."""
    rng = np.random.default_rng(seed)
    return [{s.name: int(rng.choice(s.values)) for s in every} for _ in range(count)]
