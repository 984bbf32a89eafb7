"""Kernels run behind counts where that is faster by estimate; tasks are for the largest counts."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from retune.core.dims import apart
from retune.frontend.onnx.importer import import_model
from retune.graph.passes.pipeline import optimise
from retune.search.counted import counted_network, gain_s
from retune.search.extract import Network, extract
from tests.support.host import model

_TEXT = """
<ir_version: 8, opset_import: ["": 17]>
net (float[512, 256] x, bool[512] keep) => (float[n, 256] y) {
  c = Compress <axis = 0> (x, keep)
  d = MatMul (c, w)
  y = Tanh (d)
}"""


def _dense(rows: int = 512, columns: int = 256) -> onnx.ModelProto:
    made = model(_TEXT.replace("512", str(rows)).replace("256", str(columns)))
    weight = np.zeros((columns, columns), np.float32)
    made.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return made


def _network(made: onnx.ModelProto, counts: bool) -> Network:
    return extract(optimise(import_model(made, counts=counts)))


@pytest.mark.parametrize(
    ("made", "steps"), [(_dense(), "Compress"), (_dense(16, 8), "Compress, MatMul, Tanh")]
)
def test_much_work_is_for_kernels(made: onnx.ModelProto, steps: str) -> None:
    network = counted_network(lambda counts: _network(made, counts))
    assert network.host_steps == (steps,)


def test_counts_that_no_kernel_reads_are_for_the_host() -> None:
    made = model(_TEXT.replace("d = MatMul (c, w)", "").replace("Tanh (d)", "Identity (c)"))
    network = counted_network(lambda counts: _network(made, counts))
    assert not network.graph.sizes and len(network.host_steps) == 1


def test_steps_that_wait_for_each_other_cost() -> None:
    text = _TEXT.replace("y = Tanh (d)", "e = Tanh (d) z = NonZero (e) y = Cast <to = 1> (z)")
    twice = model(text)
    twice.graph.initializer.extend(_dense().graph.initializer)
    with apart():
        once, more = (gain_s(_network(made, True)) for made in (_dense(), twice))
    assert once > 0 and more < once + 1e-3


def test_tasks_behind_counts_are_those_of_fixed_shapes() -> None:
    with apart():
        network = _network(_dense(), True)
    fixed = model(_TEXT.replace("c = Compress <axis = 0> (x, keep)", "c = Identity (x)"))
    fixed.graph.initializer.extend(_dense().graph.initializer)
    assert {*_network(fixed, False).tasks} <= {*network.tasks}
    (placed, *_) = (p for p in network.groups if p.counted)
    assert placed.counted is not None and placed.counted.key != placed.task_key
    assert network.task_of(placed).sizes == placed.counted.counts
