"""Random small networks of everything but layers: values that are not numbers, integers at limits.

Tensors have any rank and type, attributes are at their bounds, and inputs hold NaN, infinities and
zeros of both signs, or the least and the greatest integers. Read `random_values`. What depends on
rounding is kept apart: operators that jump (`Floor`, `ArgMax`, `Less`, ...) read exact values only.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from retune.ir.functions import FUNCTIONS
from tests.support.device_networks import Net

OPSET = 18
Shape = tuple[int, ...]
FLOAT, TRUTH = np.dtype(np.float32), np.dtype(np.bool_)
INTEGERS = tuple(np.dtype(name) for name in ("int32", "int64", "int8", "uint8"))
WIDE = INTEGERS[:2]
"""Those that onnxruntime calculates with."""
ZEROS = np.float32([0.0, -0.0])
SPECIAL = np.float32([np.nan, np.inf, -np.inf, *ZEROS])
MOST = 2000
"""Elements of a value at most."""


class Value:
    """A tensor that was made: its shape and type, and whether no rounding is in it."""

    def __init__(self, name: str, shape: Shape, dtype: np.dtype[Any], *, exact: bool) -> None:
        self.name, self.shape, self.dtype, self.exact = name, shape, dtype, exact


class RandomValues(Net):
    """A network as it grows, with the arrays to run it on."""

    def __init__(self, seed: int, *, peer: bool) -> None:
        super().__init__(f"values{seed}", OPSET)
        self.rng = np.random.default_rng(seed)
        self.feeds: dict[str, np.ndarray] = {}
        self.values: list[Value] = []
        self.peer = peer
        special = ZEROS if peer else SPECIAL
        for dtype in (FLOAT, self.pick(FLOAT, *INTEGERS), self.pick(*WIDE)):
            shape = tuple(self.pick(1, 2, 3, 5, 8, 17) for _ in range(self.pick(0, 1, 2, 3, 4, 5)))
            while np.prod(shape) > MOST // 4:
                shape = shape[:-1]
            name = self.input(*shape, element=helper.np_dtype_to_tensor_dtype(dtype))
            self.feeds[name] = self.contents(shape, dtype, special)
            self.values.append(Value(name, shape, dtype, exact=True))

    def contents(self, shape: Shape, dtype: np.dtype[Any], special: np.ndarray) -> np.ndarray:
        """Small multiples of an eighth or small integers, with what is special in between."""
        found = self.rng.integers(-40, 41, shape)
        odd = self.rng.random(shape) < self.pick(0.0, 0.05, 0.2)
        if dtype == FLOAT:
            return np.where(odd, self.rng.choice(special, shape), found / np.float32(8)).astype("f")
        info = np.iinfo(dtype)
        ends = np.array([info.min, info.max, info.min + 1, info.max - 1, 0], dtype)
        return np.where(odd, self.rng.choice(ends, shape), found.astype(dtype))

    def pick(self, *options: Any) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def any(self, fits: Callable[[Value], bool]) -> Value | None:
        """A value that fits; the newest ones are likelier."""
        found = [v for v in self.values if fits(v)]
        return self.pick(*found, *found[-3:], *found[-2:]) if found else None

    def put(
        self,
        op: str,
        *inputs: str,
        shape: Shape,
        dtype: np.dtype[Any],
        exact: bool,
        **attrs: Any,
    ) -> None:
        """A new value by the operator."""
        if np.prod(shape) <= MOST:
            made = self(op, *inputs, **attrs)
            self.values.append(Value(made, shape, dtype, exact=exact))

    def like(
        self, value: Value, op: str, *more: str, exact: bool | None = None, **attrs: Any
    ) -> None:
        kept = value.exact if exact is None else exact
        self.put(op, value.name, *more, shape=value.shape, dtype=value.dtype, exact=kept, **attrs)

    def scalar(self, number: float, dtype: np.dtype[Any]) -> str:
        return self.stored(np.asarray(number, dtype))


EXACT = ("Relu", "Abs", "Neg", "Sign", "Floor", "Ceil", "Round")
SMOOTH = ("Sigmoid", "Tanh", "Elu", "LeakyRelu", "HardSwish", "Softplus", "Erf", "Exp", "Selu")


def mapped(n: RandomValues) -> None:
    """One function of each element."""
    value = n.any(lambda v: v.dtype == FLOAT)
    assert value is not None
    if value.exact and n.pick(0, 1):
        n.like(value, n.pick(*EXACT))
    else:
        n.like(value, n.pick(*SMOOTH), exact=False)


def limited(n: RandomValues) -> None:
    value = n.any(lambda v: v.dtype in (FLOAT, *INTEGERS))
    assert value is not None
    if value.dtype == FLOAT:
        limits = n.pick((-1, 2), (0, np.inf), (-np.inf, 1), (0, 6))
    else:
        info = np.iinfo(value.dtype)
        limits = n.pick((info.min + 3, info.max - 3), (0, 9), (info.min, 1))
    n.like(value, "Clip", *(n.scalar(limit, value.dtype) for limit in limits))


def paired(n: RandomValues) -> None:
    """Two values whose shapes broadcast."""
    left = n.any(lambda v: v.dtype in (FLOAT, *WIDE))
    assert left is not None
    right = n.any(lambda v: v.dtype == left.dtype and _shape(left, v) is not None)
    assert right is not None
    shape = _shape(left, right)
    assert shape is not None
    exact = left.exact and right.exact
    ops = ["Add", "Sub", "Max", "Min", "Max", "Min"]
    ops += ["Mul"] if left.dtype != FLOAT or not exact else []
    ops += ["Less", "Equal", "GreaterOrEqual"] if exact else []
    op = n.pick(*ops)
    compares = op in ("Less", "Equal", "GreaterOrEqual")
    dtype = TRUTH if compares else left.dtype
    n.put(op, left.name, right.name, shape=shape, dtype=dtype, exact=exact)


def divided(n: RandomValues) -> None:
    """Integers by what may be negative, but not zero; the least one by -1 is left out, too."""
    value = n.any(lambda v: v.dtype in WIDE)
    if value is None:
        return
    info = np.iinfo(value.dtype)
    divisor = n.scalar(n.pick(2, 3, -3, 7, -8, info.max, info.min), value.dtype)
    n.like(value, *n.pick(("Div",), ("Mod",)), divisor)


def _shape(a: Value, b: Value) -> Shape | None:
    try:
        return np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        return None


def chosen(n: RandomValues) -> None:
    test = n.any(lambda v: v.dtype == TRUTH)
    if test is None:
        return
    sides = [n.any(lambda v: v.dtype == FLOAT and _shape(test, v) is not None) for _ in range(2)]
    left, right = sides
    if left is None or right is None:
        return
    try:
        shape = np.broadcast_shapes(test.shape, left.shape, right.shape)
    except ValueError:
        return
    n.put(
        "Where", test.name, left.name, right.name, shape=shape, dtype=FLOAT,
        exact=left.exact and right.exact,
    )  # fmt: skip


def converted(n: RandomValues) -> None:
    """Integers wrap; floats that become integers are limited before."""
    value = n.any(lambda v: True)
    assert value is not None
    if value.dtype == FLOAT:
        if not value.exact:
            return
        plain = n("Where", n("IsNaN", value.name), n.scalar(1, FLOAT), value.name)
        source = n("Clip", plain, n.scalar(0, FLOAT), n.scalar(100, FLOAT))
    else:
        source = value.name
    dtype = n.pick(*INTEGERS, FLOAT, TRUTH)
    if dtype == FLOAT and value.dtype in WIDE:  # sums of what remains are exact
        source = n("Clip", source, n.scalar(-99, value.dtype), n.scalar(99, value.dtype))
    to = helper.np_dtype_to_tensor_dtype(dtype)
    n.put("Cast", source, shape=value.shape, dtype=dtype, exact=True, to=to)


def reduced(n: RandomValues) -> None:
    """Over some axes, counted from either end; of one element and of many."""
    value = n.any(lambda v: v.dtype in (FLOAT, *WIDE) and len(v.shape) > 0)
    if value is None:
        return
    rank, keep = len(value.shape), n.pick(0, 1)
    axes = [d for d in range(rank) if n.pick(0, 1)] or [rank - 1]
    stated = [d - rank if n.pick(0, 1) else d for d in axes]
    kept = tuple(1 if d in axes else e for d, e in enumerate(value.shape) if keep or d not in axes)
    exact = value.exact and value.dtype != FLOAT
    defined = value.dtype == FLOAT or not n.peer  # onnxruntime sums integers as floats
    op = n.pick("ReduceMax", "ReduceMin", *("ReduceMean", "ReduceSum") * defined)
    exact = value.exact if op in ("ReduceMax", "ReduceMin") else exact
    n.put(
        op, value.name, n.ints(*stated), keepdims=keep, shape=kept, dtype=value.dtype, exact=exact
    )


def ranked(n: RandomValues) -> None:
    value = n.any(lambda v: v.dtype in (FLOAT, *WIDE) and len(v.shape) > 0 and v.exact)
    if value is None:
        return
    rank = len(value.shape)
    axis = n.pick(*range(-rank, rank))
    if n.pick(0, 1):
        shape = tuple(1 if d == axis % rank else e for d, e in enumerate(value.shape))
        n.put(
            n.pick("ArgMax", "ArgMin"), value.name, axis=axis, select_last_index=n.pick(0, 1),
            shape=shape, dtype=np.dtype(np.int64), exact=True,
        )  # fmt: skip
        return
    count = n.pick(1, value.shape[axis])
    shape = tuple(count if d == axis % rank else e for d, e in enumerate(value.shape))
    best, places = n.parts("TopK", 2, value.name, n.ints(count), axis=axis, largest=n.pick(0, 1))
    n.values += [
        Value(best, shape, value.dtype, exact=True),
        Value(places, shape, np.dtype(np.int64), exact=True),
    ]


def normalised(n: RandomValues) -> None:
    value = n.any(lambda v: v.dtype == FLOAT and len(v.shape) > 0)
    if value is None:
        return
    axis = n.pick(*range(-len(value.shape), len(value.shape)))
    match n.pick("Softmax", "LogSoftmax", "Hardmax", "CumSum"):
        case "CumSum":
            attrs = {"exclusive": n.pick(0, 1), "reverse": n.pick(0, 1)}
            n.like(value, "CumSum", n.stored(np.asarray(axis)), exact=False, **attrs)
        case "Hardmax" if value.exact:
            n.like(value, "Hardmax", axis=axis)
        case "LogSoftmax":
            n.like(value, "LogSoftmax", axis=axis, exact=False)
        case _:
            n.like(value, "Softmax", axis=axis, exact=False)


def moved(n: RandomValues) -> None:
    """Turned, cut, padded, repeated, picked, or joined with itself."""
    value = n.any(lambda v: len(v.shape) > 0 and v.dtype != TRUTH)
    if value is None:
        return
    rank, shape = len(value.shape), value.shape
    axis = n.pick(*range(rank))
    facts: dict[str, Any] = {"dtype": value.dtype, "exact": value.exact}

    def along(extent: int) -> Shape:
        return tuple(extent if d == axis else e for d, e in enumerate(shape))

    match n.pick("turn", "flip", "cut", "pad", "tile", "gather", "join", "flat"):
        case "turn":
            perm = [int(d) for d in n.rng.permutation(rank)]
            n.put("Transpose", value.name, perm=perm, shape=tuple(shape[d] for d in perm), **facts)
        case "flip":
            ends = (n.ints(-1), n.ints(-(1 << 62)), n.ints(axis - rank), n.ints(-1))
            n.put("Slice", value.name, *ends, shape=shape, **facts)
        case "cut":
            first = n.pick(*range(shape[axis]))
            ends = (n.ints(first), n.ints((1 << 63) - 1), n.ints(axis))
            n.put("Slice", value.name, *ends, shape=along(shape[axis] - first), **facts)
        case "pad":
            begin, end = n.pick(0, 1, 3), n.pick(0, 2)
            border = n.scalar(_border(n, value.dtype), value.dtype)
            made = along(shape[axis] + begin + end)
            n.put("Pad", value.name, n.ints(begin, end), border, n.ints(axis), shape=made, **facts)
        case "tile":
            times = [n.pick(1, 2, 3) if d == axis else 1 for d in range(rank)]
            n.put(
                "Tile", value.name, n.ints(*times), shape=along(shape[axis] * max(times)), **facts
            )
        case "gather":
            places = n.rng.integers(-shape[axis], shape[axis], n.pick(1, 4))
            n.put(
                "Gather", value.name, n.ints(*places), axis=axis, shape=along(len(places)), **facts
            )
        case "join":
            n.put(
                "Concat", value.name, value.name, axis=axis - rank, shape=along(2 * shape[axis]),
                **facts,
            )  # fmt: skip
        case _:
            n.put("Reshape", value.name, n.ints(-1), shape=(int(np.prod(shape)),), **facts)


def _border(n: RandomValues, dtype: np.dtype[Any]) -> float:
    """Of integers, such as a float does not hold."""
    if dtype == FLOAT:
        return n.pick(0.0, np.inf, -np.inf, -1.5)
    return n.pick(0, int(np.iinfo(dtype).max) - 1, int(np.iinfo(dtype).min) + 1)


STEPS: Sequence[Callable[[RandomValues], None]] = (
    *(mapped, paired, reduced, moved) * 3,
    *(limited, divided, chosen, converted, ranked, normalised) * 2,
)


def random_values(
    seed: int, steps: int = 14, *, peer: bool = False
) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A network and its inputs; the same seed gives the same. All that nobody reads is an output.

    With `peer`, what onnxruntime does otherwise than numpy is left out: NaN, which its
    maxima ignore in some places, what makes it, and sums of integers, which it saturates.
    """
    net = RandomValues(seed, peer=peer)
    while len(net.nodes) < steps:
        net.pick(*STEPS)(net)
    read = {name for node in net.nodes for name in node.input}
    made = [v.name for v in net.values if v.name not in read and v.name not in net.feeds]
    return net.model(*made), net.feeds


def special_functions() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """All functions of one or two floats that are operators, of all pairs of special values."""
    some = np.float32([*SPECIAL, 1.5, -2.5, 3, 1e-30, -1e4])
    x, y = (part.ravel() for part in np.meshgrid(some, some))
    nodes = [
        helper.make_node(entry.onnx, ["x", "y"][: entry.arity], [entry.onnx])
        for entry in FUNCTIONS.values()
        if entry.onnx and entry.onnx_since <= OPSET and not entry.logical
        and entry.op not in ("logical_not", "swish") and "bitwise" not in entry.op
    ]  # fmt: skip
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    made = [helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
    graph = helper.make_graph(nodes, "functions", types, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 8
    return onnx.shape_inference.infer_shapes(model), {"x": x, "y": y}
