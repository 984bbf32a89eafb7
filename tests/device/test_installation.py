"""The wheel, in an environment of its own: it runs a bundle, and names the extra for all else."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from retune.bundle.format import write_bundle
from tests.support.bundle_fixtures import make_plan

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = 15
"""Beside pip and setuptools."""

RUN = """
import sys
from retune.bundle.runtime.module import Module
with Module.load(sys.argv[1], "pocl") as module:
    inputs = module.random_inputs()
    by_name = module.run(inputs)
    alone = module.run(next(iter(inputs.values())))
    assert list(by_name) == list(module.outputs)
    assert all((by_name[name] == alone[n]).all() for n, name in enumerate(by_name))
try:
    module.run(inputs)
except Exception as error:
    assert "got one that was closed" in str(error), error
else:
    raise AssertionError("a closed module ran")
import retune
try:
    retune.tune_network
except ImportError as error:
    assert "pip install '.[tune]'" in str(error), error
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.device
def test_the_wheel_without_extras_runs_a_bundle(tmp_path: Path):
    """Building and installing it may load packages from the index."""
    wheels, folder = tmp_path / "wheels", tmp_path / "env"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, ROOT], check=True)
    (wheel,) = wheels.iterdir()
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", str(wheel)], check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert len([line for line in listed if line.split("=")[0] not in ("pip", "setuptools")]) <= (
        PACKAGES
    )
    bundle = write_bundle(make_plan(), tmp_path / "bundle")
    done = subprocess.run(
        [python, "-c", RUN, str(bundle)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = subprocess.run(
        [folder / "bin" / "retune", "devices"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 2
    assert told.stderr.startswith("retune: this needs typer, which is not installed; ")
