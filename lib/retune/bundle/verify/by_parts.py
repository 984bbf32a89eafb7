"""A network with host steps against a reference, part by part.

Read `parts_of`. What a host step makes may jump where its inputs hardly change: of two boxes whose
scores are nearly equal, NonMaxSuppression keeps one or the other, whatever the tolerance. So if the
outputs as a whole do not agree, each part is compared on the bundle's own values: what the device
makes (from the inputs, and from what host steps made) by its range as usual; what a host step makes
of what it really read, exactly where that is integers. A truth value that the device makes of
floats is compared by their range as well: of millions of scores a few lie at the threshold. If all
parts agree, so does the network up to such jumps: it is nothing but its parts, and these are the
values that went from one to the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from retune.bundle.runtime.hosting import HostRun
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import Predict, has_onnxruntime, predict_with_onnxruntime
from retune.core.errors import ModelError
from retune.frontend.onnx.subgraph import extract_subgraph, margin_name, with_input_types
from retune.graph.graph import Graph, Node, array_type
from retune.ops import lookup
from retune.ops.registry import HOST

_COMPARISONS = ("greater", "greater_equal", "less", "less_equal")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PartValue:
    """A value that a part of the network made, and what the reference makes of the same."""

    name: str
    got: np.ndarray
    expected: np.ndarray
    margin: np.ndarray | None = None
    """Of truth values that comparing floats makes: the reference's difference of both, whose sign
    they are. None for other values."""


Role = Literal["replacing", "confirming", "deciding"]
"""When parts are compared: instead of outputs that do not agree; as well, where rounding
excuses outputs; or always, and outputs as a whole never."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The comparison of a bundle's parts with a reference's."""

    values: Callable[[Mapping[str, np.ndarray], Mapping[str, np.ndarray]], Sequence[PartValue]]
    """Every value that leaves a part, for inputs by name, and for what the bundle made of them."""
    role: Role = "replacing"

    def __call__(
        self, inputs: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray]
    ) -> Sequence[PartValue]:
        """See `values`."""
        return self.values(inputs, made)


def parts_of(module: Module, model: Path, graph: Graph) -> Parts | None:
    """The comparison of the module's parts with the reference's; None without host steps.

    The reference is onnxruntime, on the ONNX file at `model` cut into the same parts. Where it is
    not installed, or the file does not name the values between them (they may be of a function),
    it is the numpy meaning of `graph`, which is what was imported from the file.
    """
    return Parts(_ReferenceSessions(module, model, graph)) if module.plan.hosts else None


_Kinds = tuple[tuple[str, tuple[int, ...]], ...]
"""Values and their shapes, which may be others in each run."""


