"""Packed convolutions become an accelerator's tasks: resnet18's are the ten of AutoTVM."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.frontend.models import load_model
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2
from retune.ops.blocked import blocked_conv2d
from retune.search.extract import Network, extract
from retune.targets.vta.config import VtaConfig
from retune.targets.vta.packed import packed_network, work_of
from tests.support.device_networks import Net
from tests.support.quantize_networks import samples
from tests.support.vta_reference import reference

EXPECTED = Path(__file__).parents[2] / "expected" / "resnet18_vta_tasks.json"
CONFIG = VtaConfig()


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Network:
    graph = load_model("zoo:resnet18_v1", cache_dir=tmp_path_factory.mktemp("models"))
    data = {name: np.zeros(graph.types[name].shape, np.float32) for name in graph.inputs}
    settings = replace(POWER2, skip_conv_layers=(0,), bias_correction=False)
    packed = packed_network(quantize(graph, data, settings), CONFIG)
    return extract(optimise(packed, "NHWC"), accelerator=CONFIG)


def test_resnet18_has_exactly_the_ten_tasks_of_autotvm(resnet: Network):
    tuned = [task for task in resnet.tasks.values() if task.tunable]
    found = [
        {
            "data": list(task.input_shapes[0]),
            "kernel": list(task.input_shapes[1]),
            "strides": list(task.packed.work.strides),
            "padding": list(task.packed.work.padding[:2]),
            "dilation": list(task.packed.work.dilation),
            "layout": f"NCHW{CONFIG.batch}n{CONFIG.block}c",
        }
        for task in tuned
        if task.packed is not None
    ]
    expected = json.loads(EXPECTED.read_text(encoding="utf-8"))["tasks"]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert sum(task.weight for task in tuned) == 19
    assert all(task.packed is not None for task in tuned)


def test_every_candidate_of_a_task_serves_all_of_its_nodes(resnet: Network):
    for placed in resnet.groups:
        if placed.group.offloaded:
            task = resnet.tasks[placed.task_key or ""]
            own = work_of(resnet.graph, placed.group.anchor)
            assert task.packed is not None
            assert len(own.images()) <= len(task.packed.work.images())
            assert own.out_size == task.packed.work.out_size


def test_a_node_and_what_is_asked_for_it_compute_the_same(resnet: Network):
    graph, rng = resnet.graph, np.random.default_rng(3)
    nodes = [p.group.anchor for p in resnet.groups if p.group.offloaded]
    for node in (nodes[-1], nodes[-3]):  # with another image, and without
        arrays = [
            graph.constants[value]
            if value in graph.constants
            else rng.integers(-128, 128, graph.types[value].shape).astype(np.int8)
            for value in node.inputs
        ]
        named = dict(zip(("data", "weight", "bias", "residual"), arrays, strict=False))
        (expected,) = blocked_conv2d(arrays, node.attrs)
        np.testing.assert_array_equal(reference(work_of(graph, node), named), expected)


@pytest.mark.parametrize(("wide", "packed"), [(64, True), (32, False)])
def test_only_layers_that_have_tiles_are_packed(wide: int, *, packed: bool):
    """Two blocks of a dense layer's results are fewer than the pipe is long."""
    n = Net("classifier")
    x = n("Relu", n("Gemm", n.input(1, 20), n.weight(wide, 20), n.weight(wide), transB=1))
    graph = import_model(n.model(n("Gemm", x, n.weight(10, wide), n.weight(10), transB=1)))
    settings = replace(POWER2, method="minmax", bias_correction=False)
    whole = quantize(graph, samples(graph), settings)
    if not packed:
        with pytest.raises(InputError, match=r"expected layers of integers .* got none"):
            packed_network(whole, CONFIG)
        return
    network = extract(optimise(packed_network(whole, CONFIG), "NHWC"), accelerator=CONFIG)
    (task,) = (task for task in network.tasks.values() if task.tunable)
    assert task.packed is not None
    work = task.packed.work
    assert (work.c, work.o, work.h, work.w) == (2, 4, 1, 1)


def test_random_data_of_a_task_leaves_most_sums_within_the_limits(resnet: Network):
    task = next(task for task in resnet.tasks.values() if task.packed is not None)
    made = task.workload().outputs["output"]
    assert np.mean((made > 0) & (made < 127)) > 0.3


def test_the_start_of_a_task_is_one_of_its_candidates(resnet: Network):
    for task in resnet.tasks.values():
        if task.packed is not None:
            space = task.space(GENERIC_CPU)
            starts = space.untuned()
            assert [start.sketch for start in starts] == [s.name for s in space.sketches]
            assert space.valid(space.locate(starts)).all()
