"""The manifest of the stage `layout`."""

from dataclasses import dataclass

from retune.core.layouts import LayoutPlan
from retune.device.opencl.launch_cost import NO_LAUNCHES, LaunchCost
from retune.pipeline.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutTotal:
    """The estimated time of a network in some layouts, by the costs of its kernels and copies."""

    name: str
    us: float
    copies: int
    """Activations that are copied."""
    optimal: bool | None = None
    """Whether nothing costs less, and that is proven; None: the solver did not choose it."""

    @classmethod
    def of(
        cls, name: str, plan: LayoutPlan, launch: LaunchCost, optimal: bool | None = None
    ) -> "LayoutTotal":
        """The total of a plan, with these launches."""
        us = launch.sequence_us((*plan.kernels_us.values(), *plan.copies_us.values()))
        return cls(name=name, us=us, copies=len(plan.copies_us), optimal=optimal)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutManifest(Manifest):
    """The plan of layouts for a network, and what else was weighed."""

    plan: LayoutPlan = LayoutPlan()
    totals: tuple[LayoutTotal, ...] = ()
    """That of the plan first."""
    unplanned: str = ""
    """Why nothing is measured in other layouts on the device; empty where layouts were planned, or
    nobody asked for a plan."""
    unmeasured: int = 0
    """Kernels of which no time is known: they count nothing in a total."""
    trials: int = 0
    """Candidates that were measured for it."""
    spent_s: float = 0.0
    """Of the run's minutes."""
    unused: int = 0
    """Of these, in other layouts than NHWC that the plan does not use."""
    launch: LaunchCost = NO_LAUNCHES
    """What launching costs on the device, as it was measured; part of the totals."""


UNPLANNED = LayoutManifest()
"""All activations in NHWC, and nothing was measured for it."""
