"""A network with 3 GiB of weights: tuned for a minute, loaded and run. Minutes, and 14 GiB of disk.

Run with `make test-slow`, or alone with
`.venv/bin/python -m pytest -m slow tests/device/test_large_weights.py`.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.large_weights import LAYER_BYTES, write_model
from retune.bundle.runtime.module import Module
from retune.bundle.verify.peers import open_peer

pytestmark = [pytest.mark.slow, pytest.mark.device, pytest.mark.process]

WEIGHTS = 3 << 30
"""Bytes."""
COPIES = 4
"""Of the weights on the disk: the model, two compiled bundles, and the one that is published."""
MOST = 2.5
"""Peak memory of a process as a multiple of the weights: the model's, mapped, and packed ones."""


def test_three_gigabytes_of_weights_are_tuned_in_a_minute_and_run(tmp_path: Path):
    free = shutil.disk_usage(tmp_path).free
    if free < (COPIES + 0.5) * WEIGHTS:
        pytest.skip(f"{free >> 30} GiB of disk are free, and {COPIES} copies of 3 GiB are needed")
    path = write_model(tmp_path, WEIGHTS // LAYER_BYTES)
    options = ["--out", "build", "--minutes", "1", "--records", "records", "--seed", "1"]
    command = [sys.executable, "-m", "retune", "tune", path.name, *options]
    process = subprocess.Popen(command, cwd=tmp_path)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_maxrss * 1024 < MOST * WEIGHTS
    with Module.load(tmp_path / "build/module") as module:
        feeds = module.random_inputs()
        (found,) = module.run(feeds).values()
    (wanted,) = open_peer("onnxruntime", path)(feeds).values()
    assert np.abs(found - wanted).max() < 1e-4 * np.ptp(wanted)
