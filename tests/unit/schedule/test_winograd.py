"""Winograd convolution: exact matrices, few operations, the meaning kept for every shape."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from retune.core.dtypes import BFLOAT16, FLOAT32
from retune.core.errors import ScheduleError
from retune.ir.evaluate import evaluate
from retune.ir.expr import Binary, Const, Var, walk
from retune.ir.interp import run_program
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.ir.verify import verify
from retune.schedule.cooktoom import Matrix, matrices, products
from retune.schedule.replay import replay
from retune.schedule.schedule import Schedule
from retune.schedule.trace import Trace
from retune.schedule.winograd import DIRECT, ERRORS, STORED, find_convolution
from tests.support.dags import conv2d, in_bfloat16, strip
from tests.support.oracle import assert_same_meaning, inputs_for
from tests.support.sampling import one_of_each
from tests.support.winograd import nchw

SHAPES: dict[str, Dag] = {
    "even": conv2d(1, 8, 8, 16, 16),
    "odd": conv2d(1, 7, 9, 16, 16),
    "prime channels": conv2d(1, 5, 6, 17, 19),
    "no padding": conv2d(1, 9, 6, 3, 5, pad=0),
    "batch of two": conv2d(2, 5, 7, 5, 4, residual=True),
    "smaller than a tile": conv2d(1, 2, 1, 4, 4),
}


WINDOWS: dict[str, Dag] = {
    "5x5": conv2d(1, 9, 7, 5, 6, 5, pad=2, residual=True),
    "5x5, no padding": conv2d(2, 8, 9, 4, 3, 5, pad=0),
    "1x7": strip(1, 5, 9, 5, 6, (1, 7), residual=True),
    "7x1": strip(2, 9, 5, 5, 6, (7, 1), same=False),
    "1x5": strip(1, 4, 7, 5, 6, (1, 5)),
    "1x3": strip(2, 3, 8, 5, 6, (1, 3), same=False),
    "3x1": strip(1, 8, 3, 5, 6, (3, 1), residual=True),
    "7x1, channels first": strip(2, 9, 5, 5, 6, (7, 1), residual=True, channels_first=True),
    "1x7, channels first": strip(1, 5, 9, 5, 6, (1, 7), channels_first=True),
}


def forms(dag: Dag) -> list[int]:
    """The tile sizes that there are for the stage `conv`."""
    return list(ERRORS[find_convolution(from_dag(dag), "conv").taps])


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
    symbols = [Var(f"d{i}", FLOAT32) for i in range(len(matrix[0]))]
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
    s.restate("conv", "winograd", [m])
    return s


@pytest.mark.parametrize("name", SHAPES | WINDOWS | {"channels first": None})
def test_the_meaning_is_kept(name: str):
    dag = (SHAPES | WINDOWS | {"channels first": nchw(2, 5, 9, 7, 6)})[name]
    for m in forms(dag):
        program = transformed(dag, m).program
        verify(program)
        assert_same_meaning(dag, program)


@pytest.mark.parametrize("name", WINDOWS)
def test_merged_axes_are_recognised(name: str):
    dag = merge_axes(WINDOWS[name])
    for m in forms(dag):
        assert_same_meaning(dag, transformed(dag, m).program)


def test_the_program(golden: object):
    s = transformed(conv2d(1, 5, 5, 3, 4), 2)
    assert f"{s.trace}\n\n{s.program}\n" == golden


def test_the_trace_replays_from_json():
    s = transformed(SHAPES["odd"], 4)
    s.precompute("conv.taps")
    s.precompute("conv.filter")
    again = replay(from_dag(SHAPES["odd"]), Trace.from_json(s.trace.to_json()))
    assert str(again.program) == str(s.program)


EARLIER = (
    '{"version":1,"steps":[["winograd",{"block":"conv","m":4},["conv.data","conv.rows",'
    '"conv.factors","conv.taps","conv.filter","conv.product","conv.columns","conv.outputs"]],'
    '["precompute",{"block":"conv.taps"},[]]],"decisions":{}}'
)
"""A trace as it was recorded when Winograd's form was a primitive."""


def test_traces_that_know_it_as_a_primitive_replay():
    s = transformed(SHAPES["odd"], 4)
    s.precompute("conv.taps")
    trace = Trace.from_json(EARLIER)
    assert trace == s.trace
    assert str(replay(from_dag(SHAPES["odd"]), trace).program) == str(s.program)


def test_other_forms_are_refused():
    with pytest.raises(
        ScheduleError, match=r"restate\(conv\): .* forms winograd, words, .*, got 'fourier'"
    ):
        Schedule(from_dag(SHAPES["odd"])).restate("conv", "fourier", [4])


