"""Each primitive: what it does to a program (golden), and what it refuses."""

from collections.abc import Callable

import pytest

from retune.core.dtypes import BOOL, FLOAT32, INT32
from retune.core.errors import ScheduleError
from retune.ir.expr import Var, cast, const
from retune.ir.stmt import from_dag
from retune.ir.te import Dag, compute, placeholder, reduce_axis
from retune.ir.verify import verify
from retune.schedule.schedule import Schedule
from tests.support.dags import conv2d, dense, elementwise, flipped, joined, pool, softmax, total
from tests.support.oracle import assert_same_meaning


def scheduled(dag: Dag, *steps: Callable[[Schedule], object]) -> str:
    """The program after the steps, verified and compared with the expression at each of them."""
    s = Schedule(from_dag(dag))
    for step in steps:
        step(s)
        verify(s.program)
        assert_same_meaning(dag, s.program)
    return f"{s.trace}\n\n{s.program}\n"


def test_split_exact(golden):
    assert scheduled(dense(8, 12, 16), lambda s: s.split("y.i", [4, 2])) == golden


def test_split_shift(golden):
    assert scheduled(dense(7, 5, 11), lambda s: s.split("z.j", [4], "shift")) == golden


def test_split_shift_of_a_reduction_counts_each_step_once(golden):
    assert scheduled(dense(7, 5, 11), lambda s: s.split("y.k", [4], "shift")) == golden


def test_split_guard(golden):
    assert scheduled(dense(7, 5, 11), lambda s: s.split("y.k", [2], "guard")) == golden


def test_tile(golden):
    assert scheduled(dense(8, 3, 12), lambda s: s.tile(["z.i", "z.j"], [4, 5], "shift")) == golden


def test_a_refused_tile_leaves_no_trace():
    s = Schedule(from_dag(dense(8, 3, 12)))
    program = s.program
    with pytest.raises(ScheduleError, match="5 does not divide 12"):
        s.tile(["z.i", "z.j"], [4, 5])
    assert s.program is program and not s.trace.steps and not s.constraints


def test_fuse(golden):
    assert scheduled(dense(3, 4, 5), lambda s: s.fuse("z.i", "z.j")) == golden


def test_reorder(golden):
    assert scheduled(dense(3, 4, 5), lambda s: s.reorder("y.k", "y.i", "y.j")) == golden


def test_annotations(golden):
    assert (
        scheduled(
            dense(3, 8, 16),
            lambda s: s.unroll("y.k"),
            lambda s: s.unroll("y.i", 2),
            lambda s: s.vectorize("z.j"),
            lambda s: s.bind("z.i", "group.1"),
        )
        == golden
    )


def test_parallel_takes_the_first_free_group_axis(golden):
    steps = [
        lambda s: s.bind("z.j", "group.0"),
        lambda s: s.parallel("z.i"),
        lambda s: s.annotate("z.i", "why", "rows do not share results"),
    ]
    assert scheduled(dense(3, 4, 5), *steps) == golden


def test_compute_inline(golden):
    assert scheduled(elementwise(2, 6), lambda s: s.compute_inline("a")) == golden


def test_cache_write(golden):
    assert scheduled(dense(3, 4, 5, epilogue=False), lambda s: s.cache_write("y")) == golden


def test_compute_at(golden):
    assert (
        scheduled(
            dense(6, 4, 8),
            lambda s: s.split("z.j", [4]),
            lambda s: s.compute_at("y", "z.j.0"),
        )
        == golden
    )


def test_compute_at_computes_the_window_that_is_read(golden):
    dag = conv2d(1, 6, 6, 2, 3)
    at = lambda s: s.compute_at("padded", "conv.xx", "private")  # noqa: E731
    assert scheduled(dag, at) == golden


def test_compute_at_covers_reads_a_fixed_distance_apart():
    text = scheduled(neighbours(), lambda s: s.compute_at("a", "y.j"))
    assert "scratch a: float32[1, 2] register" in text


def test_compute_at_guards_what_a_guarded_reader_reads(golden):
    dag = dense(5, 3, 7)
    assert (
        scheduled(dag, lambda s: s.split("z.i", [2], "guard"), lambda s: s.compute_at("y", "z.i.0"))
        == golden
    )


