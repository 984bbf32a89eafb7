"""Einsum means what numpy computes, and a contraction of two operands is one product."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.support.networks import node
from tests.support.peer import assert_computes, typed_model

EXTENTS = {"a": 2, "b": 3, "C": 4, "d": 1, "e": 5}
BROADCAST = (2, 3)
"""What an ellipsis stands for."""


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]], list[bool]]:
    """An equation, the shapes of its operands, and which of them are constant."""
    dots = draw(st.booleans())
    terms: list[str] = []
    shapes: list[tuple[int, ...]] = []
    for _ in range(draw(st.integers(1, 3))):
        letters = draw(st.text(st.sampled_from(list(EXTENTS)), max_size=4))
        shape = tuple(EXTENTS[letter] for letter in letters)
        if dots and draw(st.booleans()):
            at = draw(st.integers(0, len(letters)))
            own = tuple(draw(st.sampled_from((extent, 1))) for extent in BROADCAST)
            own = own[draw(st.integers(0, 1)) :]
            letters = f"{letters[:at]}...{letters[at:]}"
            shape = (*shape[:at], *own, *shape[at:])
        terms.append(letters)
        shapes.append(shape)
    text = draw(st.sampled_from((",", ", "))).join(terms)
    if draw(st.booleans()):
        used = sorted({letter for term in terms for letter in term if letter != "."})
        kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))] if used else []
        at = draw(st.integers(0, len(kept)))
        ellipsis = "..." if "..." in text else ""
        text += f" -> {''.join(kept[:at])}{ellipsis}{''.join(kept[at:])}"
    return text, shapes, [draw(st.booleans()) for _ in terms]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(case=equations())
def test_any_equation_means_what_numpy_computes(case):
    text, shapes, constant = case
    rng = np.random.default_rng(3)
    arrays = {f"x{i}": rng.standard_normal(shape) for i, shape in enumerate(shapes)}
    weights = {n: a for (n, a), fixed in zip(arrays.items(), constant, strict=True) if fixed}
    inputs = {n: a for n, a in arrays.items() if n not in weights}
    made = typed_model([node("Einsum", arrays, ["y"], equation=text)], inputs, ["y"], weights)
    expected = np.asarray(np.einsum(text, *arrays.values()))
    found = run_graph(import_model(made), inputs)["y"]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


ONE_PRODUCT = [
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)], "matmul"),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)], "matmul"),
    ("bhqk,bkhd->bqhd", [(2, 3, 4, 5), (2, 5, 3, 6)], "matmul"),
    ("i,i", [(4,), (4,)], "matmul"),
    ("bsi,oi->bso", [(2, 3, 4), (5, 4)], "dense"),
    ("oi,bsi->bso", [(5, 4), (2, 3, 4)], "dense"),
    ("...ij,jk", [(2, 3, 4), (4, 5)], "dense"),
]


@pytest.mark.parametrize(("text", "shapes", "op"), ONE_PRODUCT)
def test_two_operands_make_one_product(text, shapes, op):
    """A constant operand is the weight of a dense layer."""
    rng = np.random.default_rng(0)
    arrays = {f"x{i}": rng.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}
    fixed = min(arrays, key=lambda n: arrays[n].ndim) if op == "dense" else ""
    weights = {n: arrays[n] for n in arrays if n == fixed}
    inputs = {n: a for n, a in arrays.items() if n != fixed}
    made = typed_model([node("Einsum", arrays, ["y"], equation=text)], inputs, ["y"], weights)
    ops = [n.op for n in import_model(made).nodes]
    assert ops.count(op) == 1
    assert not {"matmul", "dense", "multiply", "reduce_sum"} & {o for o in ops if o != op}
    assert_computes(made, inputs, {"y": np.einsum(text, *arrays.values())})


@pytest.mark.parametrize(
    ("text", "shapes", "said"),
    [
        ("ij,jk", [(2, 3)], "has 2 terms; expected 1"),
        ("ijk", [(2, 3)], "the term 'ijk' does not fit an input of 2 dimensions"),
        ("i", [(2, 3)], "the term 'i' does not fit an input of 2 dimensions"),
        ("i1", [(2, 3)], "the term 'i1' does not fit"),
        ("ij->ii", [(2, 3)], "labels are all different"),
        ("ij->k", [(2, 3)], "occur in the terms"),
        ("ij,jk", [(2, 3), (4, 5)], "label 'j' stands for extents 3 and 4"),
        ("ii", [(2, 3)], "label 'i' stands for extents 2 and 3"),
    ],
)
def test_an_equation_that_does_not_fit_is_said(text, shapes, said):
    arrays = {f"x{i}": np.zeros(shape, np.float32) for i, shape in enumerate(shapes)}
    made = typed_model([node("Einsum", arrays, ["y"], equation=text)], arrays, ["y"])
    with pytest.raises(ModelError, match=re.escape(said)):
        import_model(made)
