"""Bundles that have to be somebody's, and bundles in a process of their own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from retune.bundle.format import write_bundle
from retune.bundle.trust import digest_of
from retune.cli.main import run_command
from tests.support.bundle_fixtures import ADD, make_plan
from tests.support.programs import kernels_of, texts_of
from tests.support.trust import pair

pytestmark = [pytest.mark.device, pytest.mark.filterwarnings("ignore::UserWarning")]

X = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(make_plan(), tmp_path / "module")


def ran(bundle: Path, *options: str) -> int:
    """Exit code of a run whose outputs go beside the bundle."""
    np.savez(bundle.with_name("in.npz"), x=X)
    paths = ["--input", str(bundle.with_name("in.npz")), "--output", str(output_of(bundle))]
    return run_command(["run", str(bundle), *paths, "--device", "pocl", *options])


def output_of(bundle: Path) -> Path:
    return bundle.with_name("out.npz")


def check_outputs(bundle: Path) -> None:
    with np.load(output_of(bundle)) as outputs:
        np.testing.assert_array_equal(outputs["twice"], 2 * (X.ravel() + np.arange(32)))


def test_a_signed_bundle_runs_and_another_does_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    private, public = pair(tmp_path, "ours")
    other = pair(tmp_path, "theirs")[1]
    signed = tmp_path / "net.zip"
    assert run_command(["pack", str(folder), str(signed), "--sign", str(private)]) == 0
    for command in (["bench"], ["verify", "--model", "zoo:mlp"]):
        refused = [command[0], str(signed), *command[1:], "--device", "pocl", "--trust", str(other)]
        assert run_command(refused) == 2
        assert "got one by somebody else" in capsys.readouterr().err
    assert ran(signed, "--trust", str(other)) == 2
    assert not output_of(signed).exists()
    assert ran(signed, "--trust", str(public), "--digest", digest_of(folder)) == 0
    check_outputs(signed)


def test_a_bundle_runs_in_a_process_of_its_own(folder: Path):
    assert ran(folder, "--isolated") == 0
    check_outputs(folder)


def test_a_bundle_that_crashes_takes_its_own_process_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    crash = ADD.replace("y[i] =", "((volatile __global float *)0)[i] = y[i] =")
    plan = make_plan()
    plan = replace(plan, kernels=kernels_of({**texts_of(plan), "add": crash}))
    bundle = write_bundle(plan, tmp_path / "module")
    assert ran(bundle, "--isolated") == 1
    said = capsys.readouterr().err
    assert "crashed" in said
    assert "in a second, fresh process too" in said
    assert not output_of(bundle).exists()
