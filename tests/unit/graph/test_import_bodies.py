"""Functions, branches, loops, sequences and host steps: what a body of nodes becomes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from retune.core.dims import Size, assuming, dim_of
from retune.core.dtypes import UNKNOWN
from retune.core.errors import ModelError
from retune.frontend.onnx.importer import import_model
from retune.frontend.onnx.ops import NotConstant
from retune.graph.evaluate import run_graph
from retune.graph.graph import Graph
from tests.support.networks import model, node

OPSET = '<ir_version: 8, opset_import: ["" : 18, "own" : 1]>'


def parsed(text: str, header: str = OPSET) -> onnx.ModelProto:
    return parser.parse_model(f"{header}\n{text}")


def rand(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def assert_as_onnxruntime(made: onnx.ModelProto, inputs: dict[str, Any]) -> Graph:
    """The imported network, after it gave what onnxruntime gives."""
    session = onnxruntime.InferenceSession(made.SerializeToString())
    names = [output.name for output in session.get_outputs()]
    graph = import_model(made)
    found = run_graph(graph, inputs)
    for name, output in zip(names, session.run(names, inputs), strict=True):
        array = np.asarray(output)
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        assert found[name].dtype == array.dtype
    return graph


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


FUNCTIONS = """
net (float[2,3] x) => (float[2,3] y)
{
  a = own.Scaled <factor = 3.0> (x)
  b = own.Scaled (a)
  y = own.Twice (b)
}
<domain: "own", opset_import: ["" : 18]>
Scaled <factor: float = 0.5> (data) => (result)
{
  k = Constant <value_float: float = @factor> ()
  result = Mul (data, k)
}
<domain: "own", opset_import: ["" : 18, "own" : 1]>
Twice (x) => (y)
{
  a = own.Scaled <factor = 2.0> (x)
  y = Identity (a)
}
"""


def test_functions_of_the_model_take_the_place_of_their_calls():
    graph = assert_as_onnxruntime(parsed(FUNCTIONS), {"x": rand(2, 3)})
    assert ops(graph) == ["multiply", "multiply", "multiply", "identity"]
    assert graph.outputs == ("y",)


def test_a_function_that_passes_an_input_on_and_leaves_one_out():
    made = parsed("""
        net (float[2,3] x) => (float[2,3] y, float[2,3] z)
        { y, z = own.Same (x) }
        <domain: "own", opset_import: ["" : 18]>
        Same (data, bias) => (same, more)
        { same = Identity (data)
          more = Clip (data, bias) }
        """)
    graph = assert_as_onnxruntime(made, {"x": rand(2, 3)})
    assert graph.outputs == ("y", "z")


def test_a_function_that_calls_itself_is_refused():
    made = parsed("""
        net (float[2] x) => (float[2] y)
        { y = own.Round (x) }
        <domain: "own", opset_import: ["own" : 1]>
        Round (a) => (b)
        { b = own.Round (a) }
        """)
    with pytest.raises(ModelError, match="'Round' lies 64 bodies deep; expected functions"):
        import_model(made)


@pytest.mark.parametrize("opset", [17, 18, 21])
def test_functions_of_the_specification_whose_body_depends_on_types(opset: int):
    made = model(
        [node("LayerNormalization", ["x", "s", "b"], ["y"], axis=-2)],
        {"x": [2, 3, 4]},
        weights={"s": rand(3, 4), "b": rand(3, 4, seed=1)},
        opset=opset,
    )
    assert_as_onnxruntime(made, {"x": rand(2, 3, 4)})


def test_attributes_that_a_call_leaves_out_have_the_specification_s_defaults():
    made = model([node("ThresholdedRelu", ["x"], ["y"])], {"x": [3, 4]}, opset=22)
    assert_as_onnxruntime(made, {"x": 2 * rand(3, 4)})


def test_names_that_a_body_makes_do_not_meet_the_model_s():
    made = parsed("""
        net (float[2] x) => (float[2] y)
        { a = own.F (x)
          other = Neg (a)
          y = Add (other, a) }
        <domain: "own", opset_import: ["" : 18]>
        F (x) => (y)
        { t = Relu (x)
          y = Exp (t) }
        """)
    made.graph.node[1].output[0] = made.graph.node[2].input[0] = "a/t"
    assert_as_onnxruntime(made, {"x": rand(2)})


def test_nodes_of_known_inputs_are_evaluated_though_there_is_no_kernel_for_them():
    weights = {"w": rand(3, 3)}
    nodes = [node("Det", ["w"], ["d"]), node("Mul", ["x", "d"], ["y"])]
    graph = assert_as_onnxruntime(model(nodes, {"x": [2, 3]}, weights=weights), {"x": rand(2, 3)})
    assert ops(graph) == ["multiply"]


BRANCHES = """
net (float[2,3] x, bool c) => (float[2,3] y)
{ t = Relu (x)
  y = If (c) <then_branch = a () => (float[2,3] p) { p = Neg (t) },
              else_branch = b () => (float[2,3] q) { q = Exp (t) }> }
