"""Generated OpenCL C: readable, the same in every run, with names that C accepts."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.source import ProgramSource
from retune.codegen.target import CPU
from retune.core.dtypes import FLOAT32, INT32, UINT8
from retune.core.errors import CodegenError
from retune.core.target import GENERIC_CPU
from retune.ir.expr import Expr, cast, select
from retune.ir.functions import call
from retune.ir.nodes import node
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from retune.schedule.space import Space
from retune.targets.cpu.space import cpu_space
from retune.targets.cpu.winograd import cpu_winograd_families
from tests.support.dags import (
    chosen_rows,
    conv2d,
    dense,
    depthwise,
    elementwise,
    reduction,
    softmax,
    tiled_product,
    two_readers,
)


@node
class Strange(Expr):
    """An expression that the printer does not know."""

    dtype: str = FLOAT32


def flat(dag: Dag) -> ProgramSource:
    """Vectors along the last axis of every stage with one; rows are work-groups."""
    s = Schedule(from_dag(dag, "net"))
    for name in s.blocks():
        first, *rest = s.loops(name)
        s.bind(first, "group.0")
        if rest and not s.loop(rest[-1]).reduce:
            s.vectorize(s.split(rest[-1], [16], "shift")[1])
    return lower(s.program, CPU)


def tiled(dag: Dag, tile: tuple[int, int], *, masked: bool) -> ProgramSource:
    """A window reduction over NHWC data, tiled by hand: rows, pixels and vectors in registers."""
    s = Schedule(from_dag(dag, "net"))
    if masked:
        s.compute_inline("padded")
    else:
        s.vectorize(s.split("padded.cc", [16], "shift")[1])
    pixels, vectors = tile
    _, rows, columns, channels = s.loops("out")
    column = s.split(columns, [pixels], "shift")
    channel = s.split(channels, [vectors, 16], "shift")
    s.reorder(rows, column[0], channel[0], column[1], channel[1], channel[2])
    s.compute_at("conv", channel[0])
    for loop, axis in ((rows, "group.2"), (column[0], "group.1"), (channel[0], "group.0")):
        s.bind(loop, axis)
    own_loops = [n for n in s.loops("conv") if n.startswith("conv.")]
    _, _, own_columns, own_channels, *reduce = own_loops
    own = s.split(own_channels, [16])
    s.reorder(*reduce, own_columns, *own)
    for loop in (own_columns, own[0], column[1], channel[1]):
        s.unroll(loop)
    for loop in (own[1], channel[2]):
        s.vectorize(loop)
    s.unroll(reduce[-1], 2)
    s.pack("k")
    return lower(s.program, CPU)


def one_convolution() -> ProgramSource:
    return tiled(conv2d(1, 6, 13, 16, 64), (3, 2), masked=False)


def test_convolution(golden):
    assert one_convolution().text == golden


def test_winograd(golden):
    dag = conv2d(1, 5, 5, 16, 16)
    sketch = Space(cpu_winograd_families(from_dag(dag, "net"), GENERIC_CPU)).sketches[0]
    row = sketch.row(
        {
            "tile.out.yy.0": (1, 1),
            "tile.out.xx.0": (1, 3),
            "tile.out.ff": (1, 1, 1),
            "unroll.conv.product": (1,),
        }
    )
    assert lower(sketch.instantiate(row), CPU).text == golden


def test_depthwise(golden):
    assert tiled(depthwise(1, 8, 8, 32), (4, 1), masked=False).text == golden


def test_padding_as_a_mask(golden):
    assert tiled(depthwise(1, 8, 8, 32), (4, 1), masked=True).text == golden


def test_padding_as_a_mask_of_a_tile_of_rows_and_columns(golden):
    dag = conv2d(1, 6, 6, 16, 16)
    sketch = cpu_space(from_dag(dag, "net"), GENERIC_CPU).sketch("cpu.v16.loops.pixels_slow.masked")
    row = sketch.row(
        {
            "tile.out.yy": (1, 3),
            "tile.out.xx": (3, 2),
            "tile.out.ff": (1, 1),
            "tile.conv.rc": (16,),
            "unroll.conv": (1,),
        }
    )
    assert lower(sketch.instantiate(row), CPU).text == golden


def test_softmax(golden):
    assert flat(softmax(4, 40)).text == golden


def test_elementwise(golden):
    x, s = placeholder("x", (3, 67)), placeholder("s", (67,), constant=True)
    a = compute("a", (3, 67), lambda i, j: x[i, j] * s[j] + 0.5, [x, s])
    b = compute("b", (3, 67), lambda i, j: a[i, j] * call("exp", a[i, j]), [a])
    c = compute("c", (3, 67), lambda i, j: select(b[i, j] > 0.25, b[i, j], -0.5), [b])
    s = Schedule(from_dag(Dag((c,)), "net"))
    s.compute_inline("a")
    s.compute_inline("b")
    s.bind("c.i", "group.0")
    s.vectorize(s.split("c.j", [16], "shift")[1])
    assert lower(s.program, CPU).text == golden


def test_rows_by_vector_lanes(golden):
    """rfactor: a row's sum in the lanes of two registers, which are combined at last."""
    s = Schedule(from_dag(reduction(6, 64, "sum", first=False), "net"))
    s.split("y.k", [32])
    s.rfactor("y", "y.k.1")
    s.compute_at("y", "z.i")
    s.compute_at("y.part", "z.i")
    for name in ("y", "y.part"):
        vectors, lanes = s.split(f"{name}.k.1", [16])
        s.unroll(vectors)
        s.vectorize(lanes)
    s.bind("z.i", "group.0")
    assert lower(s.program, CPU).text == golden


