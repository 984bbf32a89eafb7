"""Layers whose activations exceed the last cache run for some images at a time."""

from collections import Counter
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from retune.core.dims import Size, assuming, dim_of
from retune.core.dtypes import TensorType
from retune.frontend.onnx.importer import import_model
from retune.frontend.zoo.writer import open_axes
from retune.graph.batch_loop import BATCH_LOOP, BatchLoop
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.micro_batches import SharedCache, in_micro_batches
from retune.graph.passes.pipeline import optimise
from retune.search.extract import extract
from tests.support.batches import images, narrowing
from tests.support.networks import normal, random_network

BATCH = 8
CACHE = SharedCache(bytes=50_000, units=0, hiding=inf)
"""Two images of the layers that `narrowing` begins with, and all of the later ones."""


def network(batch: int = BATCH) -> Graph:
    return optimise(import_model(narrowing(batch)))


def narrowed() -> Graph:
    """One layer, which reads more than it makes."""
    build = GraphBuilder("narrowed")
    weight = build.constant("w", normal(np.random.default_rng(0), 4, 4, 8, 8))
    attrs = {"strides": (4, 4), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
    x = build.input("x", TensorType((BATCH, 16, 16, 8)))
    return build.finish([build.add("conv2d", [x, weight], {**attrs, "layout": "NHWC"})])


def assert_same(before: Graph, after: Graph) -> None:
    after.verify()
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    inputs = random_inputs(before, 3)
    found = run_graph(after, inputs)
    for name, array in run_graph(before, inputs).items():
        limit = 1e-5 * max(float(np.abs(array).max()), 1e-6)
        np.testing.assert_allclose(found[name], array, rtol=0, atol=limit, err_msg=name)


def test_layers_beyond_the_cache_run_for_some_images_at_a_time():
    before = network()
    after = in_micro_batches(before, CACHE)
    assert_same(before, after)
    assert images(after, "conv2d") == {2: 2 * 4, BATCH: 3}
    assert images(after, "max_pool2d") == {2: 4}
    weights = sorted(task.weight for task in extract(after).tasks.values() if task.tunable)
    assert weights == [1, 1, 1, 4, 2 * 4], "a task for all micro-batches of equal layers"


def test_images_that_are_left_run_one_by_one():
    before = network(7)
    after = in_micro_batches(before, CACHE)
    assert_same(before, after)
    assert images(after, "conv2d") == {2: 2 * 3, 1: 2, 7: 3}


def test_a_loop_of_one_image_at_a_time_has_one_body():
    before = network(7)
    after = in_micro_batches(before, replace(CACHE, bytes=CACHE.bytes // 2))
    assert_same(before, after)
    loops = [BatchLoop.of(node.attrs) for node in after.nodes if node.op == BATCH_LOOP]
    assert loops and all(loop.step == 1 and loop.rest is loop.body for loop in loops)


def test_an_open_batch_is_divided_for_any_number_of_images():
    size = Size("n", 1, 100)
    for count, divided in ((8, {2}), (7, {2}), (1, set[int]())):
        with assuming({"n": count}) as assumed:
            model = open_axes(narrowing(BATCH), {0: "n"})
            before = optimise(import_model(model, {"n": (dim_of(size),)}))
            after = in_micro_batches(before, CACHE)
            loops = [BatchLoop.of(n.attrs).step for n in after.nodes if n.op == BATCH_LOOP]
        assert {*loops} == divided
        assert not assumed.conditions
        for n in (1, 2, 3, 9):
            feeds = random_inputs(network(n), 3)
            with assuming({"n": n}):
                (found,) = run_graph(after, feeds).values()
            (expected,) = run_graph(network(n), feeds).values()
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("graph", "cache"),
    [
        (network(batch=1), CACHE),
        (network(), SharedCache(bytes=1 << 20, units=0, hiding=inf)),
        (network(), SharedCache(bytes=CACHE.bytes, units=64, hiding=inf)),
        (network(), SharedCache(bytes=CACHE.bytes, units=0, hiding=8)),
        (narrowed(), CACHE),
    ],
    ids=["one image", "fits the cache", "launches cost more", "small tiles cost more", "one layer"],
)
def test_what_gains_nothing_stays_whole(graph: Graph, cache: SharedCache):
    assert in_micro_batches(graph, cache) is graph


def test_random_networks_compute_the_same_in_micro_batches():
    divided = Counter[str]()
    for seed in range(32):
        before = optimise(random_network(seed, steps=10))
        for size in (500, 4_000):
            after = in_micro_batches(before, SharedCache(bytes=size, units=0, hiding=inf))
            if after is not before:
                assert_same(before, after)
                loops = (BatchLoop.of(n.attrs) for n in after.nodes if n.op == BATCH_LOOP)
                divided.update({node.op for loop in loops for node in loop.body.nodes})
    assert {"conv2d", "transpose", "concat", "slice", "reshape"} <= divided.keys()
    assert divided["conv2d"] >= 5


def mixing(op: str, width: int = 8, size: int = 16) -> Graph:
    """Three convolutions, what looks at several images at once, and three more."""
    build = GraphBuilder("mixing")
    rng = np.random.default_rng(0)
    attrs = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}

    def convolved(x: str) -> str:
        for _ in range(3):
            weight = build.constant("w", normal(rng, 3, 3, width, width) / width)
            x = build.add("conv2d", [x, weight], {**attrs, "layout": "NHWC"})
        return x

    shape = (BATCH, size, size, width)
    x = convolved(build.input("x", TensorType(shape)))
    match op:
        case "transpose":
            x = build.add("transpose", [x], {"perm": (1, 0, 2, 3)})
            x = build.add("reshape", [x], {"shape": shape})
        case "reshape":
            x = build.add("reshape", [x], {"shape": (2, BATCH // 2, *shape[1:])})
            x = build.add("softmax", [x], {"axis": 1})
            x = build.add("reshape", [x], {"shape": shape})
        case "softmax":
            x = build.add("softmax", [x], {"axis": 0})
        case "add":
            x = build.add("add", [x, build.constant("each", normal(rng, BATCH, 1, 1, width))])
        case "reduce_mean":
            mean = build.add("reduce_mean", [x], {"axes": (0,), "keepdims": True})
            x = build.add("subtract", [x, mean])
        case _:
            assert op == "none"
    return build.finish([convolved(x)])


@pytest.mark.parametrize("op", ["transpose", "reshape", "softmax", "add", "reduce_mean"])
def test_what_looks_at_several_images_sees_the_whole_batch(op: str):
    before = mixing(op)
    after = in_micro_batches(before, CACHE)
    assert_same(before, after)
    assert images(after, op) == images(before, op)
    assert images(after, "conv2d")[2] >= 2 * 4, "layers before or behind it are divided"


def test_weights_that_are_read_again_count():
    cache = SharedCache(bytes=400_000, units=0, hiding=inf)
    heavy, light = mixing("none", width=128, size=8), mixing("none", width=8, size=32)
    assert in_micro_batches(heavy, cache) is heavy, "576 KiB of weights for 512 KiB of images"
    assert images(in_micro_batches(light, cache), "conv2d") == {4: 2 * 6}
