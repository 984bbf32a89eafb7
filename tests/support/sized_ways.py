"""Random networks with sizes, compiled once and run at several sizes. Read `Compiled`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnxruntime

from retune.bundle.build import build_plan
from retune.bundle.invariants import verify_plan
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.module import Module
from retune.bundle.variants import join_plans, with_sizes_of
from retune.core.dims import Condition, SizeValues, assuming, dim_of, sizes_of
from retune.core.ranges import TunedSizes
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import Layout, optimise
from retune.ops import Array
from retune.pipeline.sizes import Traced, covering
from retune.schedule.space import Candidate
from retune.search.extract import Network, extract
from retune.search.regret import SizeTimes
from tests.external.on_device import opened
from tests.support.oracle import unoptimised
from tests.support.random_sizes import Sized
from tests.support.random_ways import BARE_GPU, CPU, GPU, SHORT
from tests.support.sized_networks import UNESTIMATED

WAYS: tuple[tuple[str, Layout], ...] = (
    (CPU, "NHWC"),
    (GPU, "NHWC"),
    (SHORT, "NCHW"),
    (BARE_GPU, "NHWC"),
)
"""Devices with an order of channels."""

LEAST_RANGE = 0.1
"""Outputs of a smaller range are compared as if they had this one."""


def way_of(device: str, seed: int) -> tuple[str, Layout]:
    """The device with an order of channels: every second seed has them last."""
    return device, "NHWC" if seed % 2 else "NCHW"


@dataclass(frozen=True)
class Compiled:
    """A network by default schedules for its greatest sizes, with variants for all others."""

    sized: Sized
    device: str
    layout: Layout
    counts: bool = False
    """Kernels run behind what its data count."""
    quick: bool = False
    """PoCL does not optimise kernels, and one program is taken to be as good as several: this takes
    a fifth of the time, of which most goes into estimates and into optimising."""

    def _network(self) -> Network:
        """At the sizes that are assumed."""
        given = self.sized.values
        stated = sizes_of(e for row in given.values() for e in row)
        shapes = {s.name: (dim_of(s),) for s in self.sized.sizes if s not in stated}
        graph = import_model(self.sized.model, shapes, values=given, counts=self.counts)
        return extract(optimise(graph.verify(), self.layout), max_error=0.0)

    def _trace(
        self,
        values: SizeValues,
        _: int,
        region: Sequence[Condition],
        defaults: Mapping[str, Candidate],
    ) -> tuple[NetworkPlan, Sequence[Condition]]:
        with assuming(values, region) as assumed:
            spec = opened(self.device).spec
            plan = build_plan(self._network(), defaults, spec, model_key="0", notes={})
        return plan, assumed.conditions

    def _times(self, values: SizeValues, _: int, region: Sequence[Condition]) -> SizeTimes:
        if self.quick:
            return UNESTIMATED
        with assuming(values, region):
            tasks = (task for task in self._network().tasks.values() if task.tunable)
            return SizeTimes.of(tasks, self.sized.sizes, opened(self.device).spec)

    @cached_property
    def traces(self) -> list[Traced[NetworkPlan]]:
        """A plan for the greatest sizes, and further ones where it does not hold."""
        ends = (0, -1) if self.counts else (-1,)  # several programs share what is counted
        tuned = [
            TunedSizes(tuple((size.name, size.values[end]) for size in self.sized.sizes), 1.0)
            for end in ends
        ]
        return covering(self.sized.sizes, tuned, self._trace, self._times)

    @cached_property
    def plan(self) -> NetworkPlan:
        """All of them as one."""
        found, every = self.traces, self.traces[-1].program
        plans = [with_sizes_of(each.program, every, each.at) for each in found]
        return verified(join_plans(plans, [each.conditions for each in found]))

    @cached_property
    def module(self) -> Module:
        """Loaded on its device."""
        return Module(unoptimised(self.plan) if self.quick else self.plan, opened(self.device))

    @property
    def fixing(self) -> list[str]:
        """The conditions that hold for one value of a size only."""
        return [str(c) for each in self.traces for c in each.conditions if fixes_a_size(c)]

    def assert_right(self, places: Iterable[SizeValues], seed: int) -> None:
        """At these sizes it computes what onnxruntime computes."""
        for values in places:
            feeds = self.module.random_inputs(seed, values)
            assert_same(self.module.run(feeds), expected(self.sized.model, feeds), str(values))


def fixes_a_size(condition: Condition) -> bool:
    """Whether it holds for one value of a size only."""
    return condition.relation == "eq" and condition.holds and len(condition.dim.sizes) == 1


def verified(plan: NetworkPlan) -> NetworkPlan:
    """The plan, of which all invariants hold."""
    verify_plan(plan)
    return plan


def expected(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """What the model makes of them, to onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [entry.name for entry in session.get_outputs()]
    known = {entry.name for entry in session.get_inputs()}
    given = {name: array for name, array in feeds.items() if name in known}
    arrays = (np.asarray(array) for array in session.run(names, given))
    return dict(zip(names, arrays, strict=True))


def assert_same(found: Mapping[str, Array], meant: Mapping[str, Array], where: str) -> None:
    """Equal up to the rounding of floats; integers exactly."""
    assert found.keys() == meant.keys()
    for name, array in meant.items():
        assert found[name].shape == array.shape, f"{where}: {name}"
        exact = not array.dtype.name.startswith("float")
        scale = 1.0 if exact or not array.size else max(float(np.ptp(array)), LEAST_RANGE)
        np.testing.assert_allclose(
            found[name] / scale,
            array / scale,
            rtol=0,
            atol=0 if exact else 5e-4,
            err_msg=f"{where}: {name}",
        )