def test_product_by_work_items_and_local_memory(golden):
    assert lower(tiled_product(32, 8, 16).program, CPU).text == golden


def test_unscheduled(golden):
    assert lower(from_dag(dense(3, 4, 5), "plain"), CPU).text == golden


def test_the_inner_loop_is_multiply_adds_over_named_registers():
    kernel = one_convolution().kernels[-1].text
    fma = [line.strip() for line in kernel.splitlines() if "fma(" in line]
    assert len(fma) == 3 * 2, "pixels times vectors of the register tile"
    pattern = r"(conv_\d+) = fma\(\(float16\)\(padded_\d+\), k_\d+, \1\);"
    assert all(re.fullmatch(pattern, line) for line in fma)
    loads = [line for line in kernel.splitlines() if "vload16(0, k" in line]
    assert len(loads) == 2, "each vector of weights is read once for all pixels of the tile"


@pytest.mark.process
def test_text_is_the_same_in_another_process():
    code = (
        "from tests.unit.codegen.test_lower import one_convolution;"
        "print(one_convolution().key, one_convolution().text)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "11", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    here = one_convolution()
    assert done.stdout == f"{here.key} {here.text}\n"


def test_lines_fit_and_braces_match():
    for dag in (conv2d(1, 6, 6, 3, 8), softmax(3, 10), elementwise(4, 20)):
        text = lower(from_dag(dag), CPU).text
        comments = [line for line in text.splitlines() if line.startswith("//")]
        assert all(len(line) <= 100 for line in comments)
        assert text.count("{") == text.count("}")


HARD_NAMES = ("float", "x.1", "x_1", "x 1", "get_group_id", "2nd", "größe")


def test_a_guard_that_an_unrolled_loop_settles_is_not_tested():
    s = Schedule(from_dag(dense(2, 4, 5)))
    s.compute_at("y", "z.j")
    s.unroll(s.split("z.j", [4], "guard")[1])
    text = lower(s.program, CPU).text
    assert "if ()" not in text
    assert text.count("(z_at + 1) < 5") == 0 == text.count("if (0)")


def test_names_are_c_and_distinct():
    tensors = [placeholder(name, (5,)) for name in HARD_NAMES]
    total = lambda i: sum((t[i] for t in tensors[1:]), tensors[0][i])  # noqa: E731
    source = lower(from_dag(Dag((compute("kernel", (5,), total, tensors),))), CPU)
    ((kernel, launch),) = source.runs
    assert list(launch.args) == [*HARD_NAMES, "kernel"]
    function = kernel.text.partition("__kernel")[0]
    names = re.findall(r"float\* restrict (\w+)", function)
    assert len(set(names)) == len(names) == len(HARD_NAMES) + 1
    assert kernel.text.isascii() is False, "the comment keeps the name as it is"
    code = "\n".join(x for x in kernel.text.splitlines() if not x.startswith("//"))
    assert code.isascii()
    assert not {"float", "get_group_id", "kernel"} & set(names)


def test_arguments_ranges_and_work():
    s = Schedule(from_dag(dense(8, 16, 32, epilogue=False)))
    s.bind("y.i", "group.1")
    parts = s.split("y.j", [8])
    s.bind(parts[0], "group.0")
    s.bind(parts[1], "local.0")
    ((kernel, launch),) = lower(s.program, CPU).runs
    assert launch.global_size == (32, 8, 1) and launch.local_size == (8, 1, 1)
    assert launch.args == ("x", "w", "y") and launch.writes == ("y",)
    assert launch.flops == 8 * 16 * 32 * 2
    assert launch.bytes == 4 * (8 * 16 + 32 * 16 + 8 * 32)
    assert "reqd_work_group_size(8, 1, 1)" in kernel.text


def test_traffic_counts_what_is_read_of_a_buffer():
    x = placeholder("x", (1000,))
    y = compute("y", (8,), lambda i: x[i + 90] + x[i + 100], [x])
    ((_, launch),) = lower(from_dag(Dag((y,))), CPU).runs
    assert launch.bytes == 4 * (8 + 8 + 8)


def test_each_nest_is_a_kernel_and_scratch_lies_between():
    source = lower(from_dag(softmax(3, 10), "net"), CPU)
    assert [k.name for k in source.kernels] == ["net_0_top", "net_1_e", "net_2_total", "net_3_y"]
    roles = {b.name: b.role for b in source.buffers}
    assert roles == {"x": "input", "top": "temp", "e": "temp", "total": "temp",
                     "y": "output"}  # fmt: skip
    assert source.buffer("e").elements == 30
    with pytest.raises(KeyError):
        source.buffer("q")


def test_the_key_depends_on_text_and_options():
    program = from_dag(dense(3, 4, 5))
    assert lower(program, CPU).key == lower(program, CPU).key
    assert lower(program, CPU).key != lower(program, replace(CPU, options=())).key
    assert lower(program, CPU).key != lower(from_dag(dense(3, 4, 6)), CPU).key


def test_a_start_value_in_another_kernel_runs_before():
    s = Schedule(from_dag(reduction(3, 8, "sum", first=True)))
    s.reorder("y.k", "y.i")
    s.decompose_reduction("y", "y.k")
    s.bind("y.i.init", "group.0")
    source = lower(s.program, CPU)
    assert [k.name.split("_", 1)[1] for k in source.kernels] == ["0_y_init", "1_y", "2_z"]


def test_packs_put_constants_in_the_order_of_their_reads():
    s = Schedule(from_dag(dense(2, 3, 8, epilogue=False)))
    outer, inner = s.split("y.j", [4])
    s.reorder(outer, "y.k", "y.i", inner)
    s.vectorize(inner)
    s.pack("w")
    source = lower(s.program, CPU)
    pack = source.packing("w").pack
    assert pack is not None and source.buffer("w").elements == 24
    w = np.arange(24, dtype=np.float32).reshape(8, 3)
    expected = w.reshape(2, 4, 3).transpose(0, 2, 1).reshape(-1)
    assert np.array_equal(pack.apply(w), expected)


def test_a_pack_behind_a_guard_repeats_the_last_element():
    s = Schedule(from_dag(dense(2, 5, 3, epilogue=False)))
    s.split("y.k", [4], "guard")
    s.pack("w")
    pack = lower(s.program, CPU).packing("w").pack
    w = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert pack is not None
    packed = pack.apply(w).reshape(3, 2, 4)
    assert np.array_equal(packed.reshape(3, 8)[:, :5], w)
    assert (packed[:, 1, 1:] == w[:, 4:]).all()


def two_products(*, crossed: bool) -> ProgramSource:
    """Two kernels that read one packed constant by rows, or the second one by columns."""
    dag = two_readers(4, 6)
    s = Schedule(from_dag(dag))
    if crossed:
        s.reorder("z.j", "z.i")
    return lower(replace(s.program, packed=("w",)), CPU)


def test_kernels_that_read_a_constant_in_one_order_share_its_pack():
    source = two_products(crossed=False)
    assert source.packing("w").pack is not None
    assert [k.text.count("w[") for k in source.kernels] == [2, 2], (
        "each reads it as its comment says"
    )


def test_a_constant_that_kernels_read_in_several_orders_is_not_packed():
    assert two_products(crossed=True).packing("w").pack is None


def test_a_constant_whose_one_read_becomes_several_is_not_packed():
    """Each iteration of a loop that chooses a formula is a nest of its own."""
    s = Schedule(from_dag(chosen_rows(6)))
    s.pack("w")
    s.unroll("y.p")
    assert lower(s.program, CPU).packing("w").pack is None


@pytest.mark.parametrize("move", ["compute_inline", "compute_at"])
def test_a_packed_stage_that_moves_into_a_kernel_is_computed_there(move: str):
    x, w = placeholder("x", (4,)), placeholder("w", (4,), constant=True)
    doubled = compute("doubled", (4,), lambda i: w[i] * 2.0, [w])
    dag = Dag((compute("y", (4,), lambda i: x[i] + doubled[i], [x, doubled], axes=("i",)),))
    s = Schedule(from_dag(dag))
    s.precompute("doubled")
    s.pack("doubled")
    getattr(s, move)("doubled", *(["y.i"] if move == "compute_at" else []))
    source = lower(s.program, CPU)
    assert [b.name for b in source.buffers] == ["x", "w", "y"] and "*2.0" in source.text


def test_repeated_values_grow_by_a_line_each_not_twofold():
    x = placeholder("x", (8,))
    stages = [x]
    for n in range(12):
        last = stages[-1]
        body = lambda i, last=last: last[i] / 3.0 + last[i] * 0.5  # noqa: E731
        stages.append(compute(f"s{n}", (8,), body, [last], axes=("i",)))
    s = Schedule(from_dag(Dag((stages[-1],))))
    for stage in stages[1:-1]:
        s.compute_inline(stage.name)
    code = [x for x in lower(s.program, CPU).text.splitlines() if not x.startswith("//")]
    assert len(code) < 31 and max(map(len, code)) < 100


def test_the_knob_checks_the_program_between_passes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RETUNE_VERIFY", "0")
    checked: list[str] = []
    monkeypatch.setattr(
        "retune.codegen.lower.verify",
        lambda program, after: (checked.append(after), verify(program, after)),
    )
    lower(from_dag(softmax(3, 10)), CPU)
    assert not checked
    monkeypatch.setenv("RETUNE_VERIFY", "1")
    lower(from_dag(softmax(3, 10)), CPU)
    assert len(checked) >= 4 * 3


def test_more_groups_than_devices_start_are_refused():
    s = Schedule(from_dag(dense(70_000, 3, 32, epilogue=False)))
    s.bind("y.i", "group.1")
    s.bind("y.j", "local.0")
    with pytest.raises(CodegenError, match=r"at most 65535 work-groups .* got \[1, 70000, 1\]"):
        lower(s.program, CPU)


def test_more_items_on_the_third_axis_than_devices_start_are_refused():
    s = Schedule(from_dag(dense(65, 3, 8, epilogue=False)))
    s.bind("y.i", "local.2")
    with pytest.raises(CodegenError, match=r"at most 64 work-items .* got \[1, 1, 65\]"):
        lower(s.program, CPU)


def test_what_has_no_c_form_is_refused():
    x = placeholder("x", (4,))
    with pytest.raises(CodegenError, match="cannot print"):
        lower(from_dag(Dag((compute("y", (4,), lambda i: Strange() + x[i], [x]),))), CPU)


def nearest(rows: int, step: int, columns: int) -> Dag:
    """`y[i, j] = x[i * step // rows]`, a product larger than what is indexed."""
    x = placeholder("x", (step,))
    value = lambda i, j: x[(i * step + j) // rows]  # noqa: E731
    return Dag((compute("y", (rows, columns), value, [x], axes=("i", "j")),))


def test_a_sum_that_leaves_32_bits_is_a_long():
    text = lower(from_dag(nearest(1 << 20, 3001, 2)), CPU).text
    assert "const long " in text and "(long)" in text
    assert "long" not in lower(from_dag(nearest(1 << 19, 3001, 2)), CPU).text


def test_what_32_bits_cannot_number_is_refused():
    large = Dag((compute("y", (1,), lambda i: x[i + 7], [x := placeholder("x", (1 << 31,))]),))
    with pytest.raises(CodegenError, match=r"_y: x has 2147483648 elements; expected at most"):
        lower(from_dag(large), CPU)
    j = reduce_axis("j", 1 << 31)
    value = lambda i: x[i] + cast(j.var, FLOAT32)  # noqa: E731
    many = compute("y", (1,), value, [x := placeholder("x", (1,))], reduce=[j])
    with pytest.raises(CodegenError, match=r"_y: loop y.j has 2147483648 iterations"):
        lower(from_dag(Dag((many,))), CPU)
    half = (1 << 30) + 1
    body = lambda i: x[i]  # noqa: E731
    s = Schedule(from_dag(Dag((compute("y", (half,), body, [x := placeholder("x", (half,))]),))))
    for loop, axis in zip(s.split("y.i", [half - 1], "guard"), ("group.1", "group.0"), strict=True):
        s.bind(loop, axis)
    with pytest.raises(CodegenError, match=r"_y: its launch has 2147483648 work-groups"):
        lower(s.program, CPU)


def test_places_that_registers_say_are_one_vector(golden):
    """An element of a table follows each sum: places are computed together, reads are apart."""
    x, w = placeholder("x", (4, 8), INT32), placeholder("w", (8, 32), INT32)
    entries = placeholder("entries", (256,), UINT8)
    k = reduce_axis("k", 8)
    total = compute("total", (4, 32), lambda i, j: x[i, k] * w[k, j], [x, w], reduce=(k,))
    looked_up = compute(
        "out",
        (4, 32),
        lambda i, j: entries[(cast(cast(total[i, j], UINT8), INT32),)],
        [total, entries],
    )
    s = Schedule(from_dag(Dag((looked_up,)), "net"))
    row, column = s.loops("out")
    outer, inner = s.split(column, [16])
    s.bind(row, "group.0")
    s.compute_at("total", outer)
    first, lanes, reduce = [n for n in s.loops("total") if n.startswith("total.")]
    s.reorder(reduce, first, lanes)
    s.vectorize(inner)
    s.vectorize(lanes)
    assert lower(s.program, CPU).text == golden
