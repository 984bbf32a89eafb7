"""Merging axes keeps every element: the merged program reads the same flat memory."""

from collections.abc import Collection

import numpy as np
import pytest

from retune.ir.expr import Buffer
from retune.ir.interp import run_dag
from retune.ir.merge import merge_axes
from retune.ir.te import Dag, Tensor, compute, placeholder, reduce_axis
from tests.support.oracle import inputs_for


def assert_merged(dag: Dag, *shapes: tuple[int, ...], rows: Collection[Buffer] = ()) -> None:
    """The merged program has outputs of these shapes, and the same values in the same order."""
    merged = merge_axes(dag, rows=rows)
    assert tuple(tensor.shape for tensor in merged.outputs) == shapes
    arrays = inputs_for(dag)
    flat = {t.name: arrays[t.name].reshape(t.shape) for t in merged.placeholders}
    expected, found = run_dag(dag, arrays), run_dag(merged, flat)
    for before, after in zip(dag.outputs, merged.outputs, strict=True):
        np.testing.assert_array_equal(
            found[after.name].reshape(before.shape), expected[before.name]
        )


def window(begin: tuple[int, int], extents: tuple[int, int]) -> Tensor:
    x = placeholder("x", (6, 10))
    return compute("y", extents, lambda i, j: x[i + begin[0], j + begin[1]], [x])


def test_a_chain_over_whole_arrays_is_one_loop():
    x, y = placeholder("x", (2, 3, 5)), placeholder("y", (2, 3, 5))
    total = compute("s", (2, 3, 5), lambda *i: x[i] + y[i], [x, y])
    assert_merged(Dag((compute("r", (2, 3, 5), lambda *i: total[i] * 2.0, [total]),)), (30,))


@pytest.mark.parametrize("kept", ["x", "r"])
def test_rows_that_may_lie_apart_keep_their_columns(kept: str):
    """On both sides: a loop over one is a loop over the other."""
    x, y = placeholder("x", (2, 3, 5)), placeholder("y", (2, 3, 5))
    total = compute("s", (2, 3, 5), lambda *i: x[i] + y[i], [x, y])
    last = compute("r", (2, 3, 5), lambda *i: total[i] * 2.0, [total])
    rows = {tensor.buffer for tensor in (x, last) if tensor.name == kept}
    assert_merged(Dag((last,)), (6, 5), rows=rows)


def test_whole_rows_from_the_start_are_one_loop():
    assert_merged(Dag((window((0, 0), (4, 10)),)), (40,))


@pytest.mark.parametrize(
    ("begin", "extents"), [((0, 0), (6, 5)), ((0, 5), (6, 5)), ((2, 0), (3, 10)), ((0, 0), (1, 4))]
)
def test_parts_of_rows_stay_apart(begin: tuple[int, int], extents: tuple[int, int]):
    assert_merged(Dag((window(begin, extents),)), extents)


def test_a_reduction_over_parts_of_rows_stays_apart():
    x = placeholder("x", (4, 6, 10))
    j, k = reduce_axis("j", 6), reduce_axis("k", 5)
    total = compute("s", (4,), lambda i: x[i, j.var, k.var], [x], reduce=[j, k])
    assert_merged(Dag((total,)), (4,))
    (merged,) = merge_axes(Dag((total,))).outputs
    assert [a.extent for a in merged.op.reduce_axes] == [6, 5]  # type: ignore[union-attr]


def test_a_reduction_over_whole_images_is_one_loop():
    x = placeholder("x", (4, 6, 10))
    j, k = reduce_axis("j", 6), reduce_axis("k", 10)
    total = compute("s", (4,), lambda i: x[i, j.var, k.var], [x], reduce=[j, k])
    assert_merged(Dag((total,)), (4,))
    (merged,) = merge_axes(Dag((total,))).outputs
    assert [a.extent for a in merged.op.reduce_axes] == [60]  # type: ignore[union-attr]
