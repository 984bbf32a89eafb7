"""What a board's file may say, and what is said of one that cannot be used."""

from dataclasses import replace
from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.core.target import GENERIC_CPU
from retune.device.measure.workload import MeasureOptions, measuring_conditions
from retune.device.simulated.board import Fault, SimulatedBoard, Slower, read_board
from tests.support.boards import board, fault, written

WHOLE = """model = "kind"
base = "generic"
driver = "2"
measure_s = 0.02
hang_s = 1
speed = 1.5
noise = 0.1
wander = 0.05
seed = 7
[[slower]]
kernel = "dense_*"
factor = 1.1
""" + "".join(
    [
        fault("hang", at=17),
        fault("crash", share=0.05),
        fault("slow", task="conv2d*", times=2, factor=3.0),
    ]
)


def test_a_file_says_everything_of_a_board(tmp_path: Path):
    assert board(tmp_path, WHOLE, name="a") == SimulatedBoard(
        path=tmp_path / "a.toml",
        name="a",
        model="kind",
        base="generic",
        driver="2",
        measure_s=0.02,
        hang_s=1,
        speed=1.5,
        noise=0.1,
        wander=0.05,
        seed=7,
        slower=(Slower(kernel="dense_*", factor=1.1),),
        fault=(
            Fault(kind="hang", at=17),
            Fault(kind="crash", share=0.05),
            Fault(kind="slow", task="conv2d*", times=2, factor=3.0),
        ),
    )


def test_a_name_is_enough(tmp_path: Path):
    found = board(tmp_path, name="a")
    assert (found.model, found.base, found.fault) == ("a", "pocl", ())


def test_a_board_has_the_limits_of_its_base_and_is_another_device(tmp_path: Path):
    base = replace(GENERIC_CPU, host="this machine", affinity="2 of 2 cores")
    spec = board(tmp_path, name="a").described(base)
    named = {"name", "model", "platform", "driver", "host", "affinity"}
    same = {name for name in base.__slots__ if getattr(spec, name) == getattr(base, name)}
    assert same == set(base.__slots__) - named
    assert spec.fingerprint != base.fingerprint


def test_times_compare_between_boards_of_one_kind_wherever_they_are_simulated(tmp_path: Path):
    def key(name: str, driver: str = "1", host: str = "here") -> str:
        text = f'model = "kind"\ndriver = "{driver}"'
        base = replace(GENERIC_CPU, host=host, affinity=f"all cores of {host}")
        spec = board(tmp_path, text, name=name).described(base)
        return measuring_conditions(spec, MeasureOptions()).key

    assert key("a") == key("b") == key("a", host="there")
    assert key("a") != key("a", driver="2")
    assert key("a") != measuring_conditions(GENERIC_CPU, MeasureOptions()).key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sped = 1.0", "expected keys among name, model, base, .*, got sped; did you mean speed"),
        ("speed = 0", "speed: expected a number above 0, got 0"),
        ("speed = nan", "speed: expected a number above 0, got nan"),
        ("speed = inf", "speed: expected a finite number, got inf"),
        ("speed = true", "speed: expected a number, got true"),
        ('path = "x"', "path: expected"),
        ("measure_s = -1", "measure_s: expected a number of at least 0, got -1"),
        ("noise = 2.0", "noise: expected a number of at most 1, got 2.0"),
        ("driver = 2", "driver: expected a text, got 2"),
        ('model = ""', "model: expected a text that is not empty"),
        ('base = "board"', "name: expected one of its own, got 'board', the base's"),
        ("fault = 3", "fault: expected a list, got 3"),
        ("fault = [3]", "fault 1: expected a table, got 3"),
        ("[[fault]]\nat = 1", "fault 1: kind: expected a value, got nothing"),
        (fault("explode", at=1), "fault 1: kind: expected one of hang, crash.*, got 'explode'"),
        (fault("hang", at=1) + fault("hang"), "fault 2: expected one of at, task, share, got none"),
        (fault("hang", at=1, share=0.5), "fault 1: expected one of .*, got at and share"),
        (fault("hang", at=0), "fault 1: at: expected a whole number of at least 1, got 0"),
        (fault("hang", at=1.5), "fault 1: at: expected a whole number.*, got 1.5"),
        (fault("hang", share=1.5), "fault 1: share: expected a number of at most 1, got 1.5"),
        (
            fault("hang", at=1, times=0),
            "fault 1: times: expected a whole number of at least 1, got 0",
        ),
        (fault("hang", at=1, when=2), "fault 1: expected keys among kind, .*, got when"),
        (fault("hang", at=1, factor=2.0), "factor: expected only where kind is slow, got 'hang'"),
        (fault("wrong_bundle", share=0.1), "share: expected `at` or `task` for wrong_bundle"),
        ("name", "expected TOML, got text that is not: "),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, message: str):
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=message) as caught:
        read_board(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_a_board_without_a_name_or_a_file_is_refused(tmp_path: Path):
    path = tmp_path / "a.toml"
    with pytest.raises(InputError, match=r"a\.toml: expected the TOML file .*, got no file"):
        read_board(path)
    path.write_text("speed = 1.0")
    with pytest.raises(InputError, match=r"a\.toml: name: expected a value, got nothing"):
        read_board(path)


def test_the_example_of_the_documentation_is_a_board(tmp_path: Path):
    page = (Path(__file__).parents[3] / "docs" / "farm.md").read_text(encoding="utf-8")
    (tmp_path / "board.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert [found.kind for found in read_board(tmp_path / "board.toml").fault] == [
        "hang",
        "crash",
        "wrong_bundle",
    ]
