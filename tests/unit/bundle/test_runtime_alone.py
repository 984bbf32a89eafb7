"""What the runtime of bundles needs: of inputs, of outputs, and of the installation."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import retune.records
from retune.bundle.runtime.inputs import InputCheck
from retune.bundle.runtime.module import Outputs
from retune.core.errors import InputError
from retune.core.extras import EXTRAS, explained, missing_extra
from tests.support.bundle_fixtures import make_plan

ROOT = Path(__file__).resolve().parents[3]
LOADED = "import sys, retune.bundle.runtime.module; print(*sys.modules)"
OF_TUNING = (
    *("codegen.lower", "codegen.kernel", "intrinsics", "schedule", "targets", "frontend", "ops"),
    *("device.measure.local", "device.simulated.runner", "device.opencl.probing"),
)


def test_inputs_are_named_by_their_order():
    check = InputCheck(make_plan())
    (name,) = check.names
    array = np.zeros(3, np.float32)
    assert check.named(array) == check.named([array]) == {name: array}
    assert check.named({name: array}) == {name: array}
    with pytest.raises(InputError, match=rf"expected arrays of the inputs {name}; got 2; name"):
        check.named([array, array])


def test_outputs_have_names_and_an_order():
    outputs = Outputs(boxes=np.zeros(4), scores=np.ones(2))
    assert outputs[0] is outputs["boxes"]
    assert outputs[-1] is outputs["scores"]
    assert list(outputs) == ["boxes", "scores"]
    with pytest.raises(KeyError, match="'x': expected one of boxes, scores, or a number below 2"):
        outputs["x"]
    with pytest.raises(KeyError, match="2: expected one of"):
        outputs[2]


@pytest.mark.process
def test_what_runs_bundles_loads_nothing_that_makes_them():
    """Loading it takes under 0.3 s so."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}", "PATH": "/usr/bin:/bin"},
    )
    loaded = set(done.stdout.split())
    assert "retune.bundle.format" in loaded
    assert not loaded & {*EXTRAS, *(f"retune.{name}" for name in OF_TUNING)}


def test_a_missing_package_is_named_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "retune.records.store", None)
    error = ModuleNotFoundError("No module named 'pandas'", name="pandas")
    with pytest.raises(InputError, match=r"needs pandas, .* pip install '.\[tune\]'"), explained():
        raise error
    assert missing_extra(ModuleNotFoundError(name="prefect.flows")) is not None
    with pytest.raises(ModuleNotFoundError), explained():
        raise ModuleNotFoundError(name="retune.nothing")
    with pytest.raises(ModuleNotFoundError):
        retune.records.load(ROOT)
