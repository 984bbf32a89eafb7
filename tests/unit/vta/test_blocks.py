"""A packed network computes what the network of integers does, bit for bit."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.core.dtypes import INT8
from retune.core.errors import InputError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from retune.graph.fuse import partition
from retune.graph.graph import Graph
from retune.graph.passes.pipeline import optimise
from retune.graph.quantize.recipe import quantize
from retune.graph.quantize.settings import POWER2, QuantizeSettings
from retune.ops.blocked import BLOCKED_CONV
from retune.targets.vta.blocks import PackOptions, pack
from tests.support.device_networks import Net
from tests.support.quantize_networks import samples

SETTINGS = replace(POWER2, skip_conv_layers=(0,), bias_correction=False)


def small(body: Callable[[Net, str], str], **given: object) -> Graph:
    """A stem in floats, a pool, the body over 20 channels of 8x8, and the scores; quantized."""
    n = Net("small")
    x = n("Relu", n.conv(n.input(2, 3, 16, 16), 3, 20))
    x = body(n, n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]))
    x = n("Flatten", n("GlobalAveragePool", x))
    y = n("Gemm", x, n.weight(10, 20), n.weight(10), transB=1)
    graph = import_model(n.model(y))
    return quantize(graph, samples(graph), replace(SETTINGS, **given))


def residual(n: Net, x: str) -> str:
    y = n("Relu", n.conv(x, 20, 20))
    return n("Relu", n("Add", n.conv(y, 20, 20), x))


def projected(n: Net, x: str) -> str:
    y = n.conv(n("Relu", n.conv(x, 20, 40, strides=[2, 2])), 40, 20)
    return n("Relu", n("Add", n.conv(x, 20, 20, (1, 1), strides=[2, 2]), y))


def with_pool(n: Net, x: str) -> str:
    """What an accelerator cannot do, between what it can."""
    pooled = n("MaxPool", n("Relu", n.conv(x, 20, 20)), kernel_shape=[2, 2], strides=[1, 1])
    return n("Clip", n.conv(pooled, 20, 20), n.stored(np.float32(0)), n.stored(np.float32(6)))


def upwards(n: Net, x: str) -> str:
    """Twice as large, beside the sum with an image of that size, and back."""
    y = n("Relu", n.transposed(x, 20, 36))
    y = n("Relu", n("Add", n.transposed(x, 20, 36, (3, 3), output_padding=[1, 1]), y))
    return n.transposed(
        n.conv(y, 36, 20, strides=[2, 2]), 20, 20, (3, 2), strides=[1, 1], pads=[0] * 4
    )


def with_dense(n: Net, x: str) -> str:
    """Rows between images; the sum of two dense layers is one of rows, too."""
    x = n("Flatten", n("Relu", n.conv(x, 20, 4, strides=[2, 2])))
    y = n("Relu", n("Gemm", x, n.weight(40, 64), n.weight(40), transB=1))
    z = n("Gemm", y, n.weight(40, 40), n.weight(40), transB=1)
    x = n("Relu", n("Add", z, y))
    return n("Reshape", x, n.stored(np.array([2, 20, 2, 1])))


def blocked(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes if node.op in (BLOCKED_CONV, "unpack_blocks")]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("body", "stages"),
    [
        (residual, [BLOCKED_CONV] * 2 + ["unpack_blocks"]),
        (projected, [BLOCKED_CONV] * 3 + ["unpack_blocks"]),
        (with_pool, [BLOCKED_CONV, "unpack_blocks"] * 2),
        (upwards, [BLOCKED_CONV] * 4 + ["unpack_blocks"]),
        (with_dense, [BLOCKED_CONV, "unpack_blocks", *[BLOCKED_CONV] * 2, "unpack_blocks"]),
    ],
)
def test_a_packed_network_computes_the_same(body, stages, batch, layout):
    graph = small(body, method="minmax")
    found = pack(graph, PackOptions(batch=batch, block=16))
    assert blocked(found) == stages
    data = {"x0": np.random.default_rng(1).standard_normal((2, 3, 16, 16), np.float32)}
    expected = run_graph(graph, data)
    got = run_graph(optimise(found, layout), data)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_bits_beyond_the_packed_part_are_as_they_were():
    graph = small(residual)
    found = pack(graph)
    (last,) = (n for n in found.nodes if n.op == "unpack_blocks")
    assert last.outputs[0] in {value for node in graph.nodes for value in node.outputs}
    assert found.inputs == graph.inputs
    assert found.outputs == graph.outputs


def test_an_accelerator_runs_all_its_stages_in_one_go():
    groups = partition(optimise(pack(small(projected)), "NHWC"))
    aside = [group.offloaded for group in groups]
    first, count = aside.index(True), sum(aside)
    assert aside[first : first + count] == [True] * count
    assert all(len(group.nodes) == 1 for group in groups if group.offloaded)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (PackOptions(start_name="conv3d"), "there is no conv3d"),
        (PackOptions(stop_name="softmax"), "there is no softmax"),
    ],
)
def test_a_network_without_the_part_is_refused(options, told):
    with pytest.raises(InputError, match=told):
        pack(small(residual), options)


def test_without_pools_the_whole_network_is_the_packed_part():
    n = Net("dense")
    x = n.input(2, 32)
    for wide, deep in ((72, 32), (52, 72)):
        x = n("Relu", n("Gemm", x, n.weight(wide, deep), n.weight(wide), transB=1))
    graph = import_model(n.model(n("Gemm", x, n.weight(10, 52), n.weight(10), transB=1)))
    settings = replace(SETTINGS, method="minmax", skip_conv_layers=())
    whole = quantize(graph, samples(graph), settings)
    found = pack(whole)
    assert blocked(found) == [BLOCKED_CONV] * 2 + ["unpack_blocks"]
    data = {"x0": np.random.default_rng(1).standard_normal((2, 32), np.float32)}
    for name, array in run_graph(whole, data).items():
        np.testing.assert_array_equal(run_graph(optimise(found, "NHWC"), data)[name], array)


def test_what_the_accelerator_does_not_take_stays():
    """A sum is one of plain images then, and a layer between packed ones is unpacked for."""
    sums = pack(small(residual), PackOptions(takes=lambda types, _: len(types) < 4))
    assert blocked(sums) == [BLOCKED_CONV] * 2 + ["unpack_blocks"]
    assert "add_codes" in {node.op for node in sums.nodes}
    narrow = pack(
        small(projected), PackOptions(block=16, takes=lambda types, _: types[0].shape[1] > 2)
    )
    assert blocked(narrow) == [BLOCKED_CONV, "unpack_blocks"]


def test_a_network_whose_scales_are_no_powers_of_two_is_refused():
    with pytest.raises(InputError, match="quantize it with power2"):
        pack(small(residual, **_fields(QuantizeSettings(activations=INT8, weights="tensor"))))


def _fields(settings: QuantizeSettings) -> dict[str, object]:
    return {
        name: getattr(settings, name) for name in ("scheme", "method", "activations", "weights")
    }


def test_maxima_of_codes_are_codes_of_maxima():
    n = Net("pools")
    x = n("MaxPool", n.conv(n.input(1, 3, 8, 8), 3, 8), kernel_shape=[2, 2], strides=[2, 2])
    graph = import_model(n.model(n.conv(x, 8, 8)))
    data = samples(graph)
    of_codes, of_floats = (
        quantize(graph, data, replace(SETTINGS, pools_of_codes=whole)) for whole in (True, False)
    )
    pooled = next(node for node in of_codes.nodes if node.op == "max_pool2d")
    assert of_codes.types[pooled.outputs[0]].dtype == INT8
    one = {name: array[:1] for name, array in data.items()}
    expected, found = (run_graph(g, one)[graph.outputs[0]] for g in (of_floats, of_codes))
    np.testing.assert_array_equal(found, expected)
