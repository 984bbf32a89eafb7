"""Our numpy for ops of host steps that `onnx.reference` takes too long for, or gets wrong.

Its NonMaxSuppression, RoiAlign, GatherND and Scatter ops are loops of Python over elements, its
GatherElements takes at most some dozens of choices, and its Unique forgets about `sorted` where
only the values are asked for. `OWN_RUNS` is what ReferenceEvaluator is given in their place; what
they compute is in `host_numpy`. Only imported where a host step is opened, as `onnx` is.
"""

from collections.abc import Callable
from typing import Any

from onnx.reference.op_run import OpRun

from retune.graph.ops import host_numpy
from retune.graph.ops.registry import Array

_HALF_PIXEL_SINCE = 16
"""RoiAlign of older operator sets has no half pixels, and no attribute for them."""


class RoiAlign(OpRun):
    """As `host_numpy.roi_align`, for every operator set."""

    op_domain = ""

    def _run(self, *args: Any, **kwargs: Any) -> tuple[Array, ...]:
        mode = kwargs.pop("coordinate_transformation_mode", "half_pixel")
        new = self.run_params["opsets"][self.op_domain] >= _HALF_PIXEL_SINCE
        half = new and mode == "half_pixel"
        return (host_numpy.roi_align(*args, half_pixel=half, **kwargs),)


def _own(name: str, meaning: Callable[..., Array | tuple[Array, ...]]) -> type[OpRun]:
    """The class that `onnx.reference` runs for the op of that name."""

    def run(self: OpRun, *args: Any, **kwargs: Any) -> tuple[Array, ...]:
        del self
        made = meaning(*args, **kwargs)
        return made if isinstance(made, tuple) else (made,)

    return type(name, (OpRun,), {"op_domain": "", "_run": run, "__doc__": meaning.__doc__})


OWN_RUNS: tuple[type[OpRun], ...] = (
    RoiAlign,
    _own("GatherElements", host_numpy.gather_elements),
    _own("GatherND", host_numpy.gather_nd),
    _own("NonMaxSuppression", host_numpy.non_max_suppression),
    _own("ScatterElements", host_numpy.scatter_elements),
    _own("ScatterND", host_numpy.scatter_nd),
    _own("TopK", host_numpy.top_k),
    _own("Unique", host_numpy.unique),
)
"""One class for each op."""