REFUSED = {
    "stride": (conv2d(1, 9, 9, 4, 4, stride=2), 2, "stride 1"),
    "dilation": (conv2d(1, 9, 9, 4, 4, dilation=2), 2, "stride 1"),
    "window": (conv2d(1, 9, 9, 4, 4, 4), 2, "window of 3x3, 5x5"),
    "point": (conv2d(1, 9, 9, 4, 4, 1, pad=0), 2, "window of 3x3, 5x5"),
    "groups": (conv2d(1, 9, 9, 4, 4, groups=2), 2, "in one group"),
    "size": (conv2d(1, 9, 9, 4, 4), 3, "m is one of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_refuses(name: str):
    dag, m, message = REFUSED[name]
    with pytest.raises(ScheduleError, match=message):
        transformed(dag, m)


LAYERS: dict[tuple[int, ...], Callable[[int], Dag]] = {
    (3, 3): lambda c: conv2d(1, 8, 8, c, 8),
    (5, 5): lambda c: conv2d(1, 8, 8, c, 8, 5, pad=2),
    (3,): lambda c: strip(1, 8, 8, c, 8, (1, 3)),
    (5,): lambda c: strip(1, 8, 8, c, 8, (1, 5)),
    (7,): lambda c: strip(1, 8, 8, c, 8, (1, 7)),
}


@pytest.mark.parametrize(
    ("size", "channels"),
    one_of_each([(taps, m) for taps in ERRORS for m in ERRORS[taps]], [32, 128, 512]),
)
def test_the_error_against_float64_is_at_most_what_is_stated(
    size: tuple[tuple[int, ...], int], channels: int
):
    taps, m = size
    dag = LAYERS[taps](channels)
    stated = find_convolution(from_dag(dag), "conv").error(m)
    program = transformed(dag, m).program
    for seed in range(2):
        inputs = inputs_for(dag, seed)
        exact = _convolved(inputs)
        found = run_program(program, inputs)["out"]
        error = np.abs(found - exact).max() / np.ptp(exact)
        print(f"{taps} by {m}, {channels} channels: {error:.1e} of {stated:.1e}")
        assert error <= stated


@pytest.mark.parametrize("channels", [32, 256])
@pytest.mark.parametrize(("taps", "m"), [(taps, m) for taps in STORED for m in STORED[taps]])
def test_the_error_of_factors_in_bfloat16_is_at_most_what_is_stated(
    taps: tuple[int, ...], m: int, channels: int
):
    dag = in_bfloat16(LAYERS[taps](channels))
    conv = find_convolution(from_dag(dag), "conv")
    s = Schedule(from_dag(dag))
    s.restate("conv", "winograd", [m, 1])
    verify(s.program)
    for seed in range(2):
        inputs = inputs_for(dag, seed)
        exact = _convolved({name: x.astype(np.float32) for name, x in inputs.items()})
        found = run_program(s.program, inputs)["out"].astype(np.float64)
        error = np.abs(found - exact).max() / np.ptp(exact)
        stated = conv.error(m, stored=True) + BFLOAT16.roundoff  # of the results
        print(f"{taps} by {m}, {channels} channels: {error:.1e} of {stated:.1e}")
        assert stated / 8 < error <= stated


def test_factors_are_stored_in_a_type_that_only_memory_has():
    with pytest.raises(ScheduleError, match="expected one type that is only stored, got float32"):
        Schedule(from_dag(SHAPES["odd"])).restate("conv", "winograd", [2, 1])


@pytest.mark.parametrize("taps", ERRORS)
def test_the_direct_error_is_what_is_stated(taps: tuple[int, ...]):
    dag = LAYERS[taps](512)
    inputs = inputs_for(dag, 0)
    exact = _convolved(inputs)
    error = np.abs(run_program(from_dag(dag), inputs)["out"] - exact).max() / np.ptp(exact)
    print(f"{taps}: {error:.1e} of {DIRECT[taps]:.1e}")
    assert DIRECT[taps] / 3 < error <= DIRECT[taps]


def _convolved(inputs: dict[str, np.ndarray]) -> np.ndarray:
    """relu(conv + b) with as many zeros around as keep the size, in float64."""
    x, k = (inputs[name].astype(np.float64) for name in ("x", "k"))
    n, h, w, _ = x.shape
    rows, columns = k.shape[:2]
    around = ((0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0))
    wide = np.pad(x, around)
    total = np.zeros((n, h, w, k.shape[3]))
    for dy in range(rows):
        for dx in range(columns):
            total += wide[:, dy : dy + h, dx : dx + w] @ k[dy, dx]
    return np.maximum(total + inputs.get("b", 0.0), 0.0)
