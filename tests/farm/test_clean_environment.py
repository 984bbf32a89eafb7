"""The documented line makes a board of an environment that has nothing."""

import re
import subprocess
import venv
from contextlib import closing
from pathlib import Path

import pytest

from retune.device.measure.workload import MeasureOptions
from tests.farm.processes import DEADLINE_S, KEY, Farm
from tests.support.measure import WORKLOAD, program

pytestmark = [pytest.mark.slow, pytest.mark.device]

ROOT = Path(__file__).resolve().parents[2]
LINE = "pip install -r boards.txt && pip install --no-deps ."
ABSENT = ("prefect", "pandas", "pyarrow", "xgboost", "onnx", "typer", "cryptography")


def test_a_board_is_installed_by_one_line(tmp_path: Path):
    assert LINE in (ROOT / "docs" / "farm.md").read_text(encoding="utf-8")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    line = re.sub(r"\bpip\b", f"{python} -m pip", LINE)
    subprocess.run(line, shell=True, cwd=ROOT, check=True, timeout=1200)  # noqa: S602  of docs/farm.md
    code = f"from importlib.util import find_spec; print([n for n in {ABSENT} if find_spec(n)])"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    with Farm(tmp_path) as farm:
        file = tmp_path / "clean.toml"
        file.write_text('name = "clean"\nmodel = "farmed"\n', encoding="utf-8")
        farm.begin_board("clean", f"sim:{file}", python=str(python)).wait_for("board clean serves")
        with closing(farm.link()) as link, closing(farm.runner(link, KEY)) as runner:
            runner.prepare(WORKLOAD)
            (row,) = runner.submit("task", [program()], MeasureOptions()).result(DEADLINE_S)
    assert (row.ok, row.instance) == (True, "clean")
