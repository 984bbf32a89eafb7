"""The tuning tasks of a known network, as `retune tasks` prints them."""

import json
from pathlib import Path

import pytest

from retune.cli.main import run_command

EXPECTED = Path(__file__).parents[1] / "expected" / "mobilenet_nhwc_tasks.json"
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


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_tasks_are_printed_as_tensor_expressions(layout: str, capsys: pytest.CaptureFixture[str]):
    assert run_command(["tasks", "zoo:mlp", "--layout", layout]) == 0
    text = capsys.readouterr().out
    assert "T_dense(i, j) += " in text
    assert text.rstrip().endswith("in one run of zoo:mlp")