def test_cache_read(golden):
    steps = [
        lambda s: s.split("y.i", [4]),
        lambda s: s.cache_read("x", "y.i.0", "private"),
    ]
    assert scheduled(dense(8, 3, 5), *steps) == golden


def test_cache_read_keeps_to_the_buffer_where_its_reader_is_guarded(golden):
    steps = [
        lambda s: s.split("z.i", [4], "guard"),
        lambda s: s.cache_read("y", "z.i.0"),
    ]
    assert scheduled(dense(6, 3, 5), *steps) == golden


def test_a_copy_in_local_memory_serves_all_items(golden):
    steps = [
        lambda s: s.split("y.i", [2, 4]),
        lambda s: s.bind("y.i.0", "group.0"),
        lambda s: s.bind("y.i.1", "vthread"),
        lambda s: s.bind("y.i.2", "local.0"),
        lambda s: s.cache_read("x", "y.i.2", "local"),
        lambda s: s.bind(s.split("x.local.0", [4])[1], "local.0"),
    ]
    assert scheduled(dense(16, 3, 5), *steps) == golden


def test_reverse_compute_at(golden):
    steps = [
        lambda s: s.split("y.i", [4], "shift"),
        lambda s: s.reverse_compute_at("z", "y.i.0"),
    ]
    assert scheduled(dense(7, 3, 5), *steps) == golden


def test_reverse_compute_at_of_a_transposed_reader_under_a_guard(golden):
    x = placeholder("x", (3, 5))
    a = compute("a", (3, 5), lambda i, j: x[i, j] * 2.0, [x])
    dag = Dag((compute("y", (5, 3), lambda i, j: a[j, i] + 1.0, [a]),))
    steps = [
        lambda s: s.split("a.j", [2], "guard"),
        lambda s: s.reorder("a.j.0", "a.i"),
        lambda s: s.reverse_compute_at("y", "a.j.0"),
    ]
    assert scheduled(dag, *steps) == golden


def test_sample_compute_location(golden):
    dag = dense(6, 4, 8)
    s = Schedule(from_dag(dag), {"at.y": (2,)})
    s.sample_compute_location("y")
    assert_same_meaning(dag, s.program)
    assert f"{s.trace}\n\n{s.program}\n" == golden


def test_decompose_reduction(golden):
    steps = [
        lambda s: s.reorder("y.i", "y.k", "y.j"),
        lambda s: s.decompose_reduction("y", "y.k"),
    ]
    assert scheduled(dense(3, 4, 5), *steps) == golden


def test_rfactor(golden):
    steps = [lambda s: s.split("y.k", [4], "guard"), lambda s: s.rfactor("y", "y.k.1")]
    assert scheduled(dense(3, 10, 5), *steps) == golden


def test_rfactor_twice(golden):
    """Partial results of work-groups, each from partial results of vector lanes."""
    steps = [
        lambda s: s.split("y.k", [3, 4]),
        lambda s: s.rfactor("y", "y.k.0", 0),
        lambda s: s.rfactor("y.part", "y.part.k.2"),
        lambda s: s.bind("y.part.k.0", "group.0"),
    ]
    assert scheduled(dense(1, 24, 5), *steps) == golden


def test_pack(golden):
    assert scheduled(dense(3, 4, 5), lambda s: s.pack("w")) == golden


def test_read_as_image(golden):
    assert scheduled(dense(3, 4, 5), lambda s: s.read_as_image("w", 64)) == golden


@pytest.mark.parametrize(
    ("buffer", "texels", "sentence"),
    [
        ("x", 64, r"read_as_image\(x\): expected a constant input or a precomputed stage"),
        ("nowhere", 64, r"read_as_image\(nowhere\): expected a constant input"),
        ("w", 48, r"read_as_image\(w\): expected a power of two, got 48"),
        ("w", 0, r"read_as_image\(w\): expected a power of two, got 0"),
        ("i", 64, r"read_as_image\(i\): expected float32, got int32"),
        ("b", 64, r"read_as_image\(b\): it is read as an image already"),
    ],
)
def test_refused_images(buffer: str, texels: int, sentence: str):
    x, w = placeholder("x", (8,)), placeholder("w", (8,), constant=True)
    b, i = placeholder("b", (8,), constant=True), placeholder("i", (8,), INT32, constant=True)
    y = compute("y", (8,), lambda j: x[j] * w[j] + b[j] + cast(i[j], FLOAT32), [x, w, b, i])
    s = Schedule(from_dag(Dag((y,))))
    s.read_as_image("b", 64)
    with pytest.raises(ScheduleError, match=sentence):
        s.read_as_image(buffer, texels)