"""


@pytest.mark.parametrize("taken", [True, False])
def test_the_branch_of_a_known_condition_is_what_is_left(taken: bool):
    made = parsed(BRANCHES)
    made.graph.initializer.append(numpy_helper.from_array(np.asarray(taken), "c"))
    del made.graph.input[1]
    graph = assert_as_onnxruntime(made, {"x": rand(2, 3)})
    assert ops(graph)[:2] == ["relu", "negative" if taken else "exp"]


def test_both_branches_of_an_unknown_condition_are_computed():
    made = parsed(BRANCHES)
    for taken in (True, False):
        graph = assert_as_onnxruntime(made, {"x": rand(2, 3), "c": np.asarray(taken)})
    assert ops(graph).count("where") == 1 and "host" not in ops(graph)


LOOP = """
net (float[3] x) => (float[3] last, float[4,3] all)
{ n = Constant <value_int = 4> ()
  yes = Constant <value = bool {1}> ()
  w = Relu (x)
  last, all = Loop (n, yes, x) <body = turn (int64 i, bool c, float[3] v)
    => (bool go, float[3] next, float[3] seen)
    { go = Identity (c)
      f = Cast <to = 1> (i)
      s = Mul (w, f)
      next = Add (v, s)
      seen = Neg (next) }> }
"""


def test_a_loop_of_known_turns_is_unrolled():
    graph = assert_as_onnxruntime(parsed(LOOP), {"x": rand(3)})
    assert ops(graph).count("add") == 4 and "host" not in ops(graph)


def longer(text: str) -> onnx.ModelProto:
    """With twelve turns in place of four."""
    return parsed(re.sub(r"\b4\b", "12", text))


def test_a_long_loop_stays_one():
    made = longer(LOOP)
    graph = assert_as_onnxruntime(made, {"x": rand(3)})
    assert ops(graph).count("scan") == 1 and not {"add", "host"} & {*ops(graph)}


def test_a_long_loop_ends_where_its_condition_says():
    made = longer(LOOP.replace("float[4,3] all", "float[2,3] all"))
    body = made.graph.node[3].attribute[0].g
    body.node[0].CopyFrom(helper.make_node("Less", ["i", "one"], ["go"]))
    body.node.insert(0, helper.make_node("Constant", [], ["one"], value_int=1))
    assert "scan" not in ops(assert_as_onnxruntime(made, {"x": rand(3)}))


def test_a_long_loop_whose_state_grows_is_unrolled():
    made = parsed("""
        net (float[3] x) => (float[13,3] last)
        { n = Constant <value_int = 12> ()
          axes = Constant <value_ints = [0]> ()
          first = Unsqueeze (x, axes)
          last = Loop (n, , first) <body = turn (int64 i, bool c, float[k,3] v)
            => (bool c, float[m,3] next)
            { next = Concat <axis = 0> (v, first) }> }
        """)
    assert "scan" not in ops(assert_as_onnxruntime(made, {"x": rand(3)}))


def test_a_loop_ends_where_its_condition_says():
    made = parsed(LOOP.replace("float[4,3] all", "float[2,3] all"))
    body = made.graph.node[3].attribute[0].g
    body.node[0].CopyFrom(helper.make_node("Less", ["i", "one"], ["go"]))
    body.node.insert(0, helper.make_node("Constant", [], ["one"], value_int=1))
    assert_as_onnxruntime(made, {"x": rand(3)})


def test_a_loop_whose_turns_depend_on_the_data_runs_on_the_host():
    made = parsed(LOOP.replace("float[4,3] all", "float[k,3] all"))
    made.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, []))
    del made.graph.node[0]
    for count in (0, 1, 3):
        graph = assert_as_onnxruntime(made, {"x": rand(3), "n": np.asarray(count)})
    assert graph.types["all"].shape == (UNKNOWN, 3)


SCAN = """
net (float[3,4] x, float[3] s) => (float[3] last, float[4,3] all, float[3,4] turned)
{ w = Exp (s)
  last, all, turned = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1],
    scan_input_axes = [1, -1], scan_output_axes = [0, 1], scan_output_directions = [1, 0],
    body = turn (float[3] c, float[3] a, float[3] b)
      => (float[3] next, float[3] seen, float[3] other)
    { t = Sub (a, b)
      u = Mul (t, w)
      next = Add (c, u)
      seen = Neg (next)
      other = Identity (t) }> (s, x, x) }
