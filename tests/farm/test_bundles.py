"""A whole run on a farm: measured, verified and timed on boards, published here."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from retune.bundle.build import build_plan
from retune.bundle.format import read_bundle, write_bundle
from retune.bundle.runtime.module import Module
from retune.bundle.verify.examiner import Comparison, Original
from retune.bundle.verify.farm_examiner import FarmExaminer
from retune.core.errors import InputError, RecordError
from retune.device.opening import open_device
from retune.device.remote.link import link_to
from retune.frontend.models import resolve_model
from retune.pipeline.network import import_network
from retune.records.store import RecordStore
from tests.farm.processes import DEADLINE_S, Farm

pytestmark = [pytest.mark.slow, pytest.mark.device]


@pytest.fixture(autouse=True)
def certs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETUNE_CERTS", str(tmp_path / "certs" / "client"))


def tuned(farm: Farm, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """`retune tune` of a network."""
    return asked(farm, "tune", "zoo:mlp", "--out", str(out), "--no-prefect", *more)


def asked(farm: Farm, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of retune about the farm's boards, in a process of its own."""
    main = (
        "import sys; from retune.cli.main import run_command; sys.exit(run_command(sys.argv[1:]))"
    )
    options = ["--scheduler", farm.address, "--json"]
    if "--device" not in arguments:
        options += ["--device", "farm:sim"]
    return subprocess.run(
        [sys.executable, "-c", main, *arguments, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def test_a_network_is_tuned_on_simulated_boards(tmp_path: Path):
    with Farm(tmp_path) as farm:
        boards = [farm.start_board(name, "measure_s = 0.01\n") for name in "ab"]
        done = tuned(farm, tmp_path / "build", "--trials", "24")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        for board in boards:
            assert not board.matching("WARNING|ERROR|Traceback")
        bundled = [line for board in boards for line in board.matching("job of bundle begins")]
        assert bundled
        rows = RecordStore(tmp_path / "records").scan()
        assert set(rows["instance"]) == {"a", "b"}
        assert set(rows["target"]) == {"simulated farmed"}
        assert [row["name"] for row in result["latency"]] == ["untuned", "tuned"]
        assert result["verification"]["passed"]
        report = (tmp_path / "build" / "report.html").read_text(encoding="utf-8")
        assert re.search(r"board</[^>]+>\s*<[^>]+>[ab]\b", report)
        assert read_bundle(tmp_path / "build" / "module").device.model == "simulated farmed"
        for command in (["bench"], ["verify", "--model", "zoo:mlp"]):
            told = asked(farm, command[0], str(tmp_path / "build" / "module"), *command[1:])
            assert told.returncode == 0, told.stderr
        unknown = tuned(farm, tmp_path / "other", "--trials", "1", "--device", "farm:nosuch")
        assert unknown.returncode == 2
        assert "expected a key that a board has, got 'nosuch'" in unknown.stderr


def test_bundles_run_on_a_real_device_of_a_board(tmp_path: Path):
    """What a board computes is what this machine computes; what is damaged runs nowhere."""
    with Farm(tmp_path) as farm:
        farm.begin_board("real", "pocl", "pocl").wait_for("board real serves")
        with FarmExaminer(f"farm:pocl@{farm.address}") as examiner:
            network = import_network("zoo:kws").network
            plan = build_plan(network, {}, examiner.spec, model_key="", notes={})
            bundle = write_bundle(plan, tmp_path / "module")
            module = Module(plan, open_device("pocl"))
            feeds = module.random_inputs(3)
            found = examiner.run(bundle, feeds)
            for name, expected in module.run(feeds).items():
                np.testing.assert_array_equal(found[name], expected)
            onnx = resolve_model("zoo:kws", shapes=plan.input_shapes)
            original = Original(onnx=onnx, shapes=plan.input_shapes)
            assert examiner.verify(bundle, Comparison(network=original, samples=2)).found.passed
            assert len(examiner.profile(bundle, repeat=2)) == len(plan.steps)
            assert examiner.best_form(bundle) in ("persistent", "inline", "queued")
            times = examiner.compare({"one": bundle, "two": bundle}, baseline="one")
            assert {timing.name for timing in times.timings} == {"one", "two"}
            times = examiner.compare({"one": bundle}, calibration="kernel")
            assert {timing.name for timing in times.timings} == {"one", "kernel"}
            with pytest.raises(InputError, match="expected the inputs"):
                examiner.run(bundle, {})
            (bundle / "kernels.cl").write_text("corrupted")
            with pytest.raises(RecordError):
                FarmExaminer(f"farm:pocl@{farm.address}").run(bundle, feeds)
        link_to(farm.address).close()
