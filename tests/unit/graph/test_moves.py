"""Products of matrices take in what only moves their data: attention is three groups."""

import re
from itertools import pairwise

import numpy as np
import pytest

from retune.codegen.lower import lower
from retune.codegen.target import GPU
from retune.core.dtypes import FLOAT16, FLOAT32, TensorType
from retune.core.target import GENERIC_CPU, GENERIC_GPU
from retune.graph.evaluate import random_inputs, run_graph
from retune.graph.fuse import ALIAS, partition
from retune.graph.graph import Graph, GraphBuilder
from retune.graph.passes.pipeline import optimise
from retune.ops import AttrValue
from retune.search.extract import extract
from retune.search.task import Task
from retune.targets.cpu.space import cpu_space
from retune.targets.gpu.space import gpu_space
from tests.support.fuse import run_groups
from tests.support.oracle import assert_items_agree

RNG = np.random.default_rng(0)
TOKENS, HEADS, DEPTH = 13, 3, 4
WIDTH = HEADS * DEPTH
BY_HEADS = (1, TOKENS, 3, HEADS, DEPTH)


def attention(scale: str = "multiply") -> Graph:
    """As exporters write it: heads in front, cut by index, queries scaled, keys transposed."""
    build = GraphBuilder("attention")
    build.input("x", TensorType((TOKENS, 3 * WIDTH)))
    build.constant("scale", np.asarray(0.5, np.float32))
    packed = build.add("reshape", [build.add("relu", ["x"])], {"shape": BY_HEADS})
    turned = build.add("transpose", [packed], {"perm": (2, 0, 3, 1, 4)})
    parts: list[str] = []
    for number in range(3):
        begins, extents = (number, 0, 0, 0, 0), (1, 1, HEADS, TOKENS, DEPTH)
        cut: dict[str, AttrValue] = {"begins": begins, "extents": extents, "steps": (1,) * 5}
        part = build.add("slice", [turned], cut)
        parts.append(build.add("reshape", [part], {"shape": (1, HEADS, TOKENS, DEPTH)}))
    queries, keys, values = parts
    scaled = build.add(scale, [queries, "scale"])
    scores = build.add("matmul", [scaled, build.add("transpose", [keys], {"perm": (0, 1, 3, 2)})])
    seen = build.add("matmul", [build.add("softmax", [scores], {"axis": 3}), values])
    seen = build.add("transpose", [seen], {"perm": (0, 2, 1, 3)})
    return build.finish([build.add("reshape", [seen], {"shape": (TOKENS, WIDTH)}, outputs=["y"])])


def packed_attention() -> Graph:
    """As torch's nn.MultiheadAttention writes it: three parts in front, then heads."""
    build = GraphBuilder("packed")
    build.input("x", TensorType((TOKENS, 3 * WIDTH)))
    x = build.add("reshape", [build.add("relu", ["x"])], {"shape": (1, TOKENS, 1, 3, WIDTH)})
    x = build.add("transpose", [x], {"perm": (3, 1, 2, 0, 4)})
    x = build.add("reshape", [x], {"shape": (3, TOKENS, 1, WIDTH)})
    parts: list[str] = []
    for number in range(3):
        begins, extents = (number, 0, 0, 0), (1, TOKENS, 1, WIDTH)
        cut: dict[str, AttrValue] = {"begins": begins, "extents": extents, "steps": (1,) * 4}
        part = build.add(
            "reshape", [build.add("slice", [x], cut)], {"shape": (TOKENS, HEADS, DEPTH)}
        )
        parts.append(build.add("transpose", [part], {"perm": (1, 0, 2)}))
    queries, keys, values = parts
    keys = build.add("transpose", [keys], {"perm": (0, 2, 1)})
    scores = build.add("softmax", [build.add("matmul", [queries, keys])], {"axis": 2})
    seen = build.add("transpose", [build.add("matmul", [scores, values])], {"perm": (1, 0, 2)})
    return build.finish([build.add("reshape", [seen], {"shape": (TOKENS, WIDTH)}, outputs=["y"])])


def products(graph: Graph) -> list[Task]:
    return [task for task in extract(graph).tasks.values() if task.op == "matmul"]


