"""Networks whose extents depend on data: kernels run behind the host steps that find them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.plan import Form
from retune.bundle.runtime.module import Module
from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU, GENERIC_GPU, DeviceSpec
from retune.device.opencl.runtime import Device, open_device
from retune.frontend.onnx.importer import import_model
from retune.graph.evaluate import run_graph
from tests.support.counted import NETWORKS, SHARES, plan_of

pytestmark = pytest.mark.device


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("pocl")


@pytest.mark.parametrize(
    ("name", "form", "spec"),
    [
        ("chosen", "persistent", GENERIC_CPU),
        ("compressed", "inline", GENERIC_CPU),
        ("distinct", "queued", GENERIC_GPU),
    ],
)
def test_any_count_is_right(
    name: str, form: Form, spec: DeviceSpec, tmp_path: Path, device: Device
) -> None:
    made, feeds = NETWORKS[name]
    write_bundle(replace(plan_of(made, spec), form=form), tmp_path / "b")
    module = Module(read_bundle(tmp_path / "b"), device)
    assert module.form == form
    plain, rng = import_model(made), np.random.default_rng(7)
    for share in SHARES * 2:
        inputs = feeds(rng, share)
        found, expected = module.run(inputs), run_graph(plain, inputs)
        for value, array in expected.items():
            np.testing.assert_allclose(found[value], array, rtol=1e-4, atol=1e-5)


def test_a_count_beyond_its_range_is_refused(device: Device) -> None:
    made, feeds = NETWORKS["compressed"]
    plan = plan_of(made, GENERIC_CPU)
    (count,) = plan.sizes
    less = replace(count, size=replace(count.size, most=3))
    rows = feeds(np.random.default_rng(0), 1.0)
    step = Module(plan, device)._now.parts[0].hosts[0]
    with pytest.raises(InputError, match=r"expected count_c from 0 to 3; it found 20"):
        step._count(less, rows["x"])
