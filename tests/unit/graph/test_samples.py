"""Samples come from files that fit the network, or an error says how to make such a file."""

import numpy as np
import pytest

from retune.core.dtypes import BFLOAT16, TensorType
from retune.core.errors import InputError
from retune.graph.graph import GraphBuilder
from retune.graph.quantize.samples import held_out, load_samples, random_samples
from tests.support.quantize_networks import residual, samples


@pytest.fixture(scope="module")
def graph():
    return residual()[0]


def test_a_file_holds_the_samples_of_each_input(tmp_path, graph):
    data = samples(graph, 3)
    np.savez(tmp_path / "data.npz", labels=np.arange(3), **data)
    found = load_samples(tmp_path / "data.npz", graph)
    assert list(found) == list(graph.inputs)
    for name, array in data.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_folder_holds_them_in_the_order_of_its_files(tmp_path, graph):
    data = samples(graph, 5)
    np.savez(tmp_path / "b.npz", **{name: array[2:] for name, array in data.items()})
    np.savez(tmp_path / "a.npz", **{name: array[:2] for name, array in data.items()})
    for name, array in load_samples(tmp_path, graph).items():
        np.testing.assert_array_equal(array, data[name])


def test_samples_of_bfloat16_are_told_by_the_network(tmp_path):
    """A file of numpy's does not name the type."""
    build = GraphBuilder("net")
    build.add("relu", [build.input("x", TensorType((1, 4), BFLOAT16))], outputs=["y"])
    made = build.finish(["y"])
    data = np.arange(8).reshape(2, 4).astype(BFLOAT16.numpy)
    np.savez(tmp_path / "data.npz", x=data)
    found = load_samples(tmp_path / "data.npz", made)["x"]
    assert found.dtype == data.dtype
    np.testing.assert_array_equal(found, data)
    np.savez(tmp_path / "data.npz", x=np.full_like(data, np.nan))
    with pytest.raises(InputError, match="finite"):
        load_samples(tmp_path / "data.npz", made)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda array: array.astype(np.float64), "float64"),
        (lambda array: array[:, :, 1:], r"\[4, 3, 15, 16\]"),
        (lambda array: array[:0], "at least one"),
        (lambda array: array * np.nan, "finite"),
        (lambda array: np.float32(0), "for "),
    ],
)
def test_what_does_not_fit_is_answered_with_how_to_make_it(tmp_path, graph, change, says):
    (name,) = graph.inputs
    np.savez(tmp_path / "data.npz", **{name: change(samples(graph, 4)[name])})
    with pytest.raises(InputError, match=says) as caught:
        load_samples(tmp_path / "data.npz", graph)
    assert f"'{name}' as float32[N, 3, 16, 16] by np.savez(" in str(caught.value)


def test_what_is_no_file_of_samples(tmp_path, graph):
    with pytest.raises(InputError, match="nothing there"):
        load_samples(tmp_path / "none.npz", graph)
    with pytest.raises(InputError, match="none in it"):
        load_samples(tmp_path, graph)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(InputError, match="cannot be read as one"):
        load_samples(tmp_path / "text.npz", graph)
    np.savez(tmp_path / "other.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="got other"):
        load_samples(tmp_path / "other.npz", graph)


def test_the_last_parts_are_set_apart(graph):
    (name,) = graph.inputs
    data = samples(graph, 8)
    known, new = held_out(graph, data)
    assert (len(known[name]), len(new[name])) == (6, 2)
    np.testing.assert_array_equal(np.concatenate((known[name], new[name])), data[name])
    known, new = held_out(graph, samples(graph, 1))
    assert (len(known[name]), len(new[name])) == (1, 0)
    with pytest.raises(InputError, match="share"):
        held_out(graph, data, 1.0)


def test_random_samples_are_the_same_for_a_seed(graph):
    (name,) = graph.inputs
    one, two = random_samples(graph, 3), random_samples(graph, 3)
    assert one[name].shape == (3, 3, 16, 16)
    np.testing.assert_array_equal(one[name], two[name])