"""


@pytest.mark.parametrize(("read", "steps"), [(parsed, 4), (longer, 12)])
def test_a_scan_forward_and_backward(read: Callable[[str], onnx.ModelProto], steps: int):
    graph = assert_as_onnxruntime(read(SCAN), {"x": rand(3, steps), "s": rand(3, seed=1)})
    assert ops(graph).count("scan") == (steps > 4)


def test_sequences_leave_only_tensors():
    made = parsed("""
        net (float[2,6] x) => (float[2,5] y, int64 n)
        { parts = SplitToSequence <axis = 1, keepdims = 1> (x)
          two = Constant <value_int = 2> ()
          third = SequenceAt (parts, two)
          less = SequenceErase (parts, two)
          shorter = SequenceErase (less)
          more = SequenceInsert (shorter, third)
          n = SequenceLength (more)
          y = ConcatFromSequence <axis = 1> (more) }
        """)
    graph = assert_as_onnxruntime(made, {"x": rand(2, 6)})
    assert set(ops(graph)) <= {"slice", "concat", "identity"}


def test_sizes_that_depend_on_the_data_stay_on_the_host_with_all_that_reads_them():
    made = parsed("""
        net (float[2,3] x) => (int64[n,2] y, float[2,3] z, int64[1] k)
        { t = Relu (x)
          places = NonZero (t)
          y = Transpose <perm = [1, 0]> (places)
          z = Exp (t)
          shape = Shape (places)
          one = Constant <value_ints = [1]> ()
          k = Gather (shape, one) }
        """)
    graph = assert_as_onnxruntime(made, {"x": rand(2, 3)})
    assert ops(graph).count("host") == 1 and ops(graph)[-1] == "host"
    assert graph.types["y"].shape == (UNKNOWN, 2)


def test_an_operator_without_a_kernel_is_a_host_step():
    nodes = [node("Relu", ["x"], ["a"]), node("Det", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    made = model(nodes, {"x": [4, 3, 3]})
    graph = assert_as_onnxruntime(made, {"x": rand(4, 3, 3)})
    assert ops(graph) == ["relu", "host", "negative"]


@pytest.mark.parametrize(
    ("inputs", "shape", "message"),
    [
        ("int64[1] s", "t = Identity(s)", "values of the network's input 's'; .* --value s=1..8,"),
        (
            "int64[1] a, int64[1] b",
            "t = Mul(a, b)",
            "'a' and 'b'; .* --value a=1..8 --value b=1..8",
        ),
        ("float[1] f", "t = Cast <to = 7> (f)", "depends on the network's input; .* a constant"),
    ],
)
def test_an_input_that_fixes_shapes_is_asked_for(inputs: str, shape: str, message: str):
    made = parsed(f"net (float[2,3] x, {inputs}) => (float[n] y) {{ {shape} y = Reshape(x, t) }}")
    with pytest.raises(NotConstant, match=rf"the shape \(input 't'\) .*{message}"):
        import_model(made)


def test_a_branch_is_taken_and_turns_are_counted_by_a_value():
    """By a number for good; by a size for its value at hand, which is a condition then."""
    made = parsed("""net (float[4] x, int64 n, bool f) => (float[4] y) {
      c = Constant <value = bool {1}> ()
      a = Loop(n, c, x) <body = b (int64 i, bool g, float[4] u) => (bool h, float[4] v)
        { h = Identity(g) v = Mul(u, u) }>
      y = If(f) <then_branch = t () => (float[4] p) { p = Relu(a) },
        else_branch = e () => (float[4] q) { q = Neg(a) }> }""")
    graph = import_model(made, values={"n": (2,), "f": (1,)})
    assert ops(graph)[:3] == ["multiply", "multiply", "relu"] and graph.values["n"] == (2,)
    turns, flag = dim_of(Size("n", 1, 3)), dim_of(Size("f", 0, 1))
    with assuming({"n": 1, "f": 0}) as assumed:
        graph = import_model(made, values={"n": (turns,), "f": (flag,)})
    assert ops(graph)[:2] == ["multiply", "negative"]
    assert [str(c) for c in assumed.conditions] == ["n == 1", "f == 0"]


def test_what_is_missing_inside_bodies_is_counted_too():
    made = parsed("""
        net (float[2] x) => (float[2] y)
        { a = own.F (x)
          b = own.F (a)
          y = own.Unheard (b) }
        <domain: "own", opset_import: ["" : 18, "other" : 1]>
        F (x) => (y)
        { t = other.Strange (x)
          y = Relu (t) }
        """)
    with pytest.raises(ModelError) as caught:
        import_model(made)
    assert str(caught.value).splitlines()[1:] == [
        "  other::Strange: 2 x, first 'a/t'",
        "  own::Unheard: 1 x, first 'y'",
    ]


def test_an_error_inside_a_function_names_the_way_to_it():
    made = parsed("""
        net (float[2,3] x) => (float[6] y)
        { y = own.F (x) }
        <domain: "own", opset_import: ["" : 18]>
        F (x) => (y)
        { s = Constant <value_ints = [7]> ()
          y = Reshape (x, s) }
        """)
    with pytest.raises(ModelError, match=r"node 'y/y' \(Reshape\): reshape of"):
        import_model(made)


def test_an_output_that_is_a_sequence_is_refused():
    made = parsed("net (float[2] x) => (float[2] y) { y = SequenceConstruct (x, x) }")
    with pytest.raises(ModelError, match="output 'y' is a sequence or an optional; expected a"):
        import_model(made)
