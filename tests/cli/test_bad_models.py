"""A model that cannot be used: one clear error, exit code 2, and nothing half-written."""

import shlex
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper

import retune.prefect.launch
from retune.cli.main import run_command
from tests.support.networks import model, node, normal


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


def inputs(folder: Path) -> onnx.ModelProto:
    nodes = [node("Add", ["ids", "mask"], ["a"]), node("Relu", ["an image"], ["y"])]
    dims = ["batch", "length"]
    return model(
        nodes,
        {"ids": dims, "mask": dims, "an image": ["batch", 3, "height", "width"]},
        outputs=["a", "y"],
    )


def truncated(folder: Path) -> bytes:
    return network(folder).SerializeToString()[:-300]


def unsupported(folder: Path) -> onnx.ModelProto:
    nodes = [
        node("RandomNormalLike", ["x"], ["a"]),
        node("Own", ["x"], ["b"], domain="com.example"),
        node("Own", ["b"], ["y"], domain="com.example"),
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
    "unbound shape": Bad(network, "{command} --shape x=1,3,8,8", lines=2),
    "unbound shapes": Bad(
        inputs, "{command} --shape ids=1,128 --shape 'an image=1,3,224,224'", lines=2
    ),
    "shape of no input": Bad(network, "is not an input of the network", ("--shape", "z=1,3,8,8")),
    "contradicting shape": Bad(network, "the model fixes n,3,8,8", ("--shape", "x=1,4,8,8")),
    "rank of a shape": Bad(network, "the model fixes n,3,8,8", ("--shape", "x=1,3,8")),
    "unsupported op": Bad(
        unsupported,
        "  RandomNormalLike: 1 x, first 'RandomNormalLike_a'\n"
        "  com.example::Own: 2 x, first 'Own_b'",
        lines=3,
    ),
    "external data outside": Bad(outside, "'../secret.bin' leaves the model's folder"),
}

COMMANDS = (
    ("tasks", ()),
    ("tune", ("--out", "out", "--trials", "0", "--no-prefect")),
    ("tune", ("--out", "out", "--trials", "0")),
)
IDS = ("tasks", "tune", "tune with a flow")


@contextmanager
def no_server() -> Generator[str]:
    """In the place of a Prefect server: bad input is answered before one is started."""
    pytest.fail("a server was started")
    yield ""


@pytest.mark.parametrize(("command", "options"), COMMANDS, ids=IDS)
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
    monkeypatch.setattr(retune.prefect.launch, "prefect_api", no_server)
    made = bad.write(folder)
    data = made if isinstance(made, bytes) else made.SerializeToString()
    (folder / "net.onnx").write_bytes(data)

    arguments = [command, "net.onnx", *options, *bad.options]
    assert run_command(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("retune: ")
    assert bad.message.replace("{command}", shlex.join(["retune", *arguments])) in printed.err
    assert printed.err.count("\n") == bad.lines
    assert [path.name for path in folder.iterdir()] == ["net.onnx"]
    assert not (tmp_path / "records").exists()
    left = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert all(path.suffix == ".lock" and not path.stat().st_size for path in left), left


def test_a_missing_file_is_found_before_anything_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retune.prefect.launch, "prefect_api", no_server)
    missing = tmp_path / "none.onnx"
    assert run_command(["tune", str(missing), "--out", str(tmp_path / "out")]) == 2
    assert "expected an ONNX file, zoo:NAME or light:NAME, got no file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.device
def test_an_unknown_device_is_refused_before_a_server_is_started(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retune.prefect.launch, "prefect_api", no_server)
    path, out = tmp_path / "net.onnx", tmp_path / "out"
    onnx.save(model([node("Relu", ["x"], ["y"])], {"x": [4]}), path)
    assert run_command(["tune", str(path), "--out", str(out), "--device", "abacus"]) == 2
    assert "device 'abacus' is not known; found here: pocl" in capsys.readouterr().err
    assert not out.exists()
