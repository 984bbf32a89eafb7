"""Host parts of a model: its nodes as a small ONNX model of their own.

A node that the device cannot run becomes a host step of the graph, or is evaluated while importing
if its inputs are constant. Extents of its outputs that depend on the data become sizes of the
network where `counts` says how large they may be. Otherwise, or where that is not asked for,
whatever reads such an output runs on the host too: these nodes are kept back, and make up one last
host step.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference

from retune.core.dims import Size, dim_of, parse_dim, sizes_of
from retune.core.dtypes import TensorType
from retune.core.errors import ModelError
from retune.frontend.host.runner import open_body
from retune.frontend.host.step import host_attrs
from retune.frontend.onnx.counts import Count, TypedNode, counted_shapes
from retune.frontend.onnx.functions import Functions
from retune.graph.graph import GraphBuilder
from retune.ir.plan import quiet
from retune.ops import Array
from retune.proto.file import stated_tensor, value_info
from retune.proto.scope import Opsets, read_by


def evaluate(
    proto: onnx.NodeProto, arrays: Mapping[str, Array], opsets: Opsets, functions: Functions
) -> dict[str, Array] | None:
    """The outputs of a node whose inputs are constant; None if nothing computes them."""
    made = list(filter(None, proto.output))
    try:
        with quiet():
            results = open_body([proto], made, opsets, functions)(arrays)
    except ModelError:
        return None
    found = dict(zip(made, results, strict=True))
    return found if all(isinstance(item, np.ndarray) for item in found.values()) else None


def runs_on_host(proto: onnx.NodeProto, opsets: Opsets, functions: Functions) -> bool:
    """True if there is a meaning of the operator in numpy."""
    try:
        open_body([proto], [], opsets, functions)
    except ModelError:
        return False
    return True


class HostPart:
    """The nodes of a model that run on the host, added to the graph under construction."""

    def __init__(
        self, build: GraphBuilder, opsets: Opsets, functions: Functions, *, counts: bool = False
    ) -> None:
        """`opsets` are those in which the kept nodes are written. With `counts`, extents that data
        decide are sizes where they are bounded."""
        self.counts = counts
        self._build = build
        self._opsets = opsets
        self._functions = functions
        self._kept: list[onnx.NodeProto] = []
        self._counts: dict[str, int] = {}
        self.kept_values: set[str] = set()
        """Values of nodes that were kept back: of sizes that are unknown before the network runs,
        or computed from such."""

    def add(self, proto: onnx.NodeProto, opsets: Opsets, stated: Sequence[TensorType] = ()) -> None:
        """The node is a host step, or is kept back where it makes values of unknown sizes.

        `stated` are the types of its outputs where ONNX does not say them.
        """
        model = self._model([proto], list(filter(None, proto.output)), opsets)
        if stated:
            return self._add(model, stated, proto.name)
        sizes = {s.name: s for kind in self._build.types.values() for s in sizes_of(kind.shape)}
        types = _inferred(model, sizes if self.counts else {})
        if self.counts and any(entry is None or not entry.known for entry in types.values()):
            types = self._counted(proto, types) or types
        if any(entry is None or not entry.known for entry in types.values()):
            return self.keep(proto, opsets)
        return self._add(model, [entry for entry in types.values() if entry], proto.name)

    def _counted(
        self, proto: onnx.NodeProto, inferred: Mapping[str, TensorType | None]
    ) -> dict[str, TensorType] | None:
        """The types of the node's outputs, with a size for each extent that its data decide; None
        without a bound."""
        types, constants = self._build.types, self._build.constants
        read = [types.get(name) for name in proto.input]
        shapes = counted_shapes(
            TypedNode(proto, read, [constants.get(name) for name in proto.input])
        )
        if shapes is None or None in inferred.values():
            return None
        sizes: dict[Count, int] = {}
        found: dict[str, TensorType] = {}
        for name, shape in zip(proto.output, shapes, strict=False):
            for count in (each for each in shape if isinstance(each, Count)):
                if count not in sizes:
                    sizes[count] = dim_of(self._size(name, count.most))
            extents = [sizes[each] if isinstance(each, Count) else each for each in shape]
            if name and (entry := inferred[name]) is not None:
                found[name] = TensorType(tuple(extents), entry.dtype)
        return found

    def _size(self, value: str, most: int) -> Size:
        """A size for what is counted to make that value, under a name of its own."""
        stem = re.sub(r"\W", "_", f"count_{value}", flags=re.ASCII)
        self._counts[stem] = number = self._counts.get(stem, 0) + 1
        return Size(f"{stem}_{number}" if number > 1 else stem, 0, most, counted=True)

    def keep(self, proto: onnx.NodeProto, opsets: Opsets) -> None:
        """The node is part of the last host step. Raises: ModelError."""
        differing = [d for d, v in opsets.items() if self._opsets.get(d, v) != v]
        if differing:
            raise ModelError(
                "a function in another operator set than the model's "
                f"({opsets[differing[0]]}, not {self._opsets[differing[0]]}) makes values whose "
                "sizes depend on the data; convert the model to that set with "
                "onnx.version_converter"
            )
        self._kept.append(proto)
        self.kept_values.update(filter(None, proto.output))

    def finish(self, outputs: Iterable[onnx.ValueInfoProto]) -> None:
        """Those of the network's outputs that were kept back are made by one last host step.

        Raises: ModelError for one whose rank or element type neither follows nor is stated.
        """
        wanted = {entry.name: entry for entry in outputs if entry.name in self.kept_values}
        if not wanted:
            return
        needed, nodes = set(wanted), list[onnx.NodeProto]()
        for proto in reversed(self._kept):
            if needed.intersection(proto.output):
                nodes.append(proto)
                needed.update(read_by(proto))
        model = self._model(nodes[::-1], list(wanted), self._opsets)
        types: list[TensorType] = []
        for name, entry in _inferred(model).items():
            found = entry or stated_tensor(wanted[name], f"output '{name}'")
            if found is None:
                raise ModelError(
                    f"{self._build.name}: the type of output '{name}' does not follow from the "
                    "inputs', nor does the model state it; expected a tensor of known rank; run "
                    "onnx.shape_inference, or state it"
                )
            types.append(found)
        self._add(model, types, "host")

    def _add(self, model: onnx.ModelProto, types: Sequence[TensorType], name: str) -> None:
        inputs = [entry.name for entry in model.graph.input]
        outputs = [entry.name for entry in model.graph.output]
        self._build.add("host", inputs, host_attrs(model, types), outputs=outputs, name=name)

    def _model(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], opsets: Opsets
    ) -> onnx.ModelProto:
        made = {name for proto in nodes for name in proto.output}
        read = dict.fromkeys(name for proto in nodes for name in read_by(proto) if name not in made)
        known = {n: self._build.constants[n] for n in read if n in self._build.constants}
        types = {n: self._build.types[n] for n in read if n not in known}
        return _model(nodes, types, known, outputs, opsets, self._functions)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, TensorType],
    known: Mapping[str, Array],
    outputs: Sequence[str],
    opsets: Opsets,
    functions: Functions,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "host",
        [value_info(name, entry) for name, entry in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()],
    )
    sets = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    return helper.make_model(graph, opset_imports=sets, functions=list(functions.values()))


def _inferred(
    model: onnx.ModelProto, sizes: Mapping[str, Size] | None = None
) -> dict[str, TensorType | None]:
    """The types of the model's outputs as far as they follow from its inputs', in terms of sizes.

    None where not even the rank or the element type does. Raises: ModelError for shapes that do not
    fit together.
    """
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except shape_inference.InferenceError as error:
        raise ModelError(
            f"its shapes contradict each other ({' '.join(str(error).split())}); check the model "
            "with onnx.checker"
        ) from error
    return {
        entry.name: _in_sizes(entry, stated_tensor(entry, f"output '{entry.name}'"), sizes or {})
        for entry in inferred.graph.output
    }


def _in_sizes(
    entry: onnx.ValueInfoProto, kind: TensorType | None, sizes: Mapping[str, Size]
) -> TensorType | None:
    """The type, with extents whose symbols are those of an input in terms of sizes."""
    if kind is None or kind.known or not sizes:
        return kind
    extents = list(kind.shape)
    for axis, dim in enumerate(entry.type.tensor_type.shape.dim):
        if dim.dim_param:
            try:
                extents[axis] = parse_dim(dim.dim_param, sizes)
            except ValueError:
                continue  # a symbol that the inference made
    return TensorType(tuple(extents), kind.dtype)
