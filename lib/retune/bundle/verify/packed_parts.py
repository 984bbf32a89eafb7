"""A network with an accelerator's part against numpy's meaning of it, part by part.

Read `packed_parts`. Before the packed part a device computes with floats, whose last bits follow
the order of its sums; where such a number lies between two quantized values, it may become either,
and integers carry that on. So each part is judged by what it really read: what the accelerator
makes has to be numpy's, bit by bit; what it reads of the device may be one step off in a few
elements; and what the device makes of the accelerator's results is compared as usual.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from retune.bundle.runtime.hosting import HostRun
from retune.bundle.runtime.module import Module
from retune.bundle.verify.by_parts import Parts, PartValue
from retune.graph.fuse import runs_aside
from retune.graph.graph import Graph
from retune.ops import lookup

_FEW = 1e-3
"""Part of the quantized values that may be one off: far more than rounding makes of any network."""


def packed_parts(module: Module, graph: Graph) -> Parts:
    """The comparison of the module's parts with those of the packed graph that it was made of."""

    def compared(
        inputs: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray]
    ) -> Sequence[PartValue]:
        del made  # the same as here
        outputs, runs = module.observe(inputs)
        return _compared(graph, inputs, outputs, {run.step.outputs[0]: run for run in runs})

    return Parts(compared)


def _compared(
    graph: Graph,
    inputs: Mapping[str, np.ndarray],
    outputs: Mapping[str, np.ndarray],
    runs: Mapping[str, HostRun],
) -> list[PartValue]:
    values: dict[str, np.ndarray] = {**graph.constants, **inputs}
    found: list[PartValue] = []
    for node in graph.nodes:
        run = runs[node.outputs[0]] if runs_aside(node) else None
        if run is not None:
            for name, array in zip(node.inputs, run.inputs, strict=True):
                found.append(PartValue(name=name, got=array, expected=_near(array, values[name])))
                values[name] = array
        arrays = [values[name] if name else None for name in node.inputs]
        made = lookup(node.op).reference(arrays, node.attrs)
        values.update(zip(node.outputs, made, strict=True))
        if run is not None:
            for name, array in zip(node.outputs, run.outputs, strict=True):
                found.append(PartValue(name=name, got=array, expected=values[name]))
                values[name] = array
    ends = ((name, outputs[name]) for name in graph.outputs)
    return [*found, *(PartValue(name=n, got=a, expected=values[n]) for n, a in ends)]


def _near(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """What the array is compared with: itself, where few elements are one off from the expected."""
    if got.shape != expected.shape:
        return expected
    apart = np.abs(got.astype(np.int64) - expected.astype(np.int64))
    near = apart.max(initial=0) <= 1 and np.count_nonzero(apart) <= _FEW * apart.size
    return got if near else expected