@pytest.mark.parametrize("scale", ["multiply", "divide"])
def test_attention_is_two_products_and_a_softmax(scale: str):
    graph = optimise(attention(scale))
    groups = [group for group in partition(graph) if group.kind != ALIAS]
    assert [group.kind for group in groups] == ["elementwise", "matmul", "softmax", "matmul"]
    assert [node.op for node in groups[1].epilogue] == ["multiply"]
    assert [node.op for node in groups[3].epilogue] == ["transpose"]
    assert all("matmul" in group.name for group in groups if group.kind == "matmul")


@pytest.mark.parametrize("scale", ["multiply", "divide"])
def test_the_groups_compute_attention(scale: str):
    before = attention(scale)
    after = optimise(before)
    inputs = random_inputs(before, 1)
    expected = run_graph(before, inputs)["y"]
    np.testing.assert_allclose(run_groups(after, inputs)["y"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("number", [0, 1])
def test_a_product_that_moves_its_data_is_one_kernel_on_gpus(number: int):
    task = products(optimise(attention()))[number]
    found = {sketch.name: sketch for sketch in gpu_space(task.program, GENERIC_GPU).sketches}
    for sketch in found.values():
        for row in sketch.sample(2, np.random.default_rng(0)):
            assert_items_agree(task.dag, sketch.instantiate(row))
    sketch = found[("gpu.v1.local4", "gpu.v4.local4.short")[number]]
    (row,) = sketch.sample(1, np.random.default_rng(0))
    (kernel,) = lower(sketch.instantiate(row), GPU).kernels
    gathers = re.findall(r"\(float4\)\(\w+\[\w+\], ", kernel.text)
    assert not gathers  # neighbouring items read neighbours


@pytest.mark.parametrize(("number", "nests"), [(0, 2), (1, 1)])
def test_on_cpus_only_what_scatters_columns_is_copied(number: int, nests: int):
    task = products(optimise(attention()))[number]
    for sketch in cpu_space(task.program, GENERIC_CPU).sketches:
        (row,) = sketch.sample(1, np.random.default_rng(0))
        program = sketch.instantiate(row)
        assert len(program.body.stmts) == nests
        assert_items_agree(task.dag, program)


def test_parts_in_front_of_heads_are_read_in_place_too():
    before = packed_attention()
    after = optimise(before)
    inputs = random_inputs(before, 1)
    expected = run_graph(before, inputs)["y"]
    np.testing.assert_allclose(run_groups(after, inputs)["y"], expected, rtol=1e-5, atol=1e-6)
    kinds = [group.kind for group in partition(after) if group.kind != ALIAS]
    assert kinds == ["elementwise", "matmul", "softmax", "matmul"]


def moved(*ops: tuple[str, dict[str, AttrValue]], also: int | None = None) -> list[list[str]]:
    """The groups of a product of a matrix with what these movements make of another one.

    The value after `also` of them is an output as well.
    """
    build = GraphBuilder("net")
    values = [build.input("x", TensorType((1, 6, 8)))]
    for op, attrs in ops:
        values.append(build.add(op, [values[-1]], attrs))
    build.input("y", TensorType((1, 3, 6)))
    out = build.add("matmul", ["y", values[-1]])
    graph = build.finish([out, *([] if also is None else [values[also]])])
    assert len(set(graph.outputs)) == len(graph.outputs)
    return [[node.op for node in group.nodes] for group in partition(graph)]


TURN: tuple[str, dict[str, AttrValue]] = ("transpose", {"perm": (0, 2, 1)})
COLUMNS: tuple[str, dict[str, AttrValue]] = (
    "slice", {"begins": (0, 0, 2), "extents": (1, 6, 5), "steps": (1, 1, 1)},
)  # fmt: skip
ROWS: tuple[str, dict[str, AttrValue]] = (
    "slice", {"begins": (0, 1, 0), "extents": (1, 6, 6), "steps": (1, 1, 1)},
)  # fmt: skip


def test_a_product_over_columns_is_stored_and_used_as_they_lie():
    """As token mixers do it: rows and columns change places, and back behind the product."""
    build = GraphBuilder("net")
    x = build.input("x", TensorType((1, 9, 8)))
    build.constant("w", np.random.default_rng(0).normal(size=(7, 9)).astype(np.float32))
    build.constant("b", np.arange(7, dtype=np.float32))
    turned = build.add("transpose", [build.add("relu", [x])], {"perm": (0, 2, 1)})
    mixed = build.add("dense", [build.add("reshape", [turned], {"shape": (8, 9)}), "w"])
    mixed = build.add("reshape", [build.add("add", [mixed, "b"])], {"shape": (1, 8, 7)})
    mixed = build.add("transpose", [mixed], {"perm": (0, 2, 1)})
    build.input("y", TensorType((1, 7, 8)))
    graph = optimise(build.finish([build.add("multiply", [mixed, "y"])]))
    _, group = (group for group in partition(graph) if group.kind != ALIAS)
    assert [node.op for node in group.epilogue] == ["add", "transpose", "multiply"]
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_allclose(run_groups(graph, inputs)[name], expected, rtol=1e-6)
    (task,) = (task for task in extract(graph).tasks.values() if task.op == "dense")
    for spec, space in ((GENERIC_GPU, gpu_space), (GENERIC_CPU, cpu_space)):
        for sketch in space(task.program, spec).sketches:
            (row,) = sketch.sample(1, np.random.default_rng(0))
            assert_items_agree(task.dag, sketch.instantiate(row))
            assert len(sketch.program.body.stmts) == (2 if "sliced" in sketch.name else 1)


def test_what_others_need_and_what_is_a_view_stays_outside():
    assert moved(TURN, ROWS) == [["transpose", "slice", "matmul"]]
    assert moved(TURN, ROWS, also=1) == [["transpose"], ["slice", "matmul"]]
    assert moved(COLUMNS) == [["slice"], ["matmul"]]
    folded: dict[str, AttrValue] = {"shape": (1, 12, 4)}
    back: dict[str, AttrValue] = {"shape": (1, 6, 8)}
    assert moved(TURN, ("reshape", folded), ("reshape", back))[0] == ["transpose"]


def test_movements_that_follow_each_other_are_one():
    build = GraphBuilder("net")
    x = build.input("x", TensorType((1, 6, 8)))
    rows = build.add("slice", [x], {"begins": (0, 1, 0), "extents": (1, 5, 8), "steps": (1,) * 3})
    wide = build.add("transpose", [build.add("slice", [x], COLUMNS[1])], TURN[1])
    turned = build.add("slice", [build.add("transpose", [x], TURN[1])], ROWS[1])
    long = build.add("transpose", [turned], TURN[1])
    graph = build.finish([build.add("relu", [v]) for v in (rows, wide, long)])
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(run_groups(graph, inputs)[name], expected)
    groups = [[node.op for node in group.nodes] for group in partition(graph)]
    assert groups.count(["transpose", "slice", "transpose"]) == 1
    assert groups.count(["slice"]) == 2  # rows, and columns: these are a view
    assert {group.kind for group in partition(graph)} == {"slice", "transpose", "elementwise"}


def test_an_image_cut_into_patches_by_several_transposes_is_copied_once():
    """As MobileViT does it: [1, 4, 6, 3] to [1, 4 places, 6 patches, 3]."""
    build = GraphBuilder("net")
    x = build.add("transpose", [build.input("x", TensorType((1, 4, 6, 3)))], {"perm": (0, 3, 1, 2)})
    x = build.add("reshape", [x], {"shape": (6, 2, 3, 2)})
    x = build.add("transpose", [x], {"perm": (0, 2, 1, 3)})
    x = build.add("reshape", [x], {"shape": (1, 3, 6, 4)})
    graph = build.finish([build.add("transpose", [x], {"perm": (0, 3, 2, 1)})])
    (group,) = partition(graph)
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(run_groups(graph, inputs)[name], expected)
    (task,) = extract(graph).tasks.values()
    for spec, space in ((GENERIC_GPU, gpu_space), (GENERIC_CPU, cpu_space)):
        for sketch in space(task.program, spec).sketches:
            assert_items_agree(task.dag, sketch.instantiate(sketch.sample(1, RNG)[0]))
            assert len(sketch.program.body.stmts) == 1
    assert group.kind == "transpose"


def test_numbers_do_not_move_behind_products_that_others_share():
    build = GraphBuilder("net")
    build.input("x", TensorType((4, 5)))
    build.input("y", TensorType((5, 6)))
    build.constant("scale", np.asarray([2.0], np.float32))
    scaled = build.add("multiply", ["x", "scale"])
    graph = build.finish([build.add("matmul", [scaled, "y"]), build.add("relu", [scaled])])
    order = [node.op for node in optimise(graph).nodes]
    assert ("multiply", "matmul") in pairwise(order)


@pytest.mark.parametrize(("step", "begin"), [(-1, 5), (1, 0)])
def test_elements_that_a_slice_turns_around_stay_turned(step: int, begin: int):
    """A slice of all elements, backwards, before a reshape that joins them with others."""
    build = GraphBuilder("net")
    cut = {"begins": (0, begin, 0), "extents": (2, 6, 4), "steps": (1, step, 1)}
    turned = build.add("slice", [build.input("x", TensorType((2, 6, 4)))], cut)
    graph = build.finish([build.add("reshape", [turned], {"shape": (2, 3, 8)})])
    inputs = random_inputs(graph, 1)
    (found,) = run_graph(optimise(graph), inputs).values()
    np.testing.assert_array_equal(found, inputs["x"][:, ::step].reshape(2, 3, 8))


def test_rotations_and_copies_read_what_they_rotate_where_it_lies():
    """As with queries, keys and values of one product; a copied rotation is a part of the copy."""
    build = GraphBuilder("net")
    x = build.add("relu", [build.input("x", TensorType((TOKENS, 3 * WIDTH)))])
    tables = [build.input(name, TensorType((1, 1, TOKENS, 1, DEPTH // 2))) for name in "cs"]
    made: list[str] = []
    for begin in (0, WIDTH, 2 * WIDTH):
        cut = {"begins": (0, begin), "extents": (TOKENS, WIDTH), "steps": (1, 1)}
        heads = {"shape": (1, TOKENS, HEADS, DEPTH)}
        part = build.add("reshape", [build.add("slice", [x], cut)], heads)
        made.append(build.add("transpose", [part], {"perm": (0, 2, 1, 3)}))
    pairs = {"shape": (1, HEADS, TOKENS, 2, DEPTH // 2)}
    rotated = [
        build.add("rotate", [build.add("reshape", [part], pairs), *tables], {"axis": 3})
        for part in made[:2]
    ]
    whole = build.add("reshape", rotated[1:], {"shape": (1, HEADS, TOKENS, DEPTH)})
    copies = [build.add("identity", [value]) for value in (whole, made[2])]
    graph = build.finish([rotated[0], *copies])
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_allclose(run_groups(graph, inputs)[name], expected, rtol=1e-6)
    groups = [group for group in partition(graph) if group.kind != ALIAS]
    assert [group.nodes[-1].op for group in groups] == ["relu", "rotate", "identity", "identity"]
    for task in extract(graph).tasks.values():
        for spec, space in ((GENERIC_GPU, gpu_space), (GENERIC_CPU, cpu_space)):
            for sketch in space(task.program, spec).sketches:
                assert_items_agree(task.dag, sketch.instantiate(sketch.sample(1, RNG)[0]))
                assert len(sketch.program.body.stmts) == 1


def test_what_is_new_of_a_state_is_cut_where_it_is_converted():
    """As keys and values in float16, which a state holds in float32."""
    build = GraphBuilder("net")
    x = build.add("relu", [build.input("x", TensorType((TOKENS, 3 * WIDTH), FLOAT16))])
    cut = {"begins": (0, WIDTH), "extents": (TOKENS, WIDTH), "steps": (1, 1)}
    part = build.add("reshape", [build.add("slice", [x], cut)], {"shape": (TOKENS, HEADS, DEPTH)})
    new = build.add("cast", [part], {"to": FLOAT32})
    held = build.input("held", TensorType((5, HEADS, DEPTH)))
    graph = build.finish([build.add("append", [held, new])])
    groups = [[node.op for node in group.nodes] for group in partition(graph)]
    assert groups == [["relu"], ["slice", "reshape", "cast"], ["append"]]
    inputs = random_inputs(graph)
    for name, expected in run_graph(graph, inputs).items():
        np.testing.assert_array_equal(run_groups(graph, inputs)[name], expected)
