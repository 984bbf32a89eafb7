"""Floats of packed bits: what compilers for NVIDIA's GPUs are given instead of a conversion."""

import re

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.opencl.prelude import FLOAT_OF_BITS, named_lines
from retune.codegen.target import GPU
from retune.core.target import GENERIC_GPU
from retune.ir.stmt import from_dag
from retune.targets.cost.estimate import default_candidate
from retune.targets.gpu.space import gpu_space
from tests.support.dags import packed_product


def by_mantissa(words: np.ndarray, shift: int, mask: int) -> np.ndarray:
    """What the macro says, in numpy: its text, with C's operators as they are."""
    lines = named_lines([f"{FLOAT_OF_BITS}("])
    (back,) = (line for line in lines if "BITS_BACK(shift, mask) " in line)
    limit, by = (int(n, 0) for n in re.findall(r"> (\w+)u \? (\d+)", back)[0])
    less = by if (mask << shift) > limit else 0
    place = shift - less
    bits = ((words >> less) & (mask << place)) | 0x4B000000
    scaled = bits.astype(np.uint32).view(np.float32).astype(np.float64) * 2.0**-place
    return (scaled - 8388608.0 / 2**place).astype(np.float32)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_every_value_of_every_place_is_exact(bits: int):
    words = np.random.default_rng(bits).integers(-(2**31), 2**31, 4000, np.int64)
    for shift in range(0, 32, bits):
        mask = 2**bits - 1
        found = by_mantissa(words.astype(np.int32), shift, mask)
        np.testing.assert_array_equal(found, (words >> shift) & mask)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_products_with_packed_weights_take_them(bits: int):
    space = gpu_space(from_dag(packed_product(1, 64, 4, 64, bits)), GENERIC_GPU)
    text = lower(space.instantiate(default_candidate(space, GENERIC_GPU)), GPU).text
    code = text[text.index("__kernel") :]
    places = re.findall(FLOAT_OF_BITS + r"\(float\d?, \w+, (\d+), (\d+)\)", code)
    assert sorted({int(shift) for shift, _ in places}) == [*range(0, 32, bits)]
    assert {int(mask) for _, mask in places} == {2**bits - 1}
    assert not re.findall(r"convert_float\d?\(\(", code), "what is left is zero points alone"