class _ReferenceSessions:
    """The sessions of the reference, opened when they are first needed."""

    def __init__(self, module: Module, model: Path, graph: Graph) -> None:
        self._module = module
        self._model = model
        self._graph = graph
        self._compared = {
            node.outputs[0]: node.inputs
            for node in graph.nodes
            if node.op in _COMPARISONS and graph.types[node.inputs[0]].dtype.is_float
        }
        """Truth values of the graph, and the floats that are compared."""
        self._device: dict[_Kinds, Predict | None] = {}
        self._steps: dict[tuple[int, _Kinds], Predict] = {}

    def __call__(
        self, inputs: Mapping[str, np.ndarray], made: Mapping[str, np.ndarray]
    ) -> list[PartValue]:
        del made  # the same as here
        outputs, runs = self._module.observe(inputs)
        return [*self._of_device(inputs, outputs, runs), *self._of_hosts(runs)]

    def _of_device(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        runs: Sequence[HostRun],
    ) -> list[PartValue]:
        """What host steps and the caller get from the device, and host steps from each other."""
        read, made = _named(runs)
        given = {**inputs, **made}
        passed = [
            PartValue(name=n, got=a, expected=given[n]) for n, a in read.items() if n in given
        ]
        got = {name: array for name, array in {**read, **outputs}.items() if name not in given}
        if not got:
            return passed
        kinds = _kinds(given)
        if kinds not in self._device:
            self._device[kinds] = self._cut(given, list(got))
        cut = self._device[kinds]
        if cut is None:
            return [*passed, *self._by_numpy(inputs, outputs, runs)]
        expected = cut(given)
        made_there = (
            PartValue(name=n, got=a, expected=expected[n], margin=expected.get(margin_name(n)))
            for n, a in got.items()
        )
        return [*passed, *made_there]

    def _cut(self, given: Mapping[str, np.ndarray], names: Sequence[str]) -> Predict | None:
        if not has_onnxruntime():
            return None
        margins = self._compared.keys() & {*names}
        part = extract_subgraph(
            self._model, {n: array_type(a) for n, a in given.items()}, names, margins
        )
        try:
            return predict_with_onnxruntime(part) if part else None
        except ModelError:  # it takes the network, but not all of its parts
            return None

    def _by_numpy(
        self,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        runs: Sequence[HostRun],
    ) -> list[PartValue]:
        """The graph's values at the same positions, each host step's outputs being the module's."""
        values: dict[str, np.ndarray] = {**self._graph.constants, **inputs}
        found: list[PartValue] = []
        counts = {name: count for run in runs for name, count in run.counts.items()}
        for node in self._graph.nodes:
            arrays = [values[value] if value else None for value in node.inputs]
            if node.op != HOST:
                made = lookup(node.op).reference(arrays, node.at(counts).attrs)
                values.update(zip(node.outputs, made, strict=True))
                continue
            run = _run_of(node, runs)
            for position, (value, array) in enumerate(zip(node.inputs, run.inputs, strict=True)):
                label = f"{run.step.label}, input {position}"
                found.append(self._from(values, value, label, array))
            values.update(zip(node.outputs, run.outputs, strict=True))
        return [*found, *(self._from(values, n, n, outputs[n]) for n in self._graph.outputs)]

    def _from(
        self, values: Mapping[str, np.ndarray], value: str, name: str, got: np.ndarray
    ) -> PartValue:
        """What is compared with that one of the graph's values."""
        margin = None
        if value in self._compared:
            a, b = (values[operand].astype(np.float64) for operand in self._compared[value])
            margin = a - b
        return PartValue(name=name, got=got, expected=values[value], margin=margin)

    def _of_hosts(self, runs: Sequence[HostRun]) -> list[PartValue]:
        """What host steps make; nothing without onnxruntime: they are numpy's meaning."""
        found: list[PartValue] = []
        if not has_onnxruntime():
            return found
        for number, run in enumerate(runs):
            step = run.step.opened
            given = dict(zip(step.inputs, run.inputs, strict=True))
            key = number, _kinds(given)
            if key not in self._steps:
                self._steps[key] = predict_with_onnxruntime(self._model_of(run))
            expected = self._steps[key](given)
            found += [
                PartValue(name=f"{run.step.label}, {name}", got=array, expected=expected[name])
                for name, array in zip(step.outputs, run.outputs, strict=True)
            ]
        return found

    def _model_of(self, run: HostRun) -> bytes:
        """The step as the file has it; the bundle's own model where the file does not name it."""
        step, kinds = run.step.opened, [array_type(array) for array in run.inputs]
        own = dict(zip(step.inputs, kinds, strict=True))
        return extract_subgraph(self._model, own, step.outputs) or with_input_types(
            run.step.model, kinds
        )


def _kinds(given: Mapping[str, np.ndarray]) -> _Kinds:
    return tuple((name, array.shape) for name, array in given.items())


def _named(runs: Sequence[HostRun]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What host steps read and what they made, by the names that their models have for it."""
    read: dict[str, np.ndarray] = {}
    made: dict[str, np.ndarray] = {}
    for run in runs:
        read.update(zip(run.step.opened.inputs, run.inputs, strict=True))
        made.update(zip(run.step.opened.outputs, run.outputs, strict=True))
    return read, made


def _run_of(node: Node, runs: Sequence[HostRun]) -> HostRun:
    """The run of that node of the graph: passes keep the names of what a host step makes."""
    return next(run for run in runs if set(run.step.writes) & set(node.outputs))
