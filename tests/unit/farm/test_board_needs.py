"""A board imports numpy, pyopencl, safetensors and distributed, and nothing else it could lack."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("distributed")

ROOT = Path(__file__).resolve().parents[3]
NEEDED = {"distributed", "msgspec", "numpy", "pyopencl", "safetensors"}
HEAVY = {"prefect", "pandas", "pyarrow", "xgboost", "onnx", "onnxruntime", "scipy", "jinja2"}
"""jinja2 is one of distributed's own needs, which imports it at times."""

IMPORTS = """
import sys
import distributed
before = set(sys.modules)
import retune.farm.serve
from importlib import import_module
from retune.farm.service import KINDS
for module in (*KINDS.values(), "retune.device.measure.worker", "retune.device.opencl.probe_child"):
    import_module(module)
import json
print(json.dumps(sorted({name.split(".")[0] for name in set(sys.modules) - before})))
"""


@pytest.mark.process
def test_a_board_imports_nothing_else():
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert "retune" in loaded
    assert not loaded & (HEAVY | {"typer", "rich", "cryptography", "jinja2"})


def test_what_a_board_installs_is_what_retune_was_tried_with():
    """PoCL, which has no wheel for aarch64, is left out there."""
    lines = [line.partition(";")[0] for line in (ROOT / "boards.txt").read_text().splitlines()]
    wanted = {line.strip() for line in lines if line and not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["dependencies"], *project["optional-dependencies"]["farm"]}
    assert wanted - {"pyopencl>=2026.1.4,<2027"} <= known
    assert "pyopencl[pocl]>=2026.1.4,<2027" in known
    assert {line.partition(">")[0].partition("[")[0] for line in wanted} == NEEDED
