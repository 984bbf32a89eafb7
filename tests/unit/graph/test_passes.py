"""Every pass leaves what a network computes as it was."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.core.dtypes import TensorType
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import ALIAS, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import PASSES, Layout, optimise, passes_for
from retune.graph.passes.simplify import merge_pads
from retune.graph.passes.sink import operand_shape
from retune.graph.rewrite import rebuild
from tests.support.networks import normal, random_network

SEEDS = st.integers(0, 100_000)


def assert_same(before: Graph, after: Graph) -> None:
    after.verify()
    assert after.inputs == before.inputs
    assert after.outputs == before.outputs
    inputs = random_inputs(before, 3)
    expected, found = run_graph(before, inputs), run_graph(after, inputs)
    for name, array in expected.items():
        scale = max(float(np.abs(array).max()), 1e-6)
        np.testing.assert_allclose(found[name] / scale, array / scale, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_a_pass_preserves_meaning(step, seed):
    graph = random_network(seed)
    assert_same(graph, step.run(graph))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=SEEDS)
def test_all_passes_together_preserve_meaning(layout, seed):
    graph = random_network(seed, steps=12)
    assert_same(graph, optimise(graph, layout))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_each_pass_is_listed_once_and_changes_nothing_afterwards(layout: Layout):
    passes = passes_for(layout)
    assert len({step.name for step in passes}) == len({step.run for step in passes}) == len(passes)
    for seed in range(12):
        graph = optimise(random_network(seed), layout)
        changed = [s.name for s in passes if not s.once and not s.run(graph).same(graph)]
        assert not changed, f"random_network({seed})"


@pytest.mark.parametrize(("pads", "left"), [((0, 2, 1, 0), 1), ((0, 2, 1, 3), 2)])
def test_pads_around_pixels_go_into_layers_of_either_layout(pads: tuple[int, ...], left: int):
    build = GraphBuilder("net")
    build.input("data", TensorType((1, 6, 6, 4)))
    padded = build.add("pad", ["data"], {"pads": (*pads, 0, 0, 0, 0), "value": 0.0})
    weight = build.constant("w", normal(np.random.default_rng(0), 3, 3, 4 + pads[3], 5))
    attrs = {"strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1}
    made = build.add("conv2d", [padded, weight], {**attrs, "layout": "NHWC"})
    graph = build.finish([made])
    after = merge_pads(graph)
    assert_same(graph, after)
    assert len(after.nodes) == left


def image(shape: tuple[int, ...] = (1, 4, 6, 6)) -> GraphBuilder:
    build = GraphBuilder("net")
    build.input("data", TensorType(shape))
    return build


def conv(build: GraphBuilder, x: str, made: int, taps: int = 3, pad: int = 1) -> str:
    depth = build.types[x].shape[1]
    weight = build.constant("w", normal(np.random.default_rng(0), made, depth, taps, taps))
    return build.add(
        "conv2d",
        [x, weight],
        {
            "strides": (1, 1),
            "pads": (pad,) * 4,
            "dilations": (1, 1),
            "groups": 1,
            "layout": "NCHW",
        },
        name=build.fresh("conv"),
    )


def batch_norm(build: GraphBuilder, x: str) -> str:
    rng = np.random.default_rng(1)
    count = build.types[x].shape[1]
    values = [build.constant("s", normal(rng, count)) for _ in range(3)]
    values.append(build.constant("v", np.ones(count, np.float32)))
    attrs = {"axis": 1, "epsilon": 1e-5}
    return build.add("batch_norm", [x, *values], attrs, name=build.fresh("norm"))


def test_a_pass_that_finds_nothing_gives_the_graph_itself():
    done = optimise(random_network(5))
    assert rebuild(done, lambda r, node: None) is done
    first = done.nodes[0].outputs[0]
    copied = rebuild(done, lambda r, node: r.emit(node.op, node.inputs, node.attrs)
                     if node.outputs[0] == first else None)  # fmt: skip
    assert len(copied.nodes) == len(done.nodes) and copied.nodes[0].op == done.nodes[0].op
    assert copied.nodes[0].outputs != done.nodes[0].outputs


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def test_batch_norm_after_a_convolution_becomes_its_bias():
    build = image()
    graph = build.finish([build.add("relu", [batch_norm(build, conv(build, "data", 8))])])
    folded = optimise(graph, "NCHW")
    assert ops(folded) == {"conv2d": 1, "add": 1, "relu": 1}
    assert_same(graph, folded)


def test_batch_norm_stays_a_scale_where_the_convolution_is_read_twice():
    build = image()
    first = conv(build, "data", 4)
    graph = build.finish([build.add("add", [batch_norm(build, first), first])])
    folded = optimise(graph, "NCHW")
    assert ops(folded) == {"conv2d": 1, "multiply": 1, "add": 2}
    assert_same(graph, folded)


def test_a_scale_that_makes_more_channels_of_one_stays():
    build = image()
    factor = build.constant("c", normal(np.random.default_rng(2), 1, 8, 1, 1))
    graph = build.finish([build.add("multiply", [conv(build, "data", 1), factor])])
    folded = optimise(graph, "NCHW")
    assert ops(folded) == {"conv2d": 1, "multiply": 1}
    assert_same(graph, folded)


def test_batch_norm_before_a_convolution_is_one_multiply_and_add():
    build = image()
    x = build.add("relu", [batch_norm(build, batch_norm(build, "data"))])
    folded = optimise(build.finish([conv(build, x, 8)]), "NCHW")
    assert ops(folded) == {"multiply": 1, "add": 1, "relu": 1, "conv2d": 1}


def test_channels_last_keeps_one_transpose_at_the_input():
    build = image()
    x = build.add("relu", [conv(build, "data", 8)])
    y = build.add("add", [conv(build, x, 8), x])
    pooled = build.add("global_avg_pool", [y], {"layout": "NCHW"})
    flat = build.add("reshape", [pooled], {"shape": (1, 8)})
    folded = optimise(build.finish([flat]), "NHWC")
    assert ops(folded)["transpose"] == 1
    assert folded.nodes[0].op == "transpose"


def test_flattened_channels_last_data_reorders_the_dense_weight():
    build = image()
    flat = build.add("reshape", [conv(build, "data", 8)], {"shape": (1, 8 * 36)})
    weight = build.constant("dense_w", normal(np.random.default_rng(2), 5, 8 * 36))
    graph = build.finish([build.add("dense", [flat, weight])])
    folded = optimise(graph, "NHWC")
    assert ops(folded) == {"transpose": 1, "conv2d": 1, "reshape": 1, "dense": 1}
    assert_same(graph, folded)


def test_channels_shuffle_on_channels_last_data_moves_only_channels():
    build = image((1, 4, 5, 5))
    x = conv(build, "data", 6)
    x = build.add("reshape", [x], {"shape": (1, 2, 3, 5, 5)})
    x = build.add("transpose", [x], {"perm": (0, 2, 1, 3, 4)})
    x = build.add("reshape", [x], {"shape": (1, 6, 5, 5)}, name="joined")
    graph = build.finish([conv(build, x, 4)])
    folded = optimise(graph, "NHWC")
    perms = [node.attrs["perm"] for node in folded.nodes if node.op == "transpose"]
    assert perms == [(0, 2, 3, 1), (0, 1, 2, 4, 3), (0, 3, 1, 2)]
    assert_same(graph, folded)


def test_images_made_of_rows_of_channels_are_not_transposed():
    """As between a norm over channels and a convolution, with another reader beside it."""
    build = image((1, 4, 5, 5))
    x = build.add("transpose", [conv(build, "data", 6)], {"perm": (0, 2, 3, 1)})
    x = build.add("transpose", [build.add("softmax", [x], {"axis": 3})], {"perm": (0, 3, 1, 2)})
    x = build.add("add", [conv(build, x, 6), x])
    x = build.add("reshape", [x], {"shape": (1, 6, 25)})
    x = build.add("relu", [build.add("transpose", [x], {"perm": (0, 2, 1)})])
    x = build.add("transpose", [x], {"perm": (0, 2, 1)})
    x = build.add("reshape", [x], {"shape": (1, 6, 5, 5)}, name="back")
    graph = build.finish([conv(build, x, 4)])
    folded = optimise(graph, "NHWC")
    perms = [node.attrs["perm"] for node in folded.nodes if node.op == "transpose"]
    assert perms == [(0, 2, 3, 1), (0, 3, 1, 2)], "the network's input and output"
    assert_same(graph, folded)


def test_a_pad_of_zeros_joins_the_convolution():
    build = image()
    pads = (0, 0, 1, 2, 0, 0, 3, 0)
    padded = build.add("pad", ["data"], {"pads": pads, "value": 0.0})
    graph = build.finish([conv(build, padded, 3)])
    folded = optimise(graph, "NCHW")
    assert ops(folded) == {"conv2d": 1}
    assert folded.nodes[0].attrs["pads"] == (2, 3, 4, 1)
    assert_same(graph, folded)


def words(depth: int = 6) -> tuple[GraphBuilder, str, str]:
    """A product of [2, 5, depth] with a matrix, as it is imported, and the data."""
    build = GraphBuilder("net")
    data = build.input("data", TensorType((2, 5, depth)))
    rows = build.add("reshape", [data], {"shape": (10, depth)})
    weight = build.constant("w", normal(np.random.default_rng(0), depth, depth))
    made = build.add("dense", [rows, weight], name="product")
    return build, build.add("reshape", [made], {"shape": (2, 5, depth)}, name="apart"), data


def test_what_follows_a_product_of_words_is_fused_with_it():
    build, x, data = words()
    bias = build.constant("b", normal(np.random.default_rng(1), 6))
    x = build.add("relu", [build.add("add", [x, bias])])
    x = build.add(
        "multiply",
        [
            build.add("add", [x, data], name="sum"),
            build.constant("half", np.float32(0.5) * np.ones(())),
        ],
    )
    graph = build.finish([x])
    folded = optimise(graph)
    assert [group.kind for group in partition(folded) if group.kind != ALIAS] == ["dense"]
    assert_same(graph, folded)


def test_reshapes_between_two_products_cancel():
    build, x, _ = words()
    rows = build.add("reshape", [build.add("relu", [x])], {"shape": (10, 6)}, name="rows")
    graph = build.finish([build.add("dense", [rows, "w"], name="again")])
    folded = optimise(graph)
    assert [node.op for node in folded.nodes] == ["reshape", "dense", "relu", "dense"]
    assert_same(graph, folded)


def test_a_reshape_stays_before_a_sum_over_parts_of_what_it_joins():
    build, x, _ = words()
    places = build.constant("places", normal(np.random.default_rng(1), 5, 1))
    graph = build.finish([build.add("add", [x, places])])
    assert [node.op for node in optimise(graph).nodes] == ["reshape", "dense", "reshape", "add"]


@pytest.mark.parametrize(
    ("operand", "made", "source", "expected"),
    [
        ((6,), (2, 5, 6), (10, 6), (1, 6)),
        ((2, 5, 1), (2, 5, 6), (10, 6), (10, 1)),
        ((1, 4, 1, 9), (1, 4, 3, 9), (4, 3, 9), (4, 1, 9)),
        ((3, 4), (6, 3, 4), (2, 3, 12), (1, 1, 12)),
        ((5, 6), (2, 5, 6), (10, 6), None),
        ((), (2, 5, 6), (10, 6), ()),
        ((1, 1, 1), (2, 5, 6), (10, 6), ()),
    ],
)
def test_an_operand_is_seen_as_the_source_has_it(operand, made, source, expected):
    assert operand_shape(operand, made, source) == expected


@pytest.mark.parametrize(
    ("exponent", "products"),
    [(np.float32(2), 1), (np.full((1, 1), 3, np.int64), 2), (np.float32(2.5), 0)],
)
def test_a_small_whole_power_becomes_products(exponent: np.ndarray, products: int):
    build = image((2, 3))
    raised = build.add("power", ["data", build.constant("by", np.asarray(exponent))])
    graph = build.finish([build.add("relu", [raised])])
    folded = optimise(graph)
    assert ops(folded)["multiply"] == products
    assert ops(folded)["power"] == (products == 0)
    assert_same(graph, folded)


def test_a_power_that_widens_its_base_stays():
    build = image((2, 1))
    by = build.constant("by", np.full((2, 3), 2, np.float32))
    assert ops(optimise(build.finish([build.add("power", ["data", by])]))) == {"power": 1}


def test_an_output_that_is_constant_gets_a_producer():
    build = image()
    stored = build.constant("anchors", np.arange(6, dtype=np.float32))
    graph = build.finish([build.add("relu", ["data"]), stored])
    folded = optimise(graph)
    assert folded.producer("anchors") is not None
    assert_same(graph, folded)


def test_what_is_spread_for_an_operation_that_does_so_itself_is_not():
    build = GraphBuilder("net")
    build.input("x", TensorType((4, 6)))
    root = build.add("sqrt", [build.add("reduce_sum", ["x"], {"axes": (1,), "keepdims": True})])
    wide = build.add("broadcast_to", [root], {"shape": (4, 6)})
    graph = build.finish([build.add("divide", ["x", wide]), build.add("add", [wide, wide])])
    after = optimise(graph)
    assert_same(graph, after)
    assert Counter(node.op for node in after.nodes)["broadcast_to"] == 1
    assert [after.types[v].shape for n in after.nodes if n.op == "divide" for v in n.inputs] == [
        (4, 6), (4, 1),
    ]  # fmt: skip


def test_images_as_rows_of_pixels_and_back_are_reshapes():
    build = GraphBuilder("net")
    build.input("rows", TensorType((1, 12, 5)))
    tall = build.add("transpose", [build.add("relu", ["rows"])], {"perm": (0, 2, 1)})
    image = build.add("reshape", [tall], {"shape": (1, 5, 3, 4)})
    last = build.add("transpose", [image], {"perm": (0, 2, 3, 1)})
    joined = build.add("reshape", [tall], {"shape": (5, 12)})
    graph = build.finish([build.add("tanh", [last]), build.add("tanh", [joined])])
    after = optimise(graph, "NCHW")
    assert_same(graph, after)
    assert Counter(node.op for node in after.nodes)["transpose"] == 1


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_an_image_of_one_element_may_become_a_number(shape: tuple[int, ...]):
    build = image((1, 1, 1, 1))
    graph = build.finish([build.add("reshape", [conv(build, "data", 1)], {"shape": shape})])
    for layout in ("NHWC", "NCHW"):
        assert_same(graph, optimise(graph, layout))


def test_reshapes_sink_behind_several_readers():
    """GELU in parts reads a layer twice: all of it becomes the layer's epilogue."""
    build = image((1, 3, 6))
    build.constant("w", np.ones((5, 6), np.float32))
    build.constant("half", np.asarray(0.5, np.float32))
    flat = build.add("reshape", ["data"], {"shape": (3, 6)})
    x = build.add("reshape", [build.add("dense", [flat, "w"])], {"shape": (1, 3, 5)})
    grown = build.add("erf", [build.add("multiply", [x, "half"])])
    graph = build.finish([build.add("multiply", [x, grown])])
    after = optimise(graph)
    assert_same(graph, after)
    kinds = [group.kind for group in partition(after) if group.kind != ALIAS]
    assert kinds == ["dense"]


