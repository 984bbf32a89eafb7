"""Kernels with sizes, lowered once, are right at all sizes that meet their conditions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import CPU, GPU, Target
from retune.core.dims import Size, assuming, dim_of
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.opencl.execute import execute
from retune.device.opencl.runtime import Device, open_device
from retune.ir.expr import maximum
from retune.ir.interp import run_dag
from retune.ir.merge import merge_axes
from retune.ir.stmt import Program, from_dag
from retune.ir.storage import row_major
from retune.ir.te import Dag, compute, placeholder
from retune.ir.views import view
from retune.schedule.space import Space
from retune.targets.cpu.space import cpu_space
from retune.targets.cpu.winograd import cpu_winograd_families
from retune.targets.gpu.space import gpu_space
from tests.support.dags import (
    byte_product,
    conv2d,
    dense,
    depthwise,
    pool,
    reduction,
    softmax,
    standardised,
)
from tests.support.dags import elementwise as elements
from tests.support.oracle import inputs_for
from tests.support.sizes import (
    Rules,
    assert_random_right,
    assert_right_at,
    context,
    cut,
    enlarged,
    heads,
    joined_tokens,
    lowered,
    mean_of_map,
    scores,
    tokens,
)

pytestmark = pytest.mark.device

BATCH = Size("batch", 1, 32)
FEW, SEQUENCE = dim_of(Size("batch", 1, 8)), dim_of(Size("seq", 1, 256))
LONG = dim_of(Size("seq", 16, 256))
H, W = dim_of(Size("h", 4, 64)), dim_of(Size("w", 4, 64))
BATCHES: dict[str, Callable[[int], Dag]] = {
    "dense": lambda n: dense(n, 67, 131),
    "convolution": lambda n: conv2d(n, 9, 8, 3, 17, 3, stride=2, residual=True),
    "pixelwise convolution": lambda n: conv2d(n, 5, 7, 16, 32, 1, pad=0),
    "depthwise": lambda n: depthwise(n, 7, 11, 67, stride=2),
    "largest of a window": lambda n: pool(n, 7, 11, 17, 3, 2, average=False),
    "mean of a window": lambda n: pool(n, 6, 6, 3, 2, 2, average=True),
    "softmax": lambda n: softmax(n, 96),
    "standardised rows": lambda n: standardised(n, 64),
    "largest of a row": lambda n: reduction(n, 160, "max", first=False),
    "bytes": lambda n: byte_product(n * 16, 64, 32),
}


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


TOKENS: dict[str, Callable[[], Dag]] = {
    "dense": lambda: tokens(FEW, SEQUENCE, 64, 96),
    "merged dense": lambda: merge_axes(tokens(FEW, SEQUENCE, 64, 96)),
    "context": lambda: context(FEW * 4, SEQUENCE, 32),
    "standardised rows": lambda: standardised(FEW * SEQUENCE, 64),
    "heads": lambda: heads(FEW, SEQUENCE, 4, 32),
    "merged elements": lambda: merge_axes(elements(FEW * SEQUENCE, 48)),
    "joined": lambda: joined_tokens(FEW, SEQUENCE, 48),
    "cut": lambda: cut(FEW, SEQUENCE + 8, 48),
}
MAPS: dict[str, Callable[[], Dag]] = {
    "convolution": lambda: conv2d(FEW, H, W, 3, 16, 3),
    "strided convolution": lambda: conv2d(FEW, H, W, 16, 16, 3, stride=2),
    "merged pixelwise convolution": lambda: merge_axes(conv2d(FEW, H, W, 16, 32, 1, pad=0)),
    "depthwise": lambda: depthwise(FEW, H, W, 32, stride=2),
    "largest of a window": lambda: pool(FEW, H, W, 16, 3, 2, average=False),
    "mean of a map": lambda: mean_of_map(FEW, H, W, 32),
    "enlarged": lambda: enlarged(FEW, H, W, 8),
}


@pytest.mark.parametrize("name", BATCHES)
def test_batches(device: Device, name: str) -> None:
    made = lowered(lambda: BATCHES[name](dim_of(BATCH)), cpu_space, GENERIC_CPU, {"batch": 8})
    assert made.noted == []
    assert_right_at(device, made.sample(2), [{"batch": n} for n in (1, 2, 5, 8, 32)])


TILES: dict[str, tuple[Rules, DeviceSpec, Target, str]] = {
    "tile registers": (cpu_space, replace(GENERIC_CPU, instructions=("tile8.amx",)), CPU, "matrix"),
    "warps": (gpu_space, replace(GENERIC_GPU, instructions=("warp8.mma",)), GPU, "warp"),
}


@pytest.mark.parametrize("name", TILES)
def test_tiles_of_instructions(device: Device, name: str) -> None:
    """By plain arithmetic here: a tile of sixteen rows fits any batch of as many."""
    rules, spec, target, mark = TILES[name]
    make = lambda: byte_product(dim_of(BATCH) * 16, 128, 64)  # noqa: E731
    made = lowered(make, rules, spec, {"batch": 4}, target=target)
    assert made.noted == []
    found = {n: source for n, source in made.sources.items() if mark in n}
    assert found
    made = replace(made, sources=dict([next(iter(found.items()))]))
    assert_right_at(device, made, [{"batch": n} for n in (1, 3, 8)])


def test_winograd(device: Device) -> None:
    def rules(program: Program, spec: DeviceSpec) -> Space:
        return Space(cpu_winograd_families(program, spec))

    make, at = lambda: conv2d(FEW, 7, W, 16, 16), {"batch": 2, "w": 16}
    made = lowered(make, rules, GENERIC_CPU, at)
    assert made.noted == []
    assert_right_at(device, made.sample(1), [{"batch": b, "w": w} for b, w in [(1, 4), (3, 17)]])


@pytest.mark.parametrize("name", TOKENS)
def test_tokens(device: Device, name: str) -> None:
    made = lowered(TOKENS[name], cpu_space, GENERIC_CPU, {"batch": 1, "seq": 128})
    assert made.noted == []
    every = [(1, 1), (2, 3), (1, 17), (3, 64), (8, 255)]
    assert_right_at(device, made.sample(2), [{"batch": b, "seq": s} for b, s in every])


@pytest.mark.parametrize("make", [lambda: scores(4, SEQUENCE, 3), lambda: softmax(4, SEQUENCE)])
def test_rows_of_tokens(device: Device, make: Callable[[], Dag]) -> None:
    """A tile of vectors along a row fills it: kernels are for rows of that length or longer."""
    made = lowered(make, cpu_space, GENERIC_CPU, {"seq": 32})
    assert set(made.noted) <= {"seq >= 16", "seq >= 32"}
    assert_right_at(device, made.shortest(), [{"seq": s} for s in (32, 33, 47, 64, 255)])


@pytest.mark.parametrize("name", MAPS)
def test_maps(device: Device, name: str) -> None:
    made = lowered(MAPS[name], cpu_space, GENERIC_CPU, {"batch": 1, "h": 16, "w": 16})
    assert made.noted == []
    every = [(1, 4, 4), (2, 5, 9), (1, 17, 33), (3, 16, 16), (2, 64, 63)]
    assert_right_at(device, made.sample(2), [{"batch": b, "h": h, "w": w} for b, h, w in every])


def test_blocks_of_channels_and_columns_of_a_wider_buffer(device: Device) -> None:
    """Where elements lie may depend on sizes."""
    blocks = row_major((FEW, 32, H, W)).tiled(1, 16)
    columns = row_major((FEW, H, W, 32)).columns(16, 64)
    x = placeholder("x", (FEW, 32, H, W))
    z = compute("z", (FEW, H, W, 32), lambda n, i, j, c: maximum(x[n, c, i, j], 0.0), [x])
    with assuming({"batch": 2, "h": 8, "w": 9}) as assumed:
        program = from_dag(Dag((z,)))
        (sketch,) = cpu_space(program, GENERIC_CPU).sketches
        (row,) = sketch.all_rows()
        source = lower(view(sketch.instantiate(row), {"x": blocks, "z": columns}), CPU)
    assert assumed.conditions == ()
    for sizes in ({"batch": 1, "h": 4, "w": 5}, {"batch": 3, "h": 17, "w": 16}):
        data = np.random.default_rng(0).uniform(-1, 1, blocks.at(sizes).shape).astype(np.float32)
        given = {"x": blocks.at(sizes).pack(data)}
        given |= {name: np.array([value]) for name, value in sizes.items()}
        found = columns.at(sizes).unpack(execute(source, given, device)["z"])
        np.testing.assert_array_equal(found, np.maximum(data, 0).transpose(0, 2, 3, 1))


def test_execute_takes_sizes_as_arrays() -> None:
    made = lowered(lambda: dense(dim_of(BATCH), 67, 131), cpu_space, GENERIC_CPU, {"batch": 8})
    source = next(iter(made.sources.values()))
    inputs = inputs_for(dense(3, 67, 131))
    found = execute(source, {**inputs, "batch": np.array([3])}, "pocl")
    want = run_dag(made.dag, inputs, {"batch": 3})["z"]
    np.testing.assert_allclose(found["z"].reshape(3, 131), want, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="batch"):
        execute(source, inputs, "pocl")


PROFILES: dict[str, tuple[Rules, DeviceSpec]] = {
    "cpu": (cpu_space, GENERIC_CPU),
    "gpu": (gpu_space, GENERIC_GPU),
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("number", range(3))
def test_random_expressions(device: Device, seed: int, profile: str, number: int) -> None:
    assert_random_right(device, *PROFILES[profile], seed + number)


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILES)
def test_many_random_expressions(device: Device, profile: str) -> None:
    for seed in range(250):
        assert_random_right(device, *PROFILES[profile], seed)


SHAPES = [(1, 1, 4, 4), (2, 3, 5, 9), (3, 17, 16, 16), (1, 64, 17, 33), (8, 255, 6, 63)]
OF_GPUS: dict[str, tuple[Callable[[], Dag], dict[str, int]]] = {
    "dense": (lambda: dense(dim_of(BATCH), 64, 128), {"batch": 8}),
    "tokens": (lambda: tokens(FEW, SEQUENCE, 64, 96), {"batch": 1, "seq": 128}),
    "context": (lambda: context(FEW * 4, SEQUENCE, 32), {"batch": 1, "seq": 128}),
    "softmax": (lambda: softmax(FEW * SEQUENCE, SEQUENCE), {"batch": 1, "seq": 128}),
    "convolution": (lambda: conv2d(FEW, H, W, 16, 16, 3), {"batch": 1, "h": 16, "w": 16}),
    "depthwise": (lambda: depthwise(FEW, H, W, 32), {"batch": 1, "h": 16, "w": 16}),
    "mean of a map": (lambda: mean_of_map(FEW, H, W, 32), {"batch": 1, "h": 16, "w": 16}),
}


@pytest.mark.parametrize("name", OF_GPUS)
def test_gpu_rules(device: Device, name: str) -> None:
    make, at = OF_GPUS[name]
    made = lowered(make, gpu_space, GENERIC_GPU, at)
    assert made.noted == []
    every = [{"batch": b, "seq": s, "h": h, "w": w} for b, s, h, w in SHAPES]
    assert_right_at(device, made.sample(2), every)
