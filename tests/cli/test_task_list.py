"""The tuning tasks of a known network, as `retune tasks` prints them."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from retune.cli.main import run_command
from retune.pipeline import network as importing
from tests.support.device_networks import Net, Networks, network, write
from tests.support.sized_networks import model_of

EXPECTED = Path(__file__).parents[1] / "expected" / "mobilenet_nhwc_tasks.json"
TEN = EXPECTED.with_name("resnet18_vta_tasks.json")
WINDOW = ("strides", "padding", "dilation", "layout")
CASES: Networks = {}
FIRST = {
    "inputs": [[1, 224, 224, 3], [3, 3, 3, 32], [1, 1, 1, 32]],
    "epilogue": ["T_add", "T_relu"],
}
"""The first layer once its batch norm is folded too; the listing keeps its scale and shift."""


def expected_tasks() -> list[dict[str, object]]:
    tasks = json.loads(EXPECTED.read_text(encoding="utf-8"))["tasks"]
    return [{**t, **FIRST} if "T_multiply" in t["epilogue"] else t for t in tasks]


def test_mobilenet_has_exactly_the_22_known_tasks(capsys: pytest.CaptureFixture[str]):
    assert run_command(["tasks", "zoo:mobilenet", "--layout", "NHWC", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    wanted = expected_tasks()
    found = [{key: task[key] for key in wanted[0]} for task in printed]
    assert len(found) == len(wanted) == 22
    assert sorted(map(str, found)) == sorted(map(str, wanted))
    assert sum(task["weight"] for task in printed) == 30
    for task in printed:
        assert "PLACEHOLDER" in task["expression"]
        assert task["flops"] > 0


@pytest.mark.parametrize("layout", ["auto", "NCHW16c"])
def test_tasks_say_in_which_order_they_are_written_where_measuring_decides(
    layout: str, capsys: pytest.CaptureFixture[str]
):
    assert run_command(["tasks", "zoo:mlp", "--layout", layout, "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out), "what is printed for programs is whole"
    assert told.err.startswith(f"retune: --layout {layout}: tasks are written in NHWC")
    assert "`retune tune --layout" in told.err
    assert run_command(["tasks", "zoo:mlp", "--layout", "NHWC"]) == 0
    assert not capsys.readouterr().err


def test_tasks_of_ranges_are_those_at_the_sizes_that_are_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Of shapes, and of values of inputs."""
    path = tmp_path / "top.onnx"
    text = "(float[n, 8] x, int64[1] k) => (float[n, p] y, int64[n, p] z) { f = Softmax(x)"
    onnx.save(model_of(f"{text} y, z = TopK(f, k) }}"), path)
    command = ["tasks", str(path), "--shape", "n=1,4", "--value", "k=2..3"]
    assert run_command([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    sizes = [{"k": k, "n": n} for k in (2, 3) for n in (1, 4)]
    first = [task for task in found if task["op"] == "softmax"]
    assert [(task["sizes"], task["output"]) for task in first] == [
        (values, [values["n"], 8]) for values in sizes
    ]
    assert run_command(command) == 0
    text = capsys.readouterr().out
    assert text.startswith("at k=2, n=1:\n") and f"in one run of {path} at k=3, n=4\n" in text


def test_what_is_wrong_at_one_size_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "fixed.onnx"
    onnx.save(model_of("(float[2, 8] x) => (float[2, 8] y) { y = Softmax(x) }"), path)
    assert run_command(["tasks", str(path), "--shape", "x=2..3,8"]) == 2
    assert "at x_0=3: input 'x': the shape given is 3,8" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_tasks_are_printed_as_tensor_expressions(layout: str, capsys: pytest.CaptureFixture[str]):
    assert run_command(["tasks", "zoo:mlp", "--layout", layout]) == 0
    text = capsys.readouterr().out
    assert "T_dense(i, j) += " in text
    assert text.rstrip().endswith("in one run of zoo:mlp")


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert run_command(["tasks", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_resnet18_has_the_ten_tasks_of_autotvm_for_vta(capsys: pytest.CaptureFixture[str]):
    wanted = json.loads(TEN.read_text(encoding="utf-8"))["tasks"]
    asked = ("zoo:resnet18_v1", "--device", "vta-sim", "--quantize", "power2")
    found = [
        {"data": task["inputs"][0], "kernel": task["inputs"][1], **{n: task[n] for n in WINDOW}}
        for task in listed(capsys, *asked)
    ]
    assert sorted(map(str, found)) == sorted(
        str({name: task[name] for name in ("data", "kernel", *WINDOW)}) for task in wanted
    )


def test_tasks_of_an_accelerator_are_packed_where_it_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    network = str(write("stages", tmp_path, among=CASES))
    asked = (network, "--device", "vta-sim", "--quantize", "power2")

    def heights(*options: str) -> list[int]:
        found = listed(capsys, *asked, *options)
        assert {task["layout"] for task in found} == {"NCHW1n16c"}
        return sorted(task["inputs"][0][2] for task in found)

    assert heights() == [8]
    assert heights("--pack-start", "conv2d") == [8, 16]
    assert heights("--pack-start", "conv2d", "--pack-stop", "max_pool2d") == [16]


@network(among=CASES)
def stages(n: Net) -> tuple[str, ...]:
    """Two convolutions on either side of a pool."""
    x = n.input(1, 16, 16, 16)
    for _ in range(2):
        x = n("Relu", n.conv(x, 16, 16))
    x = n("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for _ in range(2):
        x = n("Relu", n.conv(x, 16, 16))
    return (n("Flatten", n("GlobalAveragePool", x)),)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--quantize", "power2"], "--quantize power2: expected --device beside it, got none"),
        (["--pack-start", "relu"], "expected no pack_start and pack_stop, as nothing is packed"),
        (["--device", "vta-sim"], "expected quantize power2, got none"),
        (
            ["--device", "vta-sim", "--quantize", "power2", "--pack-stop", "softmax"],
            "expected a part from max_pool2d to softmax to pack for the accelerator",
        ),
    ],
)
def test_options_that_do_not_go_together_are_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    assert run_command(["tasks", str(write("stages", tmp_path, among=CASES)), *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_large_network_says_what_its_import_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(importing, "_MANY_NODES", 3)
    importing._import.cache_clear()
    assert run_command(["tasks", "zoo:mlp", "--layout", "NCHW", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)
    assert "nodes are optimized and cut into tasks" in printed.err
