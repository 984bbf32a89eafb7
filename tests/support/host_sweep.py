"""Operators in host steps, for every operator set in which they changed.

Read `Case` and `run`: each is one node, which gets more, fewer and no rows of its first input, as
behind what the data choose. What it reads besides comes at run time, too.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import defs, helper, numpy_helper

from retune.core.dtypes import UNKNOWN, DType, TensorType
from retune.frontend.host.step import host_attrs, step_of
from retune.proto.file import OLDEST_OPSET

Arrays = Mapping[str, np.ndarray]
NEWEST_PEER = 25
"""The newest operator set that onnxruntime runs."""
PEER_LACKS = {("GlobalLpPool", 22), ("MaxRoiPool", 22), ("RoiAlign", 22)}
"""What onnxruntime does not run, though it runs the operator in older sets."""
ROWS = 4

_RNG = np.random.default_rng(38)


def normal(*shape: int) -> np.ndarray:
    """float32 around zero."""
    return _RNG.standard_normal(shape).astype(np.float32)


def share(*shape: int) -> np.ndarray:
    """float32 inside of 0.1 and 0.9, which all functions take."""
    return (0.1 + 0.8 * _RNG.random(shape)).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    """int64."""
    return np.array(values, np.int64)


@dataclass(frozen=True)
class Form:
    """How an operator is written from one operator set on."""

    others: Sequence[np.ndarray | None] = ()
    """Inputs besides the first; None is omitted."""
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """An operator in one operator set."""

    op: str
    opset: int
    x: np.ndarray
    """The first input, of which only some rows are there."""
    form: Form
    outputs: int = 1
    tolerance: float = 1e-5
    label: str = ""
    fewest: int = 0
    """Rows for which onnxruntime has an answer."""
    sliced: tuple[str, ...] = ()
    """Other inputs (`in0`, ...) that have as many rows."""
    stored: bool = False
    """Whether the other inputs are initializers: where onnxruntime wants it, or meaning differs."""

    def __str__(self) -> str:
        return f"{self.op}-{self.opset}{self.label}"


@cache
def _schemas() -> Mapping[str, list[defs.OpSchema]]:
    """Operator -> its schemas in all operator sets of ONNX's own domain."""
    found: dict[str, list[defs.OpSchema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            found[schema.name].append(schema)
    return found


def versions(op: str) -> list[int]:
    """The operator sets in which the operator changed, those before the oldest as that one."""
    schemas = _schemas()[op]
    retired = min((s.since_version for s in schemas if s.deprecated), default=NEWEST_PEER + 1)
    own = {max(s.since_version, OLDEST_OPSET) for s in schemas if not s.deprecated}
    return sorted(v for v in own if v < retired and (op, v) not in PEER_LACKS)


def cases(
    op: str, x: np.ndarray, *forms: tuple[int, Form], label: str = "", **options: Any
) -> Iterator[Case]:
    """The operator in each of its operator sets, in the newest form that is not newer."""
    forms = forms or ((1, Form()),)
    for opset in versions(op):
        fitting = [form for since, form in forms if since <= opset]
        if fitting:
            yield Case(op, opset, x, fitting[-1], label=label and f"-{label}", **options)


def run(case: Case) -> None:
    """The host step agrees with onnxruntime for all, three, one and no rows, and three again."""
    model = model_of(case)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    step = None
    for rows in (ROWS, 3, 1, 0, 3):
        if rows < case.fewest:
            continue
        feeds = feeds_of(case, rows)
        expected = session.run(None, feeds)
        if step is None:
            types = [TensorType((UNKNOWN,) * a.ndim, DType(str(a.dtype))) for a in expected]
            step = step_of(host_attrs(model, types))
        found = step.run([feeds[name] for name in step.inputs])
        for ours, theirs in zip(found, expected, strict=True):
            assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), f"{rows} rows"
            np.testing.assert_allclose(
                ours, theirs, rtol=case.tolerance, atol=case.tolerance, err_msg=f"{rows} rows"
            )


def feeds_of(case: Case, rows: int) -> dict[str, np.ndarray]:
    """The inputs; of the first only so many rows, the last ones."""
    kept = np.ascontiguousarray(case.x[len(case.x) - rows :]) if case.x.ndim else case.x
    others = {} if case.stored else _others(case)
    fitting = {n: a[:rows] if n in case.sliced else a for n, a in others.items()}
    return {"x": kept, **fitting}


def model_of(case: Case) -> onnx.ModelProto:
    """The operator, whose first input may have any number of rows."""
    others = _others(case)
    feeds = {"x": case.x} | ({} if case.stored else others)
    names = ["x", *("" if a is None else f"in{i}" for i, a in enumerate(case.form.others))]
    made = [f"y{i}" for i in range(case.outputs)]
    graph = helper.make_graph(
        [helper.make_node(case.op, names, made, **case.form.attrs)],
        "one",
        [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(array.dtype),
                [None, *array.shape[1:]]
                if array.ndim and name in ("x", *case.sliced)
                else array.shape,
            )
            for name, array in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in made],
        [numpy_helper.from_array(a, n) for n, a in others.items()] if case.stored else [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)])
    model.ir_version = 10
    return model


def _others(case: Case) -> dict[str, np.ndarray]:
    return {f"in{i}": a for i, a in enumerate(case.form.others) if a is not None}
