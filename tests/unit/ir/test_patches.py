"""Axes read in patches are two axes afterwards, and nothing that is computed changes."""

import numpy as np
import pytest

from retune.ir.interp import run_dag
from retune.ir.merge import merge_axes
from retune.ir.patches import split_patches
from retune.ir.te import Compute, Dag, compute
from tests.support.dags import conv2d, depthwise, joined, pool
from tests.support.oracle import inputs_for


def assert_same(before: Dag, after: Dag) -> None:
    arrays = inputs_for(before)
    flat = {t.name: arrays[t.name].reshape(t.shape) for t in after.placeholders}
    expected, found = run_dag(before, arrays), run_dag(after, flat)
    for old, new in zip(before.outputs, after.outputs, strict=True):
        np.testing.assert_array_equal(found[new.name].reshape(old.shape), expected[old.name])


def test_a_window_as_wide_as_its_stride_is_a_part_of_a_plain_sum():
    dag = conv2d(1, 6, 9, 2, 5, 3, stride=3, pad=0)
    made = merge_axes(split_patches(dag))
    shapes = {t.name: t.shape for t in made.placeholders}
    assert (shapes["x"], shapes["k"]) == ((2, 3, 3, 6), (3, 6, 5))
    product = next(s.op for s in made.stages if s.name == "conv")
    assert isinstance(product, Compute)
    assert [axis.extent for axis in product.reduce_axes] == [3, 6]
    assert_same(dag, made)


def read_twice() -> Dag:
    (product,) = conv2d(1, 4, 4, 3, 3, 2, stride=2, pad=0).outputs
    assert isinstance(product.op, Compute)
    (x,) = (t for t in Dag((product,)).placeholders if t.name == "x")
    total = compute("z", (2,), lambda i: product[0, 0, 0, i] + x[0, i, i, i], [product, x])
    return Dag((total,))


OTHERS: dict[str, Dag] = {
    "a rest": conv2d(1, 7, 7, 2, 5, 3, stride=3, pad=0),
    "overlap": conv2d(1, 6, 6, 2, 5, 3, stride=2),
    "points": conv2d(1, 6, 6, 2, 5, 1, pad=0),
    "long rows": conv2d(1, 6, 6, 16, 5, 3, stride=3, pad=0),
    "groups": conv2d(1, 6, 6, 4, 4, 3, stride=3, pad=0, groups=2),
    "depthwise": depthwise(1, 6, 6, 4, stride=3),
    "pool": pool(1, 6, 6, 4, 2, 2, average=True),
    "joined": joined(3, 4, 8),
    "read twice": read_twice(),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_windows_stay(name: str):
    assert split_patches(OTHERS[name]) is OTHERS[name]
