"""Products of warps on PoCL, by way of local memory: each item reads what others look for."""

from dataclasses import replace

import pytest

from retune.core.target import GENERIC_GPU
from retune.device.opencl.probe_child import holds, is_right
from retune.device.opencl.runtime import Device, open_device
from retune.intrinsics import Intrinsic, Signature
from retune.intrinsics.warp8 import WARP8
from retune.intrinsics.warp16 import WARP16, WARP16C, WARP16S
from retune.intrinsics.warp32 import WARP32, WARP32C
from retune.ir.stmt import from_dag
from retune.targets.gpu.space import gpu_space
from tests.support.gpu_warps import SHAPES, random_product
from tests.support.oracle import assert_device_agrees, assert_sketches_agree
from tests.support.properties import seeded

pytestmark = pytest.mark.device

NVIDIA = replace(
    GENERIC_GPU,
    instructions=(
        "warp8.mma",
        "warp16.mma",
        "warp16s.mma",
        "warp16c.mma",
        "warp32.mma",
        "warp32c.mma",
    ),
)
PROBED = [
    (entry, signature)
    for entry in (WARP8, WARP16, WARP16S, WARP16C, WARP32, WARP32C)
    for signature in entry.signatures(entry.implementations[0])
]


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(
    "name",
    [
        "window",
        "strided window",
        "half window",
        "half grouped window",
        "half narrow groups",
        "half shallow window",
        "scores",
        "values",
    ],
)
def test_sketches(device: Device, name: str):
    space = gpu_space(from_dag(SHAPES[name]), NVIDIA)
    assert_sketches_agree(device, SHAPES[name], (s for s in space.sketches if ".warp" in s.name))


def test_local_memory_holds_what_a_kernel_declares(device: Device):
    assert holds(device, 96 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_random_products(device: Device, seed: int):
    assert_device_agrees(device, *random_product(seeded(seed), NVIDIA))


@pytest.mark.parametrize(
    ("entry", "signature"), PROBED, ids=[f"{entry.name}-{signature}" for entry, signature in PROBED]
)
def test_what_a_probe_expects_is_what_a_warp_makes(
    device: Device, entry: Intrinsic, signature: Signature
):
    assert is_right(device, entry, entry.implementations[-1], signature)