def test_sampling(golden):
    s = Schedule(from_dag(dense(12, 8, 34)))
    outer = s.sample_perfect_tile("z.i", 3)
    inner = s.sample_tile("z.j", 2, 16, unit=2)
    s.split("z.i", outer)
    s.split("z.j", [*inner, const(2)], "shift")
    s.unroll("z.j.1", s.sample_categorical("hint", [1, 2, 4]))
    tables = "\n".join(f"{d.name}: {d.table.tolist()}" for d in s.decisions)
    limits = "\n".join(map(str, s.constraints))
    assert f"{s.trace}\n\n{s.program}\n\n{tables}\n\n{limits}\n" == golden


def scaled_weights() -> Dag:
    """A packed constant that an element-wise stage reads, and a sum over that stage."""
    x, w = placeholder("x", (2, 3)), placeholder("w", (2, 3), constant=True)
    y = compute("y", (2, 3), lambda i, j: x[i, j] * w[i, j], [x, w])
    k = reduce_axis("k", 3)
    return Dag((compute("z", (2,), lambda i: y[i, k], [y], reduce=(k,)),))


def neighbours() -> Dag:
    """A stage that is read at two places at once."""
    x = placeholder("x", (2, 4))
    a = compute("a", (2, 4), lambda i, j: x[i, j] * 2.0, [x])
    return Dag((compute("y", (2, 3), lambda i, j: a[i, j] + a[i, j + 1], [a]),))


def spread() -> Dag:
    """A stage that is read at two places whose distance changes."""
    x = placeholder("x", (2, 5))
    a = compute("a", (2, 5), lambda i, j: x[i, j] * 2.0, [x])
    return Dag((compute("y", (2, 3), lambda i, j: a[i, j] + a[i, j * 2], [a]),))


