"""Generated kernels on PoCL give what the tensor expression states."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU
from retune.core.dtypes import (
    BOOL,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NUMPY_DTYPES,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    TensorType,
)
from retune.core.target import GENERIC_CPU
from retune.device.opencl.runtime import Device, open_device
from retune.ir.expr import (
    Expr,
    binary,
    bitcast,
    cast,
    const,
    equal,
    maximum,
    minimum,
    select,
)
from retune.ir.functions import FUNCTIONS, call
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.targets.cost.estimate import default_candidate
from retune.targets.cpu.space import cpu_space
from retune.targets.devices import target_of
from tests.support.dags import (
    chosen_rows,
    conv2d,
    dense,
    depthwise,
    elementwise,
    exchanged,
    flipped,
    integers,
    interwoven,
    joined,
    mask_of_alternatives,
    masked_sum,
    padded_squares,
    pool,
    random_dag,
    reduction,
    softmax,
    tiled_product,
    total,
    transpose,
    two_readers,
)
from tests.support.oracle import (
    assert_close,
    assert_device_agrees,
    inputs_for,
    reference,
    run_source,
)
from tests.support.properties import seeded
from tests.support.random_schedules import scramble, somewhere
from tests.support.sampling import one_of_each

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


AWKWARD: dict[str, Dag] = {
    "one channel": conv2d(1, 7, 7, 1, 16),
    "colours": conv2d(2, 9, 8, 3, 17, 3, stride=2, residual=True),
    "prime channels": conv2d(1, 5, 7, 17, 67, 1, pad=0),
    "batch of three": conv2d(3, 5, 5, 4, 8, groups=2),
    "dilated": conv2d(1, 9, 9, 2, 16, dilation=2),
    "depthwise": depthwise(2, 7, 11, 67, stride=2),
    "dense row": dense(1, 67, 131),
    "dense batch": dense(3, 17, 10),
    "largest of a window": pool(3, 7, 11, 17, 3, 2, average=False),
    "softmax": softmax(3, 67),
    "softmax by lanes": softmax(3, 96),
    "few outputs": dense(1, 96, 10),
    "rows": reduction(70, 160, "sum", first=False),
    "integers": integers(5, 33),
    "transpose": transpose(5, 3, 18),
    "padded rows": padded_squares(33, 67, 2, 2),
    "concatenation": joined(3, 17, 30),
    "elementwise": elementwise(3, 67),
    "total": total(3, 17),
    "flipped": flipped(3, 35),
    "masked": masked_sum(18, 33),
    "masked either way": mask_of_alternatives(18, 33),
}


@pytest.mark.parametrize(("name", "first"), one_of_each(AWKWARD, (0, 1)))
def test_sketches_of_awkward_shapes(device: Device, name: str, first: int):
    """The first four, two of them in the gate."""
    dag = merge_axes(AWKWARD[name])
    for sketch in cpu_space(from_dag(dag), GENERIC_CPU).sketches[first:4:2]:
        for row in sketch.sample(1, np.random.default_rng(len(name))):
            assert_device_agrees(device, dag, sketch.instantiate(row))


@pytest.mark.parametrize(
    "dag",
    [dense(24, 8, 64), conv2d(1, 9, 9, 16, 32, residual=True), joined(6, 32, 16)],
    ids=["dense", "3x3", "joined"],
)
def test_arrays_that_are_stored_past_the_caches(device: Device, dag: Dag):
    dag, target = merge_axes(dag), replace(target_of(device.spec), past_bytes=0)
    space, past = cpu_space(from_dag(dag), device.spec), 0
    sampled = [
        s.instantiate(r) for s in space.sketches for r in s.sample(2, np.random.default_rng(0))
    ]
    for program in [space.instantiate(default_candidate(space, device.spec)), *sampled]:
        source = lower(program, target)
        past += "STORE_PAST(" in source.text
        inputs, types = inputs_for(dag), {t.name: TensorType(t.shape) for t in dag.outputs}
        assert_close(run_source(device, source, inputs, types), reference(dag, inputs), source.text)
    assert past


@pytest.mark.parametrize(
    "dag",
    [
        conv2d(1, 14, 14, 32, 64),
        conv2d(1, 17, 17, 16, 48, 1, pad=0),
        conv2d(1, 28, 28, 3, 32, 7, stride=2, pad=3),
        depthwise(1, 14, 14, 64),
        dense(1, 256, 1000),
        pool(1, 16, 16, 64, 2, 2, average=True),
    ],
    ids=["3x3", "1x1", "7x7", "depthwise", "dense", "pool"],
)
def test_the_default_candidate_of_layers(device: Device, dag: Dag):
    merged = merge_axes(dag)
    space = cpu_space(from_dag(merged), device.spec)
    program = space.instantiate(default_candidate(space, device.spec))
    assert_device_agrees(device, merged, program)


@pytest.mark.parametrize("shape", [(7, 9, 3, 1), (8, 8, 5, 2), (3, 2, 3, 1)])
def test_masked_tiles_of_rows_and_columns(device: Device, shape: tuple[int, int, int, int]):
    height, width, kernel, stride = shape
    dag = merge_axes(conv2d(1, height, width, 16, 32, kernel, stride=stride, pad=kernel // 2))
    space = cpu_space(from_dag(dag), GENERIC_CPU)
    masked = [sketch for sketch in space.sketches if sketch.name.endswith(".masked")]
    assert masked
    for sketch in masked:
        for row in sketch.sample(3, np.random.default_rng(height)):
            assert_device_agrees(device, dag, sketch.instantiate(row))


@pytest.mark.parametrize(
    ("pixels", "rows", "length"),
    [(1, 3, 53), (2, 2, 16), (3, 4, 34), (2, 5, 17), (1, 6, 8), (2, 7, 20), (5, 8, 9), (1, 12, 7)],
)
def test_rows_that_become_a_short_last_axis(device: Device, pixels: int, rows: int, length: int):
    dag = merge_axes(interwoven(pixels, rows, length))
    program = cpu_space(from_dag(dag), GENERIC_CPU).sketches[0].program
    assert_device_agrees(device, dag, program)
    lines = [x for x in lower(program, CPU).text.splitlines() if not x.startswith("//")]
    assert any("= vload" in line for line in lines)
    assert not any("x[" in line for line in lines), "all of it is read by vectors"


@pytest.mark.parametrize(
    "dag", [interwoven(1, 16, 37), interwoven(2, 19, 8), exchanged(2, 9, 3, 17)]
)
def test_transposes_read_their_rows_by_vectors(device: Device, dag: Dag):
    program = cpu_space(from_dag(merge_axes(dag)), GENERIC_CPU).sketches[0].program
    assert_device_agrees(device, merge_axes(dag), program)
    lines = [x for x in lower(program, CPU).text.splitlines() if not x.startswith("//")]
    assert any("= vload" in line for line in lines)
    assert not any("x[" in line for line in lines), "all of it is read by vectors"


@pytest.mark.parametrize("dtype", [INT8, UINT8])
def test_rows_of_bytes_that_become_a_short_last_axis(device: Device, dtype: str):
    dag = merge_axes(interwoven(2, 3, 40, dtype))
    assert_device_agrees(device, dag, cpu_space(from_dag(dag), GENERIC_CPU).sketches[0].program)


@pytest.mark.parametrize("seed", range(32))
def test_random_schedules(device: Device, seed: int):
    choose = seeded(seed)
    dag = random_dag(choose)
    s = Schedule(from_dag(dag), somewhere(dag, choose))
    scramble(s, choose, 8, verify)
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("first", [False, True])
def test_reducers(device: Device, reducer: str, first: bool):
    dag = reduction(6, 35, reducer, first=first)
    assert_device_agrees(device, dag, from_dag(dag))


def assert_both_ways(device: Device, dag: Dag, inner: str) -> None:
    """The kernels agree with the expression, the loop by itself and as vector lanes."""
    for vectorized in (False, True):
        s = Schedule(from_dag(dag))
        if vectorized:
            s.vectorize(inner)
        assert_device_agrees(device, dag, s.program)


START: dict[str, float] = {"arcsin": 0.0, "arccos": 0.0, "arctanh": -0.01, "arccosh": 1.1}
"""Function -> what is added to squares below 1, where 0.3 would leave its range."""


OF_INTEGERS = {"leading_zeros"}
"""Functions that floats have not; trees are tested with them."""
PLAIN = [
    f.name
    for f in FUNCTIONS.values()
    if f.opencl and f.arity == 1 and not f.predicate and f.name not in OF_INTEGERS
]


@pytest.mark.parametrize("function", PLAIN)
def test_functions_as_scalars_and_as_vectors(device: Device, function: str):
    x, start = placeholder("x", (2, 16)), START.get(function, 0.3)
    body = lambda i, j: call(function, x[i, j] * x[i, j] + start)  # noqa: E731
    assert_both_ways(device, Dag((compute("y", (2, 16), body, [x]),)), "y.j")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_products_and_sums_in_one(device: Device, dtype: str):
    x, y = placeholder("x", (3, 16), dtype), placeholder("y", (3, 16), dtype)
    body = lambda i, j: call("fma", x[i, j], y[i, j], x[i, j] + 0.5)  # noqa: E731
    assert_both_ways(device, Dag((compute("z", (3, 16), body, [x, y]),)), "z.j")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_remainders_of_floats(device: Device, dtype: str):
    x, y = placeholder("x", (3, 16), dtype), placeholder("y", (3, 16), dtype)
    body = lambda i, j: call("fmod", x[i, j] * 9.0, y[i, j] + 1.5)  # noqa: E731
    assert_both_ways(device, Dag((compute("z", (3, 16), body, [x, y]),)), "z.j")


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
@pytest.mark.parametrize("function", ["isinf", "isnan"])
def test_values_that_are_no_finite_numbers(device: Device, dtype: str, function: str):
    """Compilers may assume that all results are valid, and yet they are found."""
    special = np.array([1, np.nan, np.inf, -np.inf, -np.nan, 0, 3e38, 1e-45], dtype).reshape(1, 8)
    x = placeholder("x", (1, 8), dtype)
    body = lambda i, j: select(call(function, x[i, j]), 1.0, x[i, j])  # noqa: E731
    dag = Dag((compute("y", (1, 8), lambda i, j: cast(body(i, j), FLOAT32), [x]),))
    for vectorized in (False, True):
        s = Schedule(from_dag(dag))
        if vectorized:
            s.vectorize("y.j")
        types = {"y": TensorType((1, 8))}
        found = run_source(device, lower(s.program, CPU), {"x": special}, types)["y"]
        assert np.array_equal(found == 1, (special == 1) | getattr(np, function)(special))


@pytest.mark.parametrize("ahead", [-6, -2, 4])
def test_infinity_is_a_value_like_others(device: Device, ahead: int):
    """Masks of attention add it; a row in which all is masked has no largest score but that."""
    x, j = placeholder("x", (12, 16)), reduce_axis("j", 16)
    hidden = lambda i, j: select(j <= i + ahead, 0.0, -np.inf)  # noqa: E731
    score = compute("score", (12, 16), lambda i, j: x[i, j] + hidden(i, j), [x])
    top = compute("top", (12,), lambda i: score[i, j], [score], reduce=[j], reducer="max")
    value = lambda i, j: call("exp", score[i, j]) + top[i]  # noqa: E731
    dag = Dag((compute("y", (12, 16), value, [score, top]),))
    assert_device_agrees(device, dag, from_dag(dag))
    s = Schedule(from_dag(dag))
    s.compute_inline("score")
    s.vectorize(s.loops("y")[-1])
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("dtype", [INT64, INT16, INT8, UINT64, UINT32, UINT16, UINT8])
def test_bits_of_integers(device: Device, dtype: str):
    x, y = placeholder("x", (3, 16), dtype), placeholder("y", (3, 16), dtype)

    def body(i: Expr, j: Expr) -> Expr:
        a, b = x[i, j], y[i, j]
        low = binary("bitand", b, 3)
        mixed = binary("bitxor", binary("bitor", a, b), binary("bitand", a, 85))
        return binary("shr", binary("shl", mixed, low), binary("bitand", a, 1))

    dag = Dag((compute("z", (3, 16), body, [x, y]),))
    assert_device_agrees(device, dag, from_dag(dag))


@pytest.mark.parametrize("dtype", [INT16, INT8, UINT16, UINT8])
def test_narrow_integers_wrap_around_inside_an_expression(device: Device, dtype: str):
    x, y = placeholder("x", (3, 16), dtype), placeholder("y", (3, 16), dtype)

    def body(i: Expr, j: Expr) -> Expr:
        total = (x[i, j] * 100 + y[i, j]) * 77 - 5
        return select(total < x[i, j], maximum(total, 3), minimum(total + 1, y[i, j] - 2))

    dag = Dag((compute("z", (3, 16), body, [x, y]),))
    assert_device_agrees(device, dag, from_dag(dag))


@pytest.mark.parametrize(("own", "other"), [(FLOAT32, UINT32), (INT8, UINT8)])
def test_bits_as_another_type(device: Device, own: str, other: str):
    x = placeholder("x", (2, 16), own)
    body = lambda i, j: bitcast(x[i, j] + 1, other)  # noqa: E731
    assert_both_ways(device, Dag((compute("y", (2, 16), body, [x]),)), "y.j")
    there = lambda i, j: bitcast(bitcast(x[i, j], other), own)  # noqa: E731
    assert_both_ways(device, Dag((compute("y", (2, 16), there, [x]),)), "y.j")


def test_truth_of_lanes_and_of_all_of_them(device: Device):
    """What is true for a vector is -1 in each lane, for a scalar 1."""
    x, y = placeholder("x", (4, 16)), placeholder("y", (4,))

    def body(i: Expr, j: Expr) -> Expr:
        either = binary("ne", x[i, j] < 0.0, y[i] < 0.0)
        return select(equal(either, False), x[i, j], select(either, -2.0, y[i]))

    assert_both_ways(device, Dag((compute("z", (4, 16), body, [x, y]),)), "z.j")


@pytest.mark.parametrize("dtype", sorted({*NUMPY_DTYPES} - {FLOAT16, BOOL}))
def test_types_in_memory(device: Device, dtype: str):
    x, y = placeholder("x", (3, 16), dtype), placeholder("y", (3, 16), dtype)
    body = lambda i, j: select(x[i, j] < y[i, j], x[i, j] + y[i, j], x[i, j] * 2)  # noqa: E731
    assert_both_ways(device, Dag((compute("z", (3, 16), body, [x, y]),)), "z.j")


def test_booleans(device: Device):
    x = placeholder("x", (37,))
    positive = compute("p", (37,), lambda i: x[i] > 0.0, [x])
    number = compute("n", (37,), lambda i: cast(positive[i], FLOAT32) * 3.0, [positive])
    same = compute("s", (37,), lambda i: equal(positive[i], x[i] <= 0.5), [positive, x])
    dag = Dag((positive, number, same))
    assert_device_agrees(device, dag, from_dag(dag))


TRUTHS: dict[str, Callable[[Tensor, Tensor, Tensor, Expr, Expr], Expr]] = {
    "chosen": lambda x, m, r, i, j: select(m[i, j], x[i, j], -1.0),
    "as floats": lambda x, m, r, i, j: cast(m[i, j], FLOAT32) * x[i, j],
    "counted": lambda x, m, r, i, j: cast(x[i, j] < 0.5, INT32) + cast(m[i, j], INT32),
    "copied": lambda x, m, r, i, j: m[i, j],
    "not": lambda x, m, r, i, j: equal(m[i, j], False),
    "and": lambda x, m, r, i, j: binary("and", m[i, j], x[i, j] > 0.5),
    "or with one of a row": lambda x, m, r, i, j: binary("or", m[i, j], r[i]),
    "differs from one of a row": lambda x, m, r, i, j: binary("ne", m[i, j], r[i]),
    "chosen among truths": lambda x, m, r, i, j: select(x[i, j] > 0.5, m[i, j], r[i]),
    "one of a row": lambda x, m, r, i, j: r[i],
    "no zero": lambda x, m, r, i, j: cast(x[i, j] - 0.5, BOOL),
    "turned around": lambda x, m, r, i, j: select(m[i, 15 - j], x[i, j], 0.0),
    "every second one": lambda x, m, r, i, j: binary("and", m[i, j // 2], x[i, j] > 0.5),
}


@pytest.mark.parametrize("body", TRUTHS.values(), ids=TRUTHS.keys())
def test_truths_in_lanes(device: Device, body: Callable[..., Expr]):
    x, m, r = (
        placeholder(*given) for given in (("x", (4, 16)), ("m", (4, 16), BOOL), ("r", (4,), BOOL))
    )
    dag = Dag((compute("z", (4, 16), lambda i, j: body(x, m, r, i, j), [x, m, r]),))
    assert_both_ways(device, dag, "z.j")


def test_truths_that_several_results_read(device: Device):
    x, m = placeholder("x", (4, 16)), placeholder("m", (16,), BOOL)
    dag = Dag((compute("z", (4, 16), lambda i, j: select(m[j], x[i, j], 0.0), [x, m]),))
    s = Schedule(from_dag(dag))
    s.unroll("z.i")
    s.vectorize("z.j")
    assert_device_agrees(device, dag, s.program)


def test_casts_truncate_toward_zero(device: Device):
    x = placeholder("x", (33,))
    whole = compute("w", (33,), lambda i: cast(x[i] * 9.0, INT32), [x])
    dag = Dag((compute("y", (33,), lambda i: cast(whole[i], FLOAT32), [whole]),))
    assert_device_agrees(device, dag, from_dag(dag))


def test_division_and_remainder_round_down_for_negatives(device: Device):
    x = placeholder("x", (21,), INT32)
    body = lambda i: (x[i] - 3) // 2 * 100 + (x[i] - 3) % 4 + (i - 10) // 3 + (i - 10) % 4  # noqa: E731
    dag = Dag((compute("y", (21,), body, [x]),))
    assert_device_agrees(device, dag, from_dag(dag))


def test_gathers_read_where_an_index_says(device: Device):
    table = placeholder("table", (7, 20))
    index = placeholder("index", (9,), INT32)
    rows = compute("rows", (9, 20), lambda i, j: table[index[i], j], [table, index])
    dag = Dag((rows,))
    s = Schedule(from_dag(dag))
    assert_device_agrees(device, dag, s.program)
    s.vectorize(s.split("rows.j", [8], "shift")[1])
    s.bind("rows.i", "group.0")
    assert_device_agrees(device, dag, s.program)


def test_an_index_that_is_computed_in_the_same_loop(device: Device):
    table, x = placeholder("table", (7, 20)), placeholder("x", (9,), INT32)
    index = compute("index", (9,), lambda i: (x[i] * 3) % 7, [x])
    rows = compute("rows", (9, 20), lambda i, j: table[index[i], j] * 2.0, [table, index])
    dag = Dag((rows,))
    s = Schedule(from_dag(dag))
    assert_device_agrees(device, dag, s.program)
    s.split("rows.i", [3])
    s.compute_at("index", "rows.i.1")
    s.unroll("rows.i.1")
    s.vectorize(s.split("rows.j", [16], "shift")[1])
    assert_device_agrees(device, dag, s.program)


def test_a_masked_gather_does_not_read_past_the_end(device: Device):
    table, index = placeholder("table", (4,)), placeholder("index", (5,), INT32)
    body = lambda i: select(i < 5, table[index[i] % 4], -1.0)  # noqa: E731
    dag = Dag((compute("y", (9,), body, [table, index]),))
    assert_device_agrees(device, dag, from_dag(dag))


def test_work_groups_and_work_items(device: Device):
    dag = dense(8, 33, 64)
    s = Schedule(from_dag(dag))
    rows = s.split("z.i", [2])
    columns = s.split("z.j", [4, 8])
    s.reorder(rows[0], columns[0], columns[1], rows[1], columns[2])
    s.compute_at("y", columns[1])
    s.bind(rows[0], "group.1")
    s.bind(columns[0], "group.0")
    s.bind(columns[1], "local.0")
    s.pack("w")
    assert_device_agrees(device, dag, s.program)


def test_products_that_leave_32_bits_on_the_way_to_an_index(device: Device):
    rows, step = 1 << 18, 12289
    x = placeholder("x", (step,), INT8)
    position = lambda i, j: (i * step + j) // rows  # noqa: E731
    value = lambda i, j: x[minimum(position(i, j), step - 1)] + x[step - 1 - position(i, j)]  # noqa: E731
    dag = Dag((compute("y", (rows, 2), value, [x]),))
    s = Schedule(from_dag(dag))
    assert_device_agrees(device, dag, s.program)
    s.vectorize("y.j")
    s.bind("y.i", "group.0")
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("crossed", [False, True])
def test_kernels_that_share_a_packed_constant(device: Device, crossed: bool):
    dag = two_readers(4, 6)
    s = Schedule(from_dag(dag))
    if crossed:
        s.reorder("z.j", "z.i")
    assert_device_agrees(device, dag, replace(s.program, packed=("w",)))


def test_a_packed_constant_that_unrolled_formulas_read(device: Device):
    dag = chosen_rows(6)
    s = Schedule(from_dag(dag))
    s.pack("w")
    s.unroll("y.p")
    assert_device_agrees(device, dag, s.program)


def test_sums_keep_the_order_of_overlapping_tiles_apart(device: Device):
    """A tail that is moved back recomputes elements; it must not add to them twice."""
    k = reduce_axis("k", 5)
    x, w = placeholder("x", (7, 5)), placeholder("w", (5, 19), constant=True)
    dag = Dag((compute("y", (7, 19), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,)),))
    s = Schedule(from_dag(dag))
    i, j = s.split("y.i", [4], "shift"), s.split("y.j", [16], "shift")
    s.reorder(i[0], j[0], "y.k", i[1], j[1])
    s.vectorize(j[1])
    assert_device_agrees(device, dag, s.program)


def test_scalars_are_tensors_without_axes(device: Device):
    x = placeholder("x", ())
    dag = Dag((compute("y", (), lambda: x[()] * const(2.0, FLOAT32), [x]),))
    assert_device_agrees(device, dag, from_dag(dag))


@pytest.mark.parametrize("reducer", ["sum", "prod", "max", "min"])
@pytest.mark.parametrize("columns", [64, 50])
def test_reductions_by_vector_lanes(device: Device, reducer: str, columns: int):
    """Partial results in the lanes of two registers, which are combined at last."""
    dag = reduction(6, columns, reducer, first=False)
    s = Schedule(from_dag(dag))
    s.split("y.k", [16], "guard")
    s.rfactor("y", "y.k.1")
    s.compute_at("y", "z.i")
    s.compute_at("y.part", "z.i")
    for name in ("y", "y.part"):
        vectors, lanes = s.split(f"{name}.k.1", [8])
        s.unroll(vectors)
        s.vectorize(lanes)
    s.bind("z.i", "group.0")
    verify(s.program)
    assert_device_agrees(device, dag, s.program)


def test_a_dense_row_whose_reduction_is_spread_over_work_groups(device: Device):
    dag = dense(1, 1024, 10)
    s = Schedule(from_dag(dag))
    s.split("y.k", [8, 16])
    s.rfactor("y", "y.k.0", 0)
    s.rfactor("y.part", "y.part.k.2")
    s.vectorize("y.part.part.k.2")
    s.vectorize("y.part.k.2")
    for name in ("y.part.part", "y.part"):
        s.reorder(f"{name}.k.0", f"{name}.i", f"{name}.j")
        s.bind(f"{name}.k.0", "group.0")
    verify(s.program)
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("dtype", [FLOAT32, INT32, FLOAT64, INT8])
def test_a_reduce_loop_as_lanes(device: Device, dtype: str):
    """Lanes of each step are combined; types without vectors run one by one."""
    k = reduce_axis("k", 32)
    x = placeholder("x", (3, 32), dtype)
    dag = Dag((compute("y", (3,), lambda i: x[i, k], [x], reduce=(k,), reducer="max"),))
    s = Schedule(from_dag(dag))
    s.vectorize(s.split("y.k", [8])[1])
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("m", [2, 4])
def test_winograd_stages_as_kernels_of_their_own(device: Device, m: int):
    dag = conv2d(2, 7, 9, 17, 19)
    s = Schedule(from_dag(dag))
    s.restate("conv", "winograd", [m])
    s.precompute("conv.taps")
    s.precompute("conv.filter")
    s.pack("conv.filter")
    assert_device_agrees(device, dag, s.program)


@pytest.mark.parametrize("shape", [(32, 8, 16), (48, 20, 32)])
def test_a_product_by_work_items_and_local_memory(device: Device, shape: tuple[int, int, int]):
    program = tiled_product(*shape).program
    verify(program)
    assert_device_agrees(device, dense(*shape), program)


@pytest.mark.parametrize("tail", ["guard", "shift"])
def test_a_product_whose_tiles_do_not_fit(device: Device, tail: str):
    program = tiled_product(30, 8, 21, tail=tail).program
    verify(program)
    assert_device_agrees(device, dense(30, 8, 21), program)


@pytest.mark.parametrize("reducer", ["sum", "max"])
def test_a_row_whose_partial_results_lie_in_local_memory(device: Device, reducer: str):
    dag = reduction(5, 96, reducer, first=False)
    s = Schedule(from_dag(dag))
    s.split("y.k", [16])
    s.rfactor("y", "y.k.1")
    s.compute_at("y", "z.i")
    s.compute_at("y.part", "z.i", "local")
    s.reorder("y.part.i", "y.part.k.1", "y.part.k.0")
    s.bind("y.part.k.1", "local.0")
    s.bind("z.i", "group.0")
    verify(s.program)
    assert_device_agrees(device, dag, s.program)


def test_a_window_in_local_memory_that_two_rows_of_items_share(device: Device):
    dag = conv2d(1, 8, 8, 4, 8)
    s = Schedule(from_dag(dag))
    rows, columns = s.split("out.yy", [4]), s.split("out.xx", [4])
    s.reorder(rows[0], columns[0], rows[1], columns[1], "out.ff")
    for loop, axis in ((rows[0], "group.1"), (columns[0], "group.0"), (rows[1], "local.1"),
                       (columns[1], "local.0")):  # fmt: skip
        s.bind(loop, axis)
    s.compute_at("conv", columns[1])
    s.compute_at("padded", columns[1], "local")
    s.bind(s.split("padded.yy", [4], "guard")[1], "local.1")
    s.bind(s.split("padded.xx", [4], "guard")[1], "local.0")
    verify(s.program)
    assert_device_agrees(device, dag, s.program)


def test_a_stage_that_follows_its_producer(device: Device):
    dag = dense(7, 12, 32)
    s = Schedule(from_dag(dag))
    columns = s.split("y.j", [16])
    s.reorder("y.i", columns[0], "y.k", columns[1])
    s.reverse_compute_at("z", columns[0])
    s.vectorize(columns[1])
    s.vectorize("z.j")
    s.bind("y.i", "group.0")
    verify(s.program)
    assert_device_agrees(device, dag, s.program)
