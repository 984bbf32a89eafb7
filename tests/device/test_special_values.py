"""NaN, infinities and zeros of both signs mean in kernels what they mean in numpy."""

from collections.abc import Callable

import numpy as np
import pytest
from onnx import helper

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import BFLOAT16, FLOAT16, FLOAT32, DType
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.passes.pipeline import Layout
from retune.ir.expr import Expr, maximum, minimum
from retune.ir.functions import FUNCTIONS, call, rounding
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.schedule.schedule import Schedule
from tests.external.on_device import compile_graph
from tests.support.device_networks import Net
from tests.support.oracle import TensorType, run_source
from tests.support.random_ways import CPU as CPU_DEVICE
from tests.support.random_ways import GPU as GPU_DEVICE
from tests.support.random_ways import compiled

pytestmark = pytest.mark.device

SPECIAL = np.float32([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.5, -2.5, 3e38])
X, Y = (part.ravel() for part in np.meshgrid(SPECIAL, SPECIAL))
LIMITS = {"low": np.maximum(X, np.float32(-1)), "high": np.minimum(np.float32(2), X)}


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize("lanes", [1, 16])
def test_extremes_of_a_nan_are_nan(device: Device, lanes: int):
    x, y = (placeholder(name, X.shape) for name in "xy")
    values: dict[str, Callable[[Expr], Expr]] = {
        "max": lambda i: maximum(x[i], y[i]),
        "min": lambda i: minimum(x[i], y[i]),
        "low": lambda i: maximum(x[i], -1.0),
        "high": lambda i: minimum(2.0, x[i]),
    }
    dag = Dag(tuple(compute(f"{n}imum", X.shape, value, [x, y]) for n, value in values.items()))
    s = Schedule(from_dag(dag))
    for name in s.blocks() if lanes > 1 else ():
        s.vectorize(s.split(s.loops(name)[0], [lanes])[1])
    types = {f"{name}imum": TensorType(X.shape, FLOAT32) for name in values}
    found = run_source(device, lower(s.program, CPU), {"x": X, "y": Y}, types)
    expected = {"max": np.maximum(X, Y), "min": np.minimum(X, Y), **LIMITS}
    for name in values:
        np.testing.assert_array_equal(found[f"{name}imum"], expected[name], err_msg=name)


def test_a_large_argument_leaves_its_neighbours_alone(device: Device):
    """PoCL's sine of a vector does not."""
    near = np.float32([1e-40, 1e-20, 1e-5, -1e-3, 0.1, 1, -3, 100])
    rows = [np.append(near, np.float32([large] * 8)) for large in (np.inf, 1e7, 3e38, np.nan, 2)]
    values = np.float32(rows).ravel()
    x = placeholder("x", values.shape)
    names = ("sin", "cos", "tan")
    made = [compute(f"{n}e", values.shape, lambda i, n=n: call(n, x[i]), [x]) for n in names]
    s = Schedule(from_dag(Dag(tuple(made))))
    for name in s.blocks():
        s.vectorize(s.split(s.loops(name)[0], [16])[1])
    types = {t.name: TensorType(values.shape, FLOAT32) for t in made}
    found = run_source(device, lower(s.program, CPU), {"x": values}, types)
    with np.errstate(invalid="ignore"):
        for name in names:
            meant = FUNCTIONS[name].numpy
            assert meant is not None
            exact = meant(values.astype(np.float64))
            np.testing.assert_allclose(found[f"{name}e"], exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("across", [True, False])
def test_a_nan_anywhere_is_the_extreme_of_its_row(device: Device, *, across: bool):
    rows = np.arange(16 * 16, dtype=np.float32).reshape(16, 16)
    np.fill_diagonal(rows, np.nan)
    rows[:, 3] = -np.inf
    x, k = placeholder("x", rows.shape), reduce_axis("k", 16)
    dag = Dag((compute("y", (16,), lambda i: x[i, k], [x], reduce=[k], reducer="max"),))
    s = Schedule(from_dag(dag))
    if across:
        s.vectorize("y.k")
    else:
        s.reorder("y.k", "y.i")
        s.vectorize("y.i")
    found = run_source(
        device, lower(s.program, CPU), {"x": rows}, {"y": TensorType((16,), FLOAT32)}
    )
    np.testing.assert_array_equal(found["y"], rows.max(axis=1))


def ranking() -> tuple[Net, tuple[str, ...]]:
    """All operators that compare elements of a row, or of a window."""
    net = Net("ranking", 18)
    x = net.input(8, 6)
    made = [net(op, x, axis=1, select_last_index=n) for op in ("ArgMax", "ArgMin") for n in (0, 1)]
    for largest in (0, 1):
        made += net.parts("TopK", 2, x, net.ints(6), axis=1, largest=largest)
    made += [net("Hardmax", x, axis=1), net("Softmax", x, axis=1)]
    image = net("Reshape", x, net.ints(1, 1, 8, 6))
    made += net.parts("MaxPool", 2, image, kernel_shape=[3, 3], strides=[2, 1], pads=[1, 1, 1, 1])
    return net, (*made, net("GlobalMaxPool", image), net("ReduceMin", x, net.ints(1)))


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_a_nan_is_the_first_extreme_and_the_last_in_order(layout: Layout):
    net, outputs = ranking()
    rows = np.random.default_rng(1).permutation(48).astype(np.float32).reshape(8, 6)
    rows[np.arange(6), np.arange(6)] = np.nan
    rows[1, 3] = rows[2, 0] = np.nan
    graph = import_model(net.model(*outputs))
    meant = run_graph(graph, {"x0": rows})
    first, last, low, low_last, _, up, _, down, hard, soft, pooled, place, *_ = map(
        meant.__getitem__, outputs
    )
    for found, want in ((first, np.argmax(rows, 1)), (low, np.argmin(rows, 1))):
        np.testing.assert_array_equal(found.ravel(), want)
    for found, want in ((last, np.argmax), (low_last, np.argmin)):
        np.testing.assert_array_equal(found.ravel(), 5 - want(rows[:, ::-1], 1))
    order = np.argsort(rows, 1, kind="stable")
    np.testing.assert_array_equal(up, order)
    np.testing.assert_array_equal(np.sort(down, 1), np.sort(order, 1))
    assert np.isnan(np.take_along_axis(rows, down, 1)[np.isnan(rows).any(1), 0]).all()
    np.testing.assert_array_equal(hard.argmax(1), np.argmax(rows, 1))
    np.testing.assert_array_equal(np.isnan(soft).all(1), np.isnan(rows).any(1))
    np.testing.assert_array_equal(pooled.ravel(), rows.ravel()[place.ravel()])
    made = compile_graph(graph, layout).run({"x0": rows})
    for name, want in meant.items():
        np.testing.assert_allclose(made[name], want, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16])
