"""Winograd convolution: exact matrices, few operations, the meaning kept for every shape."""

from fractions import Fraction

import numpy as np
import pytest

from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate
from retune.ir.expr import Binary, Const, Var, walk
from retune.ir.interp import run_program
from retune.ir.stmt import Program, from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.cooktoom import Matrix, matrices, products
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.schedule.trace import Trace
from retune.schedule.winograd import ERRORS
from tests.dags import conv2d
from tests.oracle import assert_close, inputs_for, reference

SHAPES: dict[str, Dag] = {
    "even": conv2d(1, 8, 8, 16, 16),
    "odd": conv2d(1, 7, 9, 16, 16),
    "prime channels": conv2d(1, 5, 6, 17, 19),
    "no padding": conv2d(1, 9, 6, 3, 5, pad=0),
    "batch of two": conv2d(2, 5, 7, 5, 4, residual=True),
    "smaller than a tile": conv2d(1, 2, 1, 4, 4),
}


def nchw(n: int, c: int, h: int, w: int, f: int) -> Dag:
    """NCHW convolution without padding."""
    x = placeholder("x", (n, c, h, w))
    k = placeholder("k", (f, c, 3, 3), constant=True)
    rc, ry, rx = reduce_axis("rc", c), reduce_axis("ry", 3), reduce_axis("rx", 3)
    shape = (n, f, h - 2, w - 2)
    return Dag((compute(
        "conv", shape,
        lambda nn, ff, yy, xx: x[nn, rc.var, yy + ry.var, xx + rx.var] * k[ff, rc.var, ry, rx],
        [x, k], reduce=(rc, ry, rx),
    ),))  # fmt: skip


@pytest.mark.parametrize(("m", "r"), [(2, 3), (4, 3), (6, 3), (2, 5), (4, 5), (2, 7), (4, 7)])
def test_the_transforms_give_the_correlation_exactly(m: int, r: int):
    forms = matrices(m, r)
    for i in range(m):
        for tap in range(r):
            for place in range(m + r - 1):
                total = sum(
                    (forms.a_t[i][k] * forms.g[k][tap] * forms.b_t[k][place]
                     for k in range(m + r - 1)),
                    Fraction(0),
                )  # fmt: skip
                assert total == (place == i + tap)


def test_the_matrices_of_lavin_and_gray():
    """As published, but for the sign of one product."""
    assert matrices(2, 3).b_t == _exact([-1, 0, 1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1])
    assert matrices(2, 3).a_t == _exact([1, 1, 1, 0], [0, 1, -1, 1])
    half = Fraction(1, 2)
    assert matrices(2, 3).g[1:3] == ((half, half, half), (half, -half, half))


def _exact(*rows: list[int]) -> Matrix:
    return tuple(tuple(Fraction(c) for c in row) for row in rows)


OPERATIONS = {(2, "b_t"): 4, (4, "b_t"): 20, (2, "a_t"): 4, (4, "a_t"): 16}
"""Additions and multiplications of one product, shared sums counted once."""


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("name", ["a_t", "g", "b_t"])
def test_products_are_right_and_short(m: int, name: str):
    matrix: Matrix = getattr(matrices(m, 3), name)
    symbols = [Var(f"d{i}", "float32") for i in range(len(matrix[0]))]
    forms = products(matrix, symbols)
    values = np.random.default_rng(0).uniform(-1, 1, len(symbols))
    given = dict(zip(symbols, values, strict=True))
    expected = np.array([[float(c) for c in row] for row in matrix]) @ values
    found = [float(np.asarray(evaluate(form, given))) for form in forms]
    assert np.allclose(found, expected, rtol=1e-6)
    nodes = {node for form in forms for node in walk(form)}
    factors = [n.b for n in nodes if isinstance(n, Binary) and n.op == "mul"]
    assert all(isinstance(f, Const) and f.value not in (0.0, 1.0, -1.0) for f in factors)
    if (m, name) in OPERATIONS:
        assert sum(isinstance(n, Binary) for n in nodes) == OPERATIONS[m, name]


def transformed(dag: Dag, m: int) -> Schedule:
    s = Schedule(from_dag(dag))
    s.winograd("conv", m)
    return s


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("m", [2, 4])
def test_the_meaning_is_kept(name: str, m: int):
    assert_meaning(SHAPES[name], transformed(SHAPES[name], m).program)


@pytest.mark.parametrize("m", [2, 4])
def test_channels_first(m: int):
    dag = nchw(2, 5, 9, 7, 6)
    assert_meaning(dag, transformed(dag, m).program)


def assert_meaning(dag: Dag, program: Program) -> None:
    verify(program)
    inputs = inputs_for(dag)
    assert_close(run_program(program, inputs), reference(dag, inputs), str(program))


def test_the_program(golden):
    s = transformed(conv2d(1, 5, 5, 3, 4), 2)
    assert f"{s.trace}\n\n{s.program}\n" == golden


def test_the_trace_replays_from_json():
    s = transformed(SHAPES["odd"], 4)
    s.precompute("conv.taps")
    s.precompute("conv.filter")
    again = replay(from_dag(SHAPES["odd"]), Trace.from_json(s.trace.to_json()))
    assert str(again.program) == str(s.program)


REFUSED = {
    "stride": (conv2d(1, 9, 9, 4, 4, stride=2), 2, "stride 1"),
    "dilation": (conv2d(1, 9, 9, 4, 4, dilation=2), 2, "stride 1"),
    "window": (conv2d(1, 9, 9, 4, 4, 5), 2, "3x3 window"),
    "point": (conv2d(1, 9, 9, 4, 4, 1, pad=0), 2, "3x3 window"),
    "groups": (conv2d(1, 9, 9, 4, 4, groups=2), 2, "in one group"),
    "size": (conv2d(1, 9, 9, 4, 4), 3, "m is one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(name: str):
    dag, m, message = REFUSED[name]
    with pytest.raises(ScheduleError, match=message):
        transformed(dag, m)


@pytest.mark.parametrize("channels", [32, 128, 512])
@pytest.mark.parametrize("m", ERRORS)
def test_the_error_against_float64_is_at_most_what_is_stated(m: int, channels: int):
    dag = conv2d(1, 8, 8, channels, 8)
    inputs = inputs_for(dag)
    exact = _convolved(inputs)
    found = run_program(transformed(dag, m).program, inputs)["out"]
    error = np.abs(found - exact).max() / (exact.max() - exact.min())
    print(f"F({m}x{m}), {channels} channels: {error:.1e}")
    assert error <= ERRORS[m]


def _convolved(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """relu(conv + b) of one 3x3 window with one pixel of zeros around, in float64."""
    x, k = (inputs[name].astype(np.float64) for name in ("x", "k"))
    n, h, w, _ = x.shape
    wide = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    total = np.zeros((n, h, w, k.shape[3]))
    for dy in range(3):
        for dx in range(3):
            total += wide[:, dy : dy + h, dx : dx + w] @ k[dy, dx]
    return np.maximum(total + inputs["b"], 0.0)
