"""What the stage `layout` leaves behind."""

from dataclasses import dataclass

from retune.device.opencl.launch_cost import NO_LAUNCHES, LaunchCost
from retune.pipeline.layout_plan import LayoutPlan, LayoutTotal
from retune.pipeline.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutManifest(Manifest):
    """The plan of layouts for a network, and what else was weighed."""

    plan: LayoutPlan = LayoutPlan()
    """Kernels are all of the network, in its order, then joints out of rows."""
    totals: tuple[LayoutTotal, ...] = ()
    """That of the plan first."""
    unmeasured: int = 0
    """Kernels of which no time is known: they count nothing in a total."""
    trials: int = 0
    """Candidates that were measured for it."""
    unused: int = 0
    """Of these, with other layouts than rows that the plan does not use."""
    launch: LaunchCost = NO_LAUNCHES
    """What launching costs on the device, as it was measured; part of the totals."""


UNPLANNED = LayoutManifest()
"""All images in rows, and nothing was measured for it."""