def test_rounding_to_a_stored_type(device: Device, dtype: DType, lanes: int):
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy).astype(np.float32)
    with np.errstate(all="ignore"):
        halves = (numbers[1:] + numbers[:-1]) / 2
    values = np.concatenate([numbers, halves, np.float32([1e-30])])
    x = placeholder("x", values.shape)
    dag = Dag((compute("y", values.shape, lambda i: call(rounding(dtype), x[i]), [x]),))
    s = Schedule(from_dag(dag))
    if lanes > 1:
        s.vectorize(s.split("y.i", [lanes])[1])
    types = {"y": TensorType(values.shape, FLOAT32)}
    found = run_source(device, lower(s.program, CPU), {"x": values}, types)
    meant = FUNCTIONS[rounding(dtype)].numpy
    assert meant is not None
    np.testing.assert_array_equal(found["y"], meant(values))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64"])
def test_integers_at_their_limits(dtype: str):
    """Quotients, remainders, exact means, and constants that a float does not hold."""
    least, most = DType(dtype).limits
    ends = np.array([least, least + 1, most, most - 1, 0, 1, 2, 7], dtype)
    a, b = np.meshgrid(ends, ends)
    net = Net(dtype, 18)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, y = net.input(8, 8, element=element), net.input(8, 8, element=element)
    odd = net("Slice", net("Reshape", x, net.ints(64)), net.ints(0), net.ints(51))
    odd = net("Reshape", odd, net.ints(3, 1, 1, 17))  # what items share unevenly
    made = [net("Div", x, y), net("Mod", x, y), net("Mod", x, y, fmod=1), net("Abs", x)]
    made += [net("ReduceMean", x, net.ints(axis)) for axis in (0, 1)]
    made += [net("Pad", x, net.ints(1, 0, 0, 1), net.stored(np.array(most - 2, dtype)))]
    made += [net("ReduceMean", odd, net.ints(0, 2, 3), keepdims=0)]
    graph = import_model(net.model(*made))
    feeds = {"x0": a, "x1": b}
    meant = run_graph(graph, feeds)
    for device in (CPU_DEVICE, GPU_DEVICE)[: 2 if dtype == "int64" else 1]:
        found = compiled(graph, device, "NHWC").run(feeds)
        for name in made:
            np.testing.assert_array_equal(found[name], meant[name], err_msg=f"{name} {device}")
    total = sum(int(v) for v in ends)
    exact = abs(total) // 8 * (-1 if total < 0 else 1)
    assert meant[made[4]].tolist() == [ends.tolist()] and set(meant[made[5]].flat) == {exact}
    assert meant[made[6]][0, 0] == most - 2
