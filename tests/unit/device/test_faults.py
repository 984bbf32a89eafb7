"""Which measurement a script of faults hits: by number, by task, by share, over all processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from retune.core.errors import InputError
from retune.device.simulated.board import read_board
from retune.device.simulated.faults import Claimed, Script, Turn
from retune.device.simulated.simulation import program_key
from tests.support.boards import board, fault, run

ELSEWHERE = """
import sys
from pathlib import Path
from retune.device.simulated.board import read_board
from retune.device.simulated.faults import Script, Turn
from tests.support.boards import run
turn = Turn(runs=(run(1),), spared=False)
script = Script(read_board(Path(sys.argv[1])))
for _ in range(int(sys.argv[2])):
    script.claim([turn])
"""


def turn(number: int, *, spared: bool = False) -> Turn:
    return Turn(runs=(run(number),), spared=spared)


def kinds(claimed: Claimed) -> list[str | None]:
    return [found and found.kind for found in claimed.faults]


def script(folder: Path, *faults: str) -> Script:
    return Script(board(folder, "".join(faults)))


def numbers(count: int, first: int = 0) -> Sequence[Turn]:
    return [turn(number) for number in range(first, first + count)]


def test_a_number_is_counted_over_batches_and_scripts(tmp_path: Path):
    faults = fault("hang", at=3), fault("crash", at=5, times=2)
    assert kinds(script(tmp_path, *faults).claim(numbers(2))) == [None, None]
    again = script(tmp_path, *faults)
    assert kinds(again.claim(numbers(3))) == ["hang", None, "crash"]
    assert kinds(again.claim(numbers(3))) == ["crash", None, None]


@pytest.mark.process
def test_a_number_is_counted_over_processes_that_measure_at_once(tmp_path: Path):
    here = board(tmp_path, fault("hang", at=31))
    others = [
        subprocess.Popen(
            [sys.executable, "-c", ELSEWHERE, str(here.path), "15"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(item for item in sys.path if item)},
            cwd=Path(__file__).parents[3],
        )
        for _ in range(2)
    ]
    assert [other.wait() for other in others] == [0, 0]
    assert kinds(Script(here).claim(numbers(2))) == ["hang", None]


def test_a_task_is_hit_once_or_so_often_and_its_first_candidate_never(tmp_path: Path):
    conv, dense = "conv2d_[1-9]*", "dense*"
    found = script(
        tmp_path,
        fault("crash", task=dense),
        fault("hang", task=conv),
        fault("slow", task=conv, times=2),
    )
    first = [turn(1, spared=True), turn(0)]
    assert kinds(found.claim(first)) == [None, None]
    assert kinds(found.claim(numbers(4, first=1))) == ["hang", "slow", "slow", None]


def test_a_share_hits_equal_candidates_alike(tmp_path: Path):
    found = script(tmp_path, fault("crash", share=0.25))
    first, second = kinds(found.claim(numbers(400))), kinds(found.claim(numbers(400)))
    assert first == second
    assert 60 <= first.count("crash") <= 140
    (tmp_path / "other").mkdir()
    assert (
        kinds(script(tmp_path / "other", fault("crash", share=0.25)).claim(numbers(400))) == first
    )


def test_two_shares_hit_different_candidates_and_may_be_limited(tmp_path: Path):
    found = script(tmp_path, fault("crash", share=0.5, times=3), fault("hang", share=0.5))
    hit = kinds(found.claim(numbers(100)))
    assert hit.count("crash") == 3
    assert 30 <= hit.count("hang") <= 70


def test_the_first_fault_in_order_hits_and_equal_ones_hit_one_after_the_other(tmp_path: Path):
    found = script(tmp_path, *[fault("hang", task="conv2d*")] * 2, fault("crash", at=1))
    assert kinds(found.claim(numbers(4))) == ["hang", "hang", None, None]


def test_a_lost_driver_ends_the_batch_and_the_count_goes_on_behind_it(tmp_path: Path):
    found = script(tmp_path, fault("lost", at=2), fault("hang", at=3))
    assert kinds(found.claim(numbers(5))) == [None, "lost"]
    assert kinds(found.claim(numbers(2))) == ["hang", None]


def test_candidates_that_are_wrong_in_bundles_are_remembered(tmp_path: Path):
    found = script(tmp_path, fault("wrong_bundle", at=2))
    assert found.offending == frozenset()
    offending = found.claim(numbers(3)).offending
    assert offending == {program_key([run(1)])}
    assert Script(read_board(tmp_path / "board.toml")).offending == offending


def test_faults_that_are_added_to_a_script_leave_the_others_spent(tmp_path: Path):
    old = fault("hang", task="conv2d*")
    script(tmp_path, old).claim(numbers(1))
    assert kinds(script(tmp_path, fault("crash", at=9), old).claim(numbers(2))) == [None, None]


def test_a_damaged_count_is_an_error_that_says_what_to_do(tmp_path: Path):
    found = script(tmp_path)
    (tmp_path / "board.toml.state").write_text("{}")
    with pytest.raises(InputError, match=r"board\.toml\.state: .* remove it to begin anew"):
        found.claim(numbers(1))
    (tmp_path / "board.toml.state").unlink()
    (tmp_path / "board.toml.lock").unlink(missing_ok=True)
    (tmp_path / "board.toml.lock").mkdir()
    with pytest.raises(InputError, match="expected a folder that can be written to beside"):
        found.claim(numbers(1))