REFUSED: dict[str, tuple[Dag, Callable[[Schedule], object]]] = {
    "no loop 'q' in program; loops are y.i, y.j, y.k": (
        dense(2, 3, 4), lambda s: s.split("q", [2])),
    "no block 'q' in program; blocks are y, z": (dense(2, 3, 4), lambda s: s.loops("q")),
    r"split\(y.i\): 4 does not divide 6": (dense(6, 3, 4), lambda s: s.split("y.i", [4])),
    r"split\(y.i\): a tile of 8 exceeds the extent 6": (
        dense(6, 3, 4), lambda s: s.split("y.i", [8], "shift")),
    r"split\(y.i\): factors must be positive, got 0": (
        dense(6, 3, 4), lambda s: s.split("y.i", [0])),
    r"split\(y.i\): tail is one of .*, got 'pad'": (
        dense(6, 3, 4), lambda s: s.split("y.i", [4], "pad")),
    r"split\(y.j\): a shifted tail inside the reduction of y would be added twice": (
        dense(6, 3, 5), lambda s: (s.reorder("y.i", "y.k", "y.j"), s.split("y.j", [2], "shift"))),
    r"split\(z.i\): expected a serial loop, got unroll": (
        dense(6, 3, 4), lambda s: (s.unroll("z.i"), s.split("z.i", [2]))),
    r"fuse\(y.i, y.k\): y.k must be the only thing in y.i": (
        dense(2, 3, 4), lambda s: s.fuse("y.i", "y.k")),
    r"fuse\(y.j, y.k\): both must be serial, both reduce or neither": (
        dense(2, 3, 4), lambda s: s.fuse("y.j", "y.k")),
    "reorder: z.i not nested directly with y.i": (
        dense(2, 3, 4), lambda s: s.reorder("y.i", "z.i")),
    r"reorder\(y.i, y.i\): a loop is named twice": (
        dense(2, 3, 4), lambda s: s.reorder("y.i", "y.i")),
    "reorder: expected the names of loops, got none": (dense(2, 3, 4), lambda s: s.reorder()),
    "reorder: y.j.0 has a shifted tail and may not move inside a reduce loop": (
        dense(2, 3, 5),
        lambda s: (s.split("y.j", [2], "shift"), s.reorder("y.k", "y.j.0"))),
    r"unroll\(y.i\): expected a serial loop, it is vectorize already": (
        dense(2, 3, 4), lambda s: (s.vectorize("y.i"), s.unroll("y.i"))),
    r"bind\(y.i\): expected group.0..2, local.0..2 or vthread, got 'global'": (
        dense(2, 3, 4), lambda s: s.bind("y.i", "global")),
    r"group.0\(y.k\): expected a spatial loop, got a reduce loop": (
        dense(2, 3, 4), lambda s: s.bind("y.k", "group.0")),
    r"bind\(y.j\): group.0 runs y.i already, one inside the other": (
        dense(4, 3, 4), lambda s: (s.bind("y.i", "group.0"), s.bind("y.j", "group.0"))),
    r"bind\(y.j\): y.init is outside the loop": (
        dense(4, 3, 4),
        lambda s: (s.reorder("y.i", "y.k", "y.j"), s.decompose_reduction("y", "y.k"),
                   s.bind("y.j", "group.0"))),
    r"bind\(y.j\): z is outside the loop": (
        dense(4, 3, 4), lambda s: (s.compute_at("y", "z.i"), s.bind("y.j", "group.0"))),
    r"bind\(y.j.0\): iterations of y.j.0, which run at once as group.0, may add to the same": (
        dense(4, 3, 5), lambda s: (s.split("y.j", [2], "shift"), s.bind("y.j.0", "group.0"))),
    r"bind\(y.j.1\): iterations of y.j.1, which run at once as local.0, may add to the same": (
        dense(4, 3, 5), lambda s: (s.split("y.j", [2], "shift"), s.bind("y.j.1", "local.0"))),
    r"compute_inline\(y\): only a plain element-wise stage can be": (
        dense(2, 3, 4), lambda s: s.compute_inline("y")),
    r"compute_inline\(c\): it is an output": (elementwise(2, 4), lambda s: s.compute_inline("c")),
    "both.0: both is written in parts, by both.0, both.1": (
        joined(2, 3, 4), lambda s: s.compute_inline("both.0")),
    r"compute_inline\(y\): it reads w, which is packed already": (
        scaled_weights(), lambda s: (s.pack("w"), s.compute_inline("y"))),
    "a: expected an unscheduled root stage; move it before its loops": (
        elementwise(2, 4), lambda s: (s.split("a.i", [2]), s.compute_inline("a"))),
    r"cache_write\(y\): it has a cache already": (
        dense(2, 3, 4), lambda s: (s.cache_write("y"), s.cache_write("y"))),
    "y: y is written in parts, by y.init, y; move a stage before": (
        dense(2, 3, 4), lambda s: (s.decompose_reduction("y", "y.i"), s.cache_write("y"))),
    r"compute_at\(z, y.i\): it is an output; use cache_write first": (
        dense(2, 3, 4), lambda s: s.compute_at("z", "y.i")),
    r"compute_at\(y, z.i\): scope is one of register, private, local, got 'global'": (
        dense(2, 3, 4), lambda s: s.compute_at("y", "z.i", "global")),
    r"compute_at\(e, y.i\): also read outside that loop, by total": (
        softmax(2, 3), lambda s: s.compute_at("e", "y.i")),
    r"compute_at\(y, y.i\): also read outside that loop, by z": (
        dense(2, 3, 4), lambda s: s.compute_at("y", "y.i")),
    r"compute_at\(a, y.j\): dimension 1 is read in several ways": (
        spread(), lambda s: s.compute_at("a", "y.j")),
    r"decompose_reduction\(z, z.i\): expected a whole reduction in that loop": (
        dense(2, 3, 4), lambda s: s.decompose_reduction("z", "z.i")),
    r"decompose_reduction\(y, y.q\): reduce loop y.k is outside it": (
        total(2, 3), lambda s: s.decompose_reduction("y", "y.q")),
    r"decompose_reduction\(y, z.i\): the result is read inside that loop": (
        dense(4, 3, 4), lambda s: (s.compute_at("y", "z.i"), s.decompose_reduction("y", "z.i"))),
    r"decompose_reduction\(y, y.j.0\): y.j.0 has a shifted tail, and would add it twice": (
        dense(2, 3, 5),
        lambda s: (s.split("y.j", [2], "shift"), s.decompose_reduction("y", "y.j.0"))),
    r"rfactor\(y, y.i\): expected a reduction and one of its reduce loops": (
        dense(2, 3, 4), lambda s: s.rfactor("y", "y.i")),
    r"rfactor\(y, y.k\): axis is -1 \(last\) to 2, got 3": (
        dense(2, 3, 4), lambda s: s.rfactor("y", "y.k", 3)),
    r"rfactor\(y, y.k\): it has partial results already; factor y.part": (
        dense(2, 3, 4), lambda s: (s.rfactor("y", "y.k"), s.rfactor("y", "y.k"))),
    "tile: 2 loops, but 1 sizes": (
        dense(2, 3, 4), lambda s: s.tile(["z.i", "z.j"], [2])),
    r"parallel\(mean.ff\): all three group axes of its nest are taken": (
        pool(2, 3, 4, 5, 2, 1, average=True),
        lambda s: ([s.parallel(n) for n in ("mean.nn", "mean.yy", "mean.xx")],
                   s.parallel("mean.ff"))),
    r"annotate\(z.i\): the key is a word, got 'two words'": (
        dense(2, 3, 4), lambda s: s.annotate("z.i", "two words", 1)),
    r"annotate\(z.i\): the value of why is one line": (
        dense(2, 3, 4), lambda s: s.annotate("z.i", "why", "a\nb")),
    r"cache_read\(q, y.i\): no such buffer; buffers are x, w, b, y, z": (
        dense(2, 3, 4), lambda s: s.cache_read("q", "y.i")),
    r"cache_read\(x, y.i\): scope is one of register, private, local, got 'global'": (
        dense(2, 3, 4), lambda s: s.cache_read("x", "y.i", "global")),
    r"cache_read\(x, z.i\): nothing there reads it": (
        dense(2, 3, 4), lambda s: s.cache_read("x", "z.i")),
    r"cache_read\(y, y.i\): it is written inside that loop": (
        dense(2, 3, 4), lambda s: s.cache_read("y", "y.i")),
    r"cache_read\(x, y.j\): there is a x.register already": (
        dense(2, 3, 4), lambda s: (s.cache_read("x", "y.i"), s.cache_read("x", "y.j"))),
    r"cache_read\(y, z.j\): other work-items do not see what is in register memory": (
        dense(2, 3, 4), lambda s: (s.compute_at("y", "z.i"), s.cache_read("y", "z.j", "local"))),
    r"reverse_compute_at\(z, y.i\): scope is one of register, private, got 'local'": (
        dense(2, 3, 4), lambda s: s.reverse_compute_at("z", "y.i", "local")),
    r"reverse_compute_at\(y, z.i\): expected an element-wise reader of one result": (
        dense(2, 3, 4), lambda s: s.reverse_compute_at("y", "z.i")),
    r"reverse_compute_at\(z, y.k\): y is not complete there; move reduce loops inside": (
        dense(2, 3, 4), lambda s: s.reverse_compute_at("z", "y.k")),
    r"reverse_compute_at\(y, top.i\): expected an element-wise reader": (
        softmax(2, 3), lambda s: s.reverse_compute_at("y", "top.i")),
    r"reverse_compute_at\(y, a.i\): a is not read element by element, in one order": (
        neighbours(), lambda s: s.reverse_compute_at("y", "a.i")),
    r"reverse_compute_at\(y, total.i\): total is not read element by element": (
        softmax(2, 3), lambda s: s.reverse_compute_at("y", "total.i")),
    r"reverse_compute_at\(z, y.j.1\): y\[.*\] leaves gaps in what it writes there": (
        dense(2, 3, 4),
        lambda s: (s.split("y.j", [2]), s.reorder("y.j.1", "y.j.0"),
                   s.reverse_compute_at("z", "y.j.1"))),
    r"reverse_compute_at\(z, y.i\): y.j runs as local.0 inside that loop": (
        dense(2, 3, 4),
        lambda s: (s.bind("y.j", "local.0"), s.reverse_compute_at("z", "y.i"))),
    r"reverse_compute_at\(z, y.i\): y.init writes y outside that loop": (
        dense(2, 3, 4),
        lambda s: (s.decompose_reduction("y", "y.i"), s.reverse_compute_at("z", "y.i"))),
    r"bind\(y.i\): x.local in local memory holds one iteration's part; bind to local.0": (
        dense(4, 3, 4),
        lambda s: (s.cache_read("x", "y.i", "local"), s.bind("y.i", "local.0"))),
    r"bind\(y.j\): local.0 runs y.i already, one inside the other": (
        dense(4, 3, 4), lambda s: (s.bind("y.i", "local.0"), s.bind("y.j", "local.0"))),
    r"bind\(z.j.1\): local.0 runs y.j already, with extent 4": (
        dense(4, 3, 4),
        lambda s: (s.compute_at("y", "z.i", "local"), s.split("z.j", [2]),
                   s.bind("y.j", "local.0"), s.bind("z.j.1", "local.0"))),
    r"sample_compute_location: \(9,\) is not an option of 'at.y'": (
        dense(4, 3, 4), lambda s: Schedule(s.program, {"at.y": (9,)}).sample_compute_location("y")),
    r"pack\(x\): expected a constant input": (dense(2, 3, 4), lambda s: s.pack("x")),
    r"pack\(w\): it is packed already": (
        dense(2, 3, 4), lambda s: (s.pack("w"), s.pack("w"))),
    r"pack\(w\): expected one read of it, found 2": (flipped(2, 3), lambda s: s.pack("w")),
    r"sample_tile\(y.i\): unit is 1 to the extent 2, got 4": (
        dense(2, 3, 4), lambda s: s.sample_tile("y.i", 2, unit=4)),
    r"sample_perfect_tile: decision 'tile.y.i' is taken already": (
        dense(2, 3, 4),
        lambda s: (s.sample_perfect_tile("y.i", 2), s.sample_perfect_tile("y.i", 2))),
    r"sample_tile\(y.i.1\): its extent .* is itself sampled": (
        dense(4, 3, 4),
        lambda s: (s.split("y.i", s.sample_perfect_tile("y.i", 2)), s.sample_tile("y.i.1", 2))),
    "program: too small": (
        dense(2, 3, 4), lambda s: s.require(const(False, BOOL), "too small")),
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message: str):
    dag, action = REFUSED[message]
    with pytest.raises(ScheduleError, match=message):
        action(Schedule(from_dag(dag)))


