"""Our numpy for ops of host steps that `onnx.reference` takes too long for, or gets wrong.

Its NonMaxSuppression, RoiAlign, GatherND and Scatter ops are loops of Python over elements, its
GatherElements takes at most some dozens of choices, its Unique forgets about `sorted` where only
the values are asked for, and its Loop stacks what it made as if it were rows. `OWN_RUNS` is what
ReferenceEvaluator is given in their place; what they compute is in `host_numpy`. Only imported
where a host step is opened, as `onnx` is.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun

from retune.ops import host_numpy
from retune.ops.registry import Array

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


class Loop(OpRun):
    """The loop of the specification: what each turn makes lies along a new first axis."""

    op_domain = ""

    def need_context(self) -> bool:
        """True: the body sees the values around it."""
        return True

    def _run(
        self,
        limit: Array | None,
        going: Array | None = None,
        *carried: Any,
        context: dict[str, Any] | None = None,
        attributes: dict[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Any, ...]:
        body: Any = self.body  # pyright: ignore[reportAttributeAccessIssue]
        going, state = np.asarray(True if going is None else going), list(carried)
        made: list[list[Any]] = []
        while going.all() and (limit is None or len(made) < int(np.max(limit))):
            turn = np.asarray(len(made), np.int64)
            feeds = dict(zip(body.input_names, (turn, going, *state), strict=True))
            results = body.run(None, {**(context or {}), **feeds}, attributes=attributes)
            going, state = np.asarray(results[0]), results[1 : 1 + len(carried)]
            made.append(results[1 + len(carried) :])
        types = body.output_types[1 + len(carried) :]
        columns = zip(*made, strict=True) if made else [()] * len(types)
        pairs = zip(types, columns, strict=True)
        return (*state, *(np.stack(parts) if parts else _nothing(kind) for kind, parts in pairs))


def _nothing(kind: Any) -> Array:
    """No rows of the ONNX type; extents that it leaves open are 0."""
    shape = (0, *(dim.dim_value for dim in kind.tensor_type.shape.dim))
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))


def _own(name: str, meaning: Callable[..., Array | tuple[Array, ...]]) -> type[OpRun]:
    """The class that `onnx.reference` runs for the op of that name."""

    def run(self: OpRun, *args: Any, **kwargs: Any) -> tuple[Array, ...]:
        del self
        made = meaning(*args, **kwargs)
        return made if isinstance(made, tuple) else (made,)

    return type(name, (OpRun,), {"op_domain": "", "_run": run, "__doc__": meaning.__doc__})


OWN_RUNS: tuple[type[OpRun], ...] = (
    Loop,
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
