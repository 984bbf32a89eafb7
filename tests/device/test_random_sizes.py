"""Random networks with open dimensions, compiled once, agree with onnxruntime at many sizes.

A failure names the seed: `random_sized(seed, steps)` with fewer steps is the beginning of the same
network. For many networks at once: `python -m benchmarks.random_sizes`.
"""

from pathlib import Path

import numpy as np
import pytest

from retune.bundle.export.program import export_c
from retune.bundle.format import read_bundle, write_bundle
from retune.core.dims import Size, dim_of
from tests.device import c_programs
from tests.support.random_sizes import Sized, random_counted, random_sized
from tests.support.random_ways import BARE_GPU, CPU, GPU, SHORT
from tests.support.sized_networks import model_of
from tests.support.sized_ways import WAYS, Compiled, way_of

pytestmark = pytest.mark.device

AT = 5
"""Sizes of each network."""
SIZES = (Size("n", 2, 4), Size("m", 1, 3))


@pytest.mark.parametrize("seed", [2, 9])
def test_a_random_network_at_several_sizes(seed: int):
    sized = random_sized(seed, 2)
    Compiled(sized, *WAYS[seed % len(WAYS)]).assert_right(sized.some(seed, AT), seed)


def test_a_random_network_that_counts_at_several_sizes():
    sized = random_counted(11, 0)
    made = Compiled(sized, *WAYS[0], counts=True)
    made.assert_right(sized.some(11, 3), 11)
    assert any(each.counted for each in made.plan.sizes) and len(made.plan.variants) > 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_many_random_networks_that_count_at_several_sizes(seed: int):
    sized = random_counted(seed)
    made = Compiled(sized, *WAYS[seed % len(WAYS)], counts=True)
    made.assert_right(sized.some(seed, AT), seed)


@pytest.mark.slow
@pytest.mark.parametrize("device", [CPU, SHORT, GPU, BARE_GPU])
@pytest.mark.parametrize("seed", range(500))
def test_many_random_networks_at_several_sizes(seed: int, device: str):
    sized = random_sized(seed)
    made = Compiled(sized, *way_of(device, seed), quick=seed % 5 != 0)
    made.assert_right(sized.some(seed, AT), seed)


def in_c(sized: Sized, folder: Path, seed: int) -> None:
    made = Compiled(sized, *WAYS[seed % len(WAYS)])
    c_programs.build(export_c(made.plan, folder / "c"))
    for values in sized.some(seed, AT):
        feeds = made.module.random_inputs(seed, values)
        options = [w for name, n in values.items() for w in ("--size", f"{name}={n}")]
        found = c_programs.outputs_of(folder / "c", feeds, [*made.plan.outputs], *options)
        for name, array in made.module.run(feeds).items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"seed {seed}: {name}")


@pytest.mark.process
def test_a_random_network_as_a_program_in_c(tmp_path: Path):
    in_c(random_sized(5, 2), tmp_path, 5)


@pytest.mark.process
def test_a_program_in_c_whose_ranges_do_not_depend_on_sizes(tmp_path: Path):
    few = (Size("t", 1, 4),)
    text = "(float[t, 3] x) => (float[1, 1] y) { y = ReduceSum(x) }"
    in_c(Sized(model_of(text), few), tmp_path, 0)


@pytest.mark.process
def test_a_program_in_c_has_the_values_that_sizes_state(tmp_path: Path):
    """It fills in what is not given, and refuses others."""
    text = """(float[4, 3] x, int64[1] s, int32 u) => (float[k, 3] y, float z) {
      e = Constant <value_ints = [9]> () y = Slice(x, s, e) z = Cast <to = 1> (u) }"""
    count = Size("k", 1, 4)
    values = {"s": (-dim_of(count),), "u": (7,)}
    in_c(Sized(model_of(text), (count,), values), tmp_path, 0)
    np.save(tmp_path / "c" / "s.npy", np.array([-3]))
    done = c_programs.run(tmp_path / "c", "--input", "s=s.npy", "--size", "k=2")
    assert "input s: element 0: expected -2, by the sizes that are given" in done.stderr
    assert c_programs.run(tmp_path / "c", "--size", "k=2").returncode == 0


def test_what_one_program_alone_can_have_is_read_back(tmp_path: Path):
    """Beyond the end of an axis a slice is all of it: no more columns than there are."""
    text = """(float[2, 6] x, int64[1] k) => (float[2, p] y) {
      two = Constant <value_ints = [2]> () e = Mul(k, two) b = Constant <value_ints = [0]> ()
      a = Constant <value_ints = [1]> () s = Slice(x, b, e, a) y = Relu(s) }"""
    count = Size("k", 1, 5)
    made = Compiled(Sized(model_of(text), (count,), {"k": (dim_of(count),)}), *WAYS[0])
    stored = read_bundle(write_bundle(made.plan, tmp_path / "module"))
    assert [str(alias) for alias in stored.aliases] == [str(alias) for alias in made.plan.aliases]
    made.assert_right(made.sized.some(0, 5), 0)


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("seed", range(600, 650))
def test_many_random_networks_as_programs_in_c(seed: int, tmp_path: Path):
    in_c(random_sized(seed), tmp_path, seed)


def test_a_constant_in_a_shape_that_depends_on_sizes():
    text = """(float[n, 3] x) => (float[n, 1] y) {
      s = Shape <start = 0, end = 1> (x) r = Constant <value_ints = [-1]> ()
      t = Concat <axis = 0> (s, r) d = Constant <value_floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]> ()
      w = Concat <axis = 0> (d, d) m = Reshape(w, t) a = Constant <value_ints = [1]> ()
      z = ReduceSum(m, a) q = ReduceSum(x, a) y = Add(z, q) }"""
    sized = Sized(model_of(text), SIZES[:1])
    Compiled(sized, *WAYS[0]).assert_right(sized.some(0, 3), 0)


def test_a_size_that_nothing_reads():
    sized = Sized(model_of("(float[n, 3] x, float[m] u) => (float[n, 3] y) { y = Relu(x) }"), SIZES)
    Compiled(sized, *WAYS[0]).assert_right(sized.some(0, AT), 0)


def test_the_generator_leaves_extents_open_in_all_ways():
    """Images and texts, with steps, and sizes that inputs state; nodes compute with shapes."""
    every = [random_sized(seed) for seed in range(60)]
    names = {size.name for sized in every for size in sized.sizes}
    assert names == {"n", "h", "w", "t", "k", "rows"}
    assert {len(sized.sizes) for sized in every} == {1, 2, 3}
    assert any(size.step > 1 for sized in every for size in sized.sizes)
    ops = {node.op_type for sized in every for node in sized.model.graph.node}
    assert ops >= {
        "Shape",
        "Range",
        "Resize",
        "Conv",
        "Softmax",
        "LayerNormalization",
        "Slice",
        "TopK",
    }
