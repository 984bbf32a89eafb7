"""Each operator of onnxruntime's domain means what onnxruntime computes."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops.registry import CLAIMS
from retune.frontend.onnx.support import supported
from retune.graph.evaluate import run_graph
from retune.proto.scope import MICROSOFT
from tests.support.contrib import malformed, model_of, rand
from tests.support.contrib_blocks import narrow_model
from tests.support.contrib_cases import CASES
from tests.support.contrib_random import attention, grouped, multi_head
from tests.support.networks import node
from tests.support.peer import assert_as_peer, assert_computes, typed_model


@pytest.mark.parametrize("name", CASES)
def test_it_means_what_onnxruntime_computes(name: str) -> None:
    case = CASES[name]
    expected = case.expected()
    if expected is None:
        assert_as_peer(model_of(case), case.fed, case.tolerance)
    else:
        assert_computes(model_of(case), case.fed, expected, case.tolerance)


def model_with(op: str, domain: str, sets: dict[str, int]) -> onnx.ModelProto:
    """The operator of one input and then a Relu, in these operator sets."""
    nodes = [node(op, ["x"], ["h"], domain=domain), node("Relu", ["h"], ["y"])]
    made = typed_model(nodes, {"x": rand(1, 4)}, ["y"])
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*entry) for entry in sets.items())
    return made


@pytest.mark.parametrize(
    "sets", [{"": 13}, {"ai.onnx": 13}, {"ai.onnx": 13, MICROSOFT: 1}, {MICROSOFT: 1, "": 9}]
)
def test_operator_sets_may_be_unstated_or_named_in_full(sets: dict[str, int]) -> None:
    made = import_model(model_with("QuickGelu", MICROSOFT, sets))
    x = rand(1, 4)
    expected = np.maximum(x / (1 + np.exp(-1.702 * x)), 0)
    np.testing.assert_allclose(run_graph(made, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_every_operator_that_is_imported_has_cases() -> None:
    """Of onnxruntime's domain and of ai.onnx.ml: a test's model is named after it in this folder,
    or in the tables of cases."""
    folder = Path(__file__).parent
    files = (*folder.glob("*.py"), *(folder.parents[1] / "support").glob("contrib*.py"))
    named = {word for file in files for word in re.findall(r'"(\w+)"', file.read_text())}
    imported = [s.name for s in supported() if s.domain and s.imported]
    assert len(imported) > 80
    assert [name for name in imported if name.partition("::")[2] not in named] == []


REFUSED = [name.split("::") for (name, _), claim in CLAIMS.items() if claim.refused]


@pytest.mark.parametrize(("domain", "op"), REFUSED)
def test_what_is_refused_comes_with_advice(domain: str, op: str) -> None:
    with pytest.raises(ModelError, match=f"{domain}::{op} is not supported; (it|mixture)"):
        import_model(model_with(op, domain, {"": 13, domain: 1}))


def test_a_layout_of_one_machine_is_refused_with_the_level_to_save_at() -> None:
    made = model_with("ReorderInput", "com.microsoft.nchwc", {"": 13, "com.microsoft.nchwc": 1})
    with pytest.raises(ModelError, match="save the optimised model at ORT_ENABLE_EXTENDED"):
        import_model(made)


def test_an_unknown_activation_is_refused_by_name() -> None:
    weights = {"w": rand(2, 1, 1, 1)}
    proto = node("FusedConv", ["x", "w"], ["y"], domain=MICROSOFT, activation="Swirl")
    with pytest.raises(ModelError, match="activation 'Swirl': expected one of Relu, Sigmoid"):
        import_model(typed_model([proto], {"x": rand(1, 1, 2, 2)}, ["y"], weights))


@pytest.mark.parametrize("element", [onnx.TensorProto.UINT4, onnx.TensorProto.INT4])
@pytest.mark.parametrize(("gather", "quantize"), [(0, 2), (1, 2), (1, 0), (2, 2), (0, 0)])
def test_tables_of_four_bit_integers(element: int, gather: int, quantize: int) -> None:
    assert_as_peer(*narrow_model(element, gather, quantize))


HALVES = [
    "fast_gelu_bias", "skip_rms_sum", "embed_sum", "conv_sum", "attention_past", "heads_past_mask",
    "grouped_one_rotary0", "grouped_buffer_grown", "rotary_part", "nbits_4_32_40_bias",
    "nbits_groups_uneven", "table_4_zeros",
]  # fmt: skip
"""Cases that decoders of float16 are made of."""


@pytest.mark.parametrize("name", HALVES)
def test_it_means_the_same_in_float16(name: str) -> None:
    case = CASES[name]
    halves = {
        key: array.astype(np.float16) if array.dtype == np.float32 else array
        for key, array in case.inputs.items()
    }
    half = replace(case, inputs=halves)
    assert_as_peer(model_of(half), half.fed, 1e-2)


def test_malformed_nodes_are_imported_or_refused(seed: int) -> None:
    for turn in range(150):
        rng = np.random.default_rng([seed, turn])
        case = malformed(CASES[str(rng.choice(list(CASES)))], rng)
        try:
            import_model(model_of(case))
        except ModelError:
            continue
        except Exception as error:
            raise AssertionError(f"RETUNE_SEED={seed}, turn {turn}: {case}") from error


def test_an_error_of_an_inner_operator_names_both_nodes() -> None:
    weights = {"w": rand(2, 2, 3, 3)}
    proto = node("FusedConv", ["x", "w"], ["y"], domain=MICROSOFT, kernel_shape=[5, 5])
    message = r"net: node 'FusedConv_y' \(FusedConv\): node '.*' \(Conv\): kernel_shape \[5, 5\]"
    with pytest.raises(ModelError, match=message):
        import_model(typed_model([proto], {"x": rand(1, 2, 8, 8)}, ["y"], weights))


def test_what_follows_unknown_sizes_runs_on_the_host() -> None:
    nodes = [
        node("NonZero", ["x"], ["n"]),
        node("Cast", ["n"], ["f"], to=onnx.TensorProto.FLOAT),
        node("FusedMatMul", ["f", "f"], ["h"], domain=MICROSOFT, transB=1, alpha=0.5),
        node("FastGelu", ["h"], ["y"], domain=MICROSOFT),
    ]
    x = np.array([[1, 0, 2], [0, 3, 0]], np.float32)
    made = typed_model(nodes, {"x": x}, ["y"])
    made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    made.graph.output[0].CopyFrom(
        helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 2])
    )
    assert_as_peer(made, {"x": x})


def test_causal_attention_to_other_keys_is_refused() -> None:
    """onnxruntime's CPU hides the future from all queries but the last."""
    attrs = {"num_heads": 2, "unidirectional": 1}
    proto = node("MultiHeadAttention", ["q", "k", "k"], ["y"], domain=MICROSOFT, **attrs)
    with pytest.raises(ModelError, match="unidirectional attention of 3 queries to 5 keys"):
        import_model(typed_model([proto], {"q": rand(1, 3, 8), "k": rand(1, 5, 8)}, ["y"]))


RANDOM = {"grouped": grouped, "multi_head": multi_head, "attention": attention}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("count", [6, pytest.param(150, marks=pytest.mark.slow)])
def test_random_attention(name: str, count: int, seed: int) -> None:
    for turn in range(count):
        case = RANDOM[name](np.random.default_rng([seed, turn]))
        print(f"RETUNE_SEED={seed}, turn {turn}: {case}")
        assert_as_peer(model_of(case), case.fed, 1e-4)
