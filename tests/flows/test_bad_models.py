"""A model that cannot be used: one clear error, exit code 2, and nothing half-written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper

from flows.cli import run_command
from tests.unit.graph.networks import model, node, normal


@dataclass(frozen=True)
class Bad:
    """How to write a bad model (to `net.onnx`), more options, and what the error says."""

    write: Callable[[Path], onnx.ModelProto | bytes]
    message: str
    options: tuple[str, ...] = ()
    lines: int = 1


def cycle(folder: Path) -> onnx.ModelProto:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Relu", ["b"], ["y"])]
    return model(nodes, {"x": [2]})


def network(folder: Path) -> onnx.ModelProto:
    weight = normal(np.random.default_rng(0), 8, 3, 3, 3)
    conv = node("Conv", ["x", "w"], ["y"])
    return model([conv], {"x": ["n", 3, 8, 8]}, weights={"w": weight})


def truncated(folder: Path) -> bytes:
    return network(folder).SerializeToString()[:-300]


def unsupported(folder: Path) -> onnx.ModelProto:
    nodes = [
        node("NonZero", ["x"], ["a"]),
        node("Einsum", ["x"], ["b"], equation="ij->ji"),
        node("Einsum", ["b"], ["y"], equation="ij->ji"),
    ]
    return model(nodes, {"x": [2, 3]}, outputs=["y", "a"])


def outside(folder: Path) -> onnx.ModelProto:
    (folder.parent / "secret.bin").write_bytes(bytes(16))
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"")
    external_data_helper.set_external_data(weight, location="../secret.bin", length=16)
    weight.data_location = TensorProto.EXTERNAL
    made = model([node("Add", ["x", "w"], ["y"])], {"x": [4]})
    made.graph.initializer.append(weight)
    return made


BAD: dict[str, Bad] = {
    "cycle": Bad(cycle, "'Add_a' -> 'Relu_b' -> 'Add_a' form a cycle"),
    "truncated file": Bad(truncated, "is truncated"),
    "text": Bad(lambda folder: b"not a model\n" * 99, "net.onnx: "),
    "unbound shape": Bad(network, "bind them with --shape x=1,3,8,8"),
    "shape of no input": Bad(network, "is no input of the network", ("--shape", "z=1,3,8,8")),
    "contradicting shape": Bad(network, "the model fixes n,3,8,8", ("--shape", "x=1,4,8,8")),
    "rank of a shape": Bad(network, "the model fixes n,3,8,8", ("--shape", "x=1,3,8")),
    "unsupported op": Bad(
        unsupported, "  Einsum: 2 x, first 'Einsum_b'\n  NonZero: 1 x, first 'NonZero_a'", lines=3
    ),
    "external data outside": Bad(outside, "'../secret.bin' leaves the model's folder"),
}

COMMANDS = (
    ("tasks", ()),
    ("tune", ("--out", "out", "--trials", "0", "--no-prefect")),
)


@pytest.mark.parametrize(("command", "options"), COMMANDS, ids=[name for name, _ in COMMANDS])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_model_ends_with_2_and_leaves_nothing(
    name: str,
    command: str,
    options: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    bad, folder = BAD[name], tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    made = bad.write(folder)
    data = made if isinstance(made, bytes) else made.SerializeToString()
    (folder / "net.onnx").write_bytes(data)

    assert run_command([command, "net.onnx", *options, *bad.options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("retune: ")
    assert bad.message in printed.err
    assert printed.err.count("\n") == bad.lines
    assert [path.name for path in folder.iterdir()] == ["net.onnx"]
    assert not (tmp_path / "records").exists()
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert all(path.suffix == ".lock" and not path.stat().st_size for path in left), left


def test_a_file_that_onnxruntime_needs_later_is_checked_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    missing = tmp_path / "none.onnx"
    assert run_command(["tune", str(missing), "--out", str(tmp_path / "out")]) == 2
    assert "expected an ONNX file, zoo:NAME or light:NAME, got no file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.device
@pytest.mark.parametrize("trials", ["0", "8"])
def test_types_that_the_device_lacks_are_refused_before_anything_is_measured(
    trials: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    path, out = tmp_path / "half.onnx", tmp_path / "out"
    half = model([node("Relu", ["x"], ["y"])], {"x": [4]}, element=TensorProto.FLOAT16)
    onnx.save(half, path)
    options = ["--out", str(out), "--trials", trials, "--no-prefect"]
    assert run_command(["tune", str(path), *options]) == 2
    *_, error = capsys.readouterr().err.splitlines()
    assert error.startswith("retune: half: value 'x' is float16[4]; expected types that pocl")
    assert not out.exists()
    assert not (tmp_path / "records").exists()