PRECOMPUTED: dict[str, Callable[[Schedule], object]] = {
    "cache_write": lambda s: s.cache_write("known"),
    "rfactor": lambda s: s.rfactor("known", "known.k"),
    "cache_read": lambda s: s.cache_read("w", "known.i", "private"),
    "compute_at": lambda s: s.compute_at("doubled", "known.i"),
}


@pytest.mark.parametrize("primitive", PRECOMPUTED)
def test_what_is_computed_at_compile_time_is_left_as_it_is(primitive: str):
    x, w, k = placeholder("x", (4,)), placeholder("w", (4, 6), constant=True), reduce_axis("k", 6)
    doubled = compute("doubled", (4, 6), lambda i, j: w[i, j] * 2.0, [w])
    known = compute("known", (4,), lambda i: doubled[i, k] + w[i, k], [doubled, w], reduce=[k])
    dag = Dag((compute("y", (4,), lambda i: x[i] + known[i], [x, known]),))
    s = Schedule(from_dag(dag))
    s.precompute("doubled")
    s.precompute("known")
    with pytest.raises(
        ScheduleError, match=rf"{primitive}\(.*\): known is computed at compile time"
    ):
        PRECOMPUTED[primitive](s)


def test_a_refused_primitive_leaves_no_trace():
    s = Schedule(from_dag(dense(6, 3, 4)))
    program = s.program
    with pytest.raises(ScheduleError):
        s.split("y.i", [4])
    assert s.program is program and not s.trace.steps


def test_given_numbers_take_the_place_of_symbols():
    s = Schedule(from_dag(dense(6, 3, 4)), {"tile.y.i": (3,)})
    assert s.sample_perfect_tile("y.i", 2) == [const(3)]
    assert dict(s.trace.decisions) == {"tile.y.i": (3,)}
    with pytest.raises(ScheduleError, match=r"\(4,\) is not an option of 'tile.y.i'"):
        Schedule(from_dag(dense(6, 3, 4)), {"tile.y.i": (4,)}).sample_perfect_tile("y.i", 2)


def test_symbols_are_variables_named_after_the_decision():
    s = Schedule(from_dag(dense(6, 3, 4)))
    assert s.sample_perfect_tile("y.i", 3) == [Var("tile.y.i@0"), Var("tile.y.i@1")]
