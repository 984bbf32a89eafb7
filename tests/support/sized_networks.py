"""Networks imported once for many sizes, against onnxruntime at each of them."""

from collections.abc import Iterable, Mapping

import numpy as np
import onnx
import onnxruntime
from onnx import parser

from retune.core.dims import Condition, Size, SizeValues, assuming, dim_of
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.search.regret import SizeTimes

UNESTIMATED = SizeTimes((), ())
"""Of no task: one program is as good as several."""

_OPSETS = 'ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]'


def model_of(text: str) -> onnx.ModelProto:
    """The model of a graph in ONNX's text form: `(float[n, 3] x) => (float[n, 3] y) {...}`."""
    return parser.parse_model(f"<{_OPSETS}> net {text}")


def imported(
    model: onnx.ModelProto,
    sizes: Iterable[Size],
    values: SizeValues,
    stated: Mapping[str, tuple[int, ...]] | None = None,
) -> tuple[list[Graph], tuple[Condition, ...]]:
    """The graph in terms of the sizes, and as it is optimised; and the conditions that they are
    right for. `stated` are the values of inputs that are sizes."""
    with assuming(values) as assumed:
        graph = import_model(
            model, {size.name: (dim_of(size),) for size in sizes}, values=stated or {}
        )
        graphs = [graph, *(optimise(graph, layout) for layout in ("NCHW", "NHWC"))]
        for made in graphs:
            made.verify()
    for made in graphs:
        assert made.sizes.keys() <= set(sizes)
    return graphs, assumed.conditions


def check(
    model: onnx.ModelProto,
    graphs: Iterable[Graph],
    values: SizeValues,
    *,
    given: Mapping[str, np.ndarray] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """The graphs give for these sizes what onnxruntime gives."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [entry.name for entry in session.get_outputs()]
    inputs: Mapping[str, np.ndarray] = {}
    for graph in graphs:
        fixed = graph.at(values).verify()
        assert all(entry.fixed for entry in fixed.types.values())
        inputs = inputs or {**random_inputs(fixed, 7), **(given or {})}
        found = run_graph(fixed, inputs)
        for name, wanted in zip(names, session.run(names, dict(inputs)), strict=True):
            array = np.asarray(wanted)
            assert found[name].shape == array.shape, (name, dict(values))
            spread = float(np.abs(array).max(initial=1e-3))
            np.testing.assert_allclose(
                found[name], array, rtol=tolerance, atol=tolerance * spread, err_msg=str(values)
            )
