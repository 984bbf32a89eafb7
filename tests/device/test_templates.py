"""The shipped templates' kernels are right on the device, at their untuned decisions."""

import pytest

from retune.device.opencl.runtime import Device, open_device
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.ir.te import Dag
from retune.schedule.space import sketch_of
from retune.targets.template import TemplateFunction, TemplateWorkload
from retune.targets.templates.conv2d import conv2d_nchwc, conv2d_nchwc_unroll_kw, untuned
from tests.support.dags import conv2d
from tests.support.oracle import assert_device_agrees

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


WINDOW = conv2d(1, 9, 13, 12, 32)
STRIDED = conv2d(2, 8, 9, 6, 40, 3, stride=2, residual=True)
POINT = merge_axes(conv2d(1, 7, 7, 16, 48, 1, pad=0))
STRIDED_POINT = conv2d(1, 8, 9, 6, 16, 1, pad=0, stride=2)


@pytest.mark.parametrize(
    ("dag", "function"),
    [
        (WINDOW, conv2d_nchwc),
        (WINDOW, conv2d_nchwc_unroll_kw),
        (STRIDED, conv2d_nchwc),
        (STRIDED, conv2d_nchwc_unroll_kw),
        (POINT, conv2d_nchwc),
        (STRIDED_POINT, conv2d_nchwc),
    ],
)
def test_the_untuned_convolution(device: Device, dag: Dag, function: TemplateFunction):
    work = TemplateWorkload(op="conv", program=from_dag(dag), spec=device.spec)
    sketch = sketch_of(work.program, lambda s: function(s, work))
    assert_device_agrees(device, dag, sketch.instantiate(sketch.row(untuned(work))))