@pytest.mark.parametrize(("axis", "gathers"), [(1, 1), (2, 0)])
def test_a_shift_is_gathered_at_once_but_for_columns(axis: int, gathers: int):
    build = GraphBuilder("net")
    build.input("x", TensorType((1, 7, 6)))
    shape = [1, 7, 6]

    def cut(begin: int, end: int) -> str:
        begins, extents = [0, 0, 0], list(shape)
        begins[axis], extents[axis] = begin, end - begin
        attrs = {"begins": tuple(begins), "extents": tuple(extents), "steps": (1, 1, 1)}
        return build.add("slice", ["x"], attrs)

    parts = [cut(2, shape[axis]), cut(0, 2)]
    graph = build.finish([build.add("concat", parts, {"axis": axis}), build.add("relu", parts[:1])])
    after = optimise(graph, "NCHW")
    assert_same(graph, after)
    counts = Counter(node.op for node in after.nodes)
    assert (counts["gather"], counts["concat"], counts["slice"]) == (
        gathers,
        1 - gathers,
        2 - gathers,
    )


@pytest.mark.parametrize(
    ("places", "ops"),
    [
        (-1, ["slice"]),
        ([1, 2, 3], ["slice"]),
        ([0, 2, -1], ["slice"]),
        ([2, 1], ["gather"]),
        ([0, 1, 3], ["gather"]),
    ],
)
def test_what_is_gathered_in_even_steps_is_a_slice(places: int | list[int], ops: list[str]):
    build = GraphBuilder("net")
    build.input("x", TensorType((3, 5, 4)))
    build.constant("places", np.asarray(places, np.int64))
    graph = build.finish([build.add("gather", ["x", "places"], {"axis": 1})])
    after = optimise(graph)
    assert_same(graph, after)
    assert [node.op for node in after.nodes if node.op != "reshape"] == ops
    first = optimise(graph, "NCHW")
    numbers = {
        type(v)
        for n in first.nodes
        for a in n.attrs.values()
        if a is not None
        for v in (a if isinstance(a, tuple) else (a,))
    }
    assert numbers == {int}  # those of numpy cannot be written to a bundle


@pytest.mark.parametrize(("factor", "folded"), [(5, False), (-1, False), (1, True)])
def test_bytes_take_in_no_factor_that_leaves_them(factor: int, folded: bool):
    build = GraphBuilder("net")
    build.input("x", TensorType((3, 4), "uint8"))
    weight = build.constant("w", np.asarray([[-128, 127, 3, 1]] * 2, np.int8))
    scale = build.constant("c", np.asarray(factor, np.int32))
    graph = build.finish([build.add("multiply", [build.add("dense", ["x", weight]), scale])])
    after = optimise(graph)
    inputs = {"x": np.asarray([[255, 0, 1, 9], [0, 255, 3, 2], [7, 8, 9, 10]], np.uint8)}
    (expected,), (found,) = (run_graph(g, inputs).values() for g in (graph, after))
    np.testing.assert_array_equal(found, expected)
    assert (len(after.nodes) == 1) == folded
