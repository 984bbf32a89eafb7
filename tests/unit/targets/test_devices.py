"""A class of devices is one entry: here one of two levels, with a rule of its own."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from retune.codegen.target import CPU
from retune.core.target import GENERIC_CPU
from retune.ir.merge import merge_axes
from retune.ir.stmt import from_dag
from retune.targets import devices
from retune.targets.cost.cpu import cpu_cycles
from retune.targets.devices import DeviceRules, register_device_class, rules_for
from retune.targets.spaces import space_of
from tests.support.dags import conv2d, dense, depthwise, pool, softmax
from tests.support.devices import LEVELS, sketches
from tests.support.oracle import assert_items_agree

TOY = replace(GENERIC_CPU, name="toy", device_class="toy")
PROGRAMS = {
    "convolution": merge_axes(conv2d(1, 5, 7, 6, 9, residual=True)),
    "depthwise": merge_axes(depthwise(1, 6, 5, 8)),
    "pool": merge_axes(pool(1, 7, 7, 5, 3, 2, average=False)),
    "dense": dense(3, 10, 13),
    "softmax": softmax(4, 9),
}


@pytest.fixture
def toy() -> Iterator[None]:
    register_device_class(
        "toy", DeviceRules(levels=LEVELS, rules=(sketches,), cost=cpu_cycles, target=CPU)
    )
    yield
    del devices._CLASSES["toy"]


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_class_of_two_levels_is_right(name: str):
    (sketch,) = space_of(from_dag(PROGRAMS[name]), name, TOY, max_error=0.0).sketches
    for row in sketch.sample(4, np.random.default_rng(0)):
        assert_items_agree(PROGRAMS[name], sketch.instantiate(row))


def test_an_unknown_class_is_named():
    with pytest.raises(ValueError, match="no rules for device class 'toy'; there are cpu, gpu"):
        rules_for(TOY)
