"""Each night times what is published beside two controls, and the planted changes are found."""

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest

from retune.bundle.format import program_key, read_bundle, write_bundle
from retune.bundle.plan import NetworkPlan
from retune.bundle.runtime.simulated import simulated_times
from retune.bundle.verify.bench import Benchmark, BenchOptions
from retune.bundle.versions import MODULE, REPORT, Version, add_version, promote
from retune.core.errors import DeviceError
from retune.core.target import GENERIC_CPU, DeviceSpec
from retune.device.simulated.board import read_board
from retune.nightly import control
from retune.nightly.control import control_of, stage_champion
from retune.nightly.verdicts import judge
from retune.pipeline.request import TuneRequest
from retune.records.nights import NightRow, read_nights
from tests.support.boards import written
from tests.support.bundle_fixtures import ADD, SCALE, make_plan
from tests.support.programs import kernels_of

HISTORY = 16
NOISE = "noise = 0.01\nwander = 0.003\n"


def renamed() -> NetworkPlan:
    """Another network: its kernels have other names."""
    names = {"add": "plus", "scale": "times"}
    plan = make_plan()
    texts = {"plus": ADD.replace("add(", "plus("), "times": SCALE.replace("scale(", "times(")}
    launches = tuple(replace(each, kernel=names[each.kernel]) for each in plan.launches)
    return replace(plan, name="control", kernels=kernels_of(texts), launches=launches)


class Board:
    """A simulated board whose file the test writes anew for each night."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.compiled = 0
        self.broken = ""
        self.options: BenchOptions | None = None
        self.request = TuneRequest(
            "zoo:mlp", str(folder / "out"), records=str(folder / "records"),
            work=str(folder / "work"), device=f"sim:{folder / 'board.toml'}", trials=0,
        )  # fmt: skip
        self.be("")

    def be(self, text: str) -> None:
        written(self.folder, text)

    def spec(self, name: str) -> DeviceSpec:
        return read_board(Path(name.removeprefix("sim:"))).described(GENERIC_CPU)

    def compile(self, request: TuneRequest, spec: DeviceSpec) -> Path:
        self.compiled += 1
        return write_bundle(renamed(), self.folder / "compiled")

    def publish(self, plan: NetworkPlan) -> None:
        def make(folder: Path) -> Version:
            write_bundle(plan, folder / MODULE)
            (folder / REPORT).write_text("report")
            key = program_key(folder / MODULE)
            return Version(model_key="m", target="t", program=key, verdict="first")

        out = Path(self.request.out)
        promote(out, add_version(out, make).number)

    def night(self, name: str, text: str = "") -> NightRow:
        self.be(text)
        row = NightRow(fleet="fleet", night=name, network="mlp", device="board")
        return stage_champion(self.request, row)

    # -- an examiner --

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compare(
        self, entrants: Mapping[str, Path], *, baseline: str, options: BenchOptions,
        calibration: str,
    ) -> Benchmark:  # fmt: skip
        if self.broken in entrants:
            raise DeviceError("the device was lost")
        plans = {name: read_bundle(bundle) for name, bundle in entrants.items()}
        here = read_board(self.folder / "board.toml")
        return simulated_times(plans, here, baseline=baseline, calibration=calibration)


@pytest.fixture
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Board:
    made = Board(tmp_path)
    monkeypatch.setattr(control, "spec_of", made.spec)
    monkeypatch.setattr(control, "_compiled", made.compile)
    monkeypatch.setattr(control, "open_examiner", lambda _: made)
    return made


def test_the_champion_is_timed_beside_both_controls(board: Board):
    board.publish(make_plan())
    row = board.night("one", "speed = 2.0\n")
    assert row.time_us is not None and row.control_us is not None
    assert row.ratio == pytest.approx(row.time_us / row.control_us)
    assert row.kernel_us == pytest.approx(500.0)
    assert (row.version, row.program) == (1, program_key(Path(board.request.out) / MODULE))
    assert (row.driver, row.host, row.problem) == ("1", "simulated", "")
    assert row.control_program == program_key(control_of(board.request, "board").bundle)
    assert read_nights(board.request.records) == [row]


def test_a_first_night_times_the_controls_alone(board: Board):
    row = board.night("one")
    assert (row.time_us, row.version, row.problem) == (None, None, "no bundle was published before")
    assert row.control_us is not None and row.kernel_us is not None
    assert judge([], row).verdict == ""


def test_the_control_network_is_compiled_once_unless_it_is_damaged(board: Board):
    board.publish(make_plan())
    first, second = board.night("one"), board.night("two", 'driver = "2"\n')
    assert board.compiled == 1
    assert first.control_program == second.control_program
    (control_of(board.request, "board").bundle / "kernels.cl").write_text("corrupted")
    third = board.night("three")
    assert board.compiled == 2 and third.control_program == first.control_program


def test_a_night_that_goes_on_does_not_time_again(board: Board):
    board.publish(make_plan())
    first = board.night("one")
    assert board.night("one", "speed = 0.5\n") == first


def test_a_champion_that_does_not_run_has_no_time(board: Board):
    board.publish(make_plan())
    board.broken = "champion"
    row = board.night("one")
    assert (row.time_us, row.problem) == (None, "version 1: the device was lost")
    assert row.version == 1


def test_a_device_that_is_not_here_has_no_absolute_time(
    board: Board, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(control, "is_absent", lambda _: True)
    row = board.night("one")
    assert row.time_us is None and "is not here: nothing is timed on it" in row.problem
    assert judge([], row).why == row.problem


def test_the_commit_is_that_of_a_checkout(monkeypatch: pytest.MonkeyPatch):
    control._commit.cache_clear()
    found = control._commit()
    control._commit.cache_clear()
    monkeypatch.setattr(control, "__file__", "/proc/self/status")
    assert control._commit() == ""
    control._commit.cache_clear()
    git = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parent,
    )  # fmt: skip
    if git.returncode == 0:
        assert found and git.stdout.startswith(found.removesuffix("-dirty")[:12])


@pytest.fixture
def nights(board: Board) -> list[NightRow]:
    """Quiet nights of a noisy board, judged."""
    board.publish(make_plan())
    found: list[NightRow] = []
    for number in range(HISTORY):
        row = board.night(f"{number:02}", f"{NOISE}seed = {number}\n")
        found.append(judge(found, row))
    return found


PLANTED = {
    "noise": "",
    "real": '[[slower]]\nkernel = "scale"\nfactor = 1.1\n',
    "hardware": "speed = 0.8\n",
    "method": 'driver = "2"\n',
}
"""The verdict -> what the board is like from one night to the next; `benchmarks.verdicts`."""


@pytest.mark.parametrize("verdict", PLANTED)
def test_planted_changes_get_the_right_verdict(board: Board, nights: list[NightRow], verdict: str):
    assert {row.verdict for row in nights} == {"noise"}
    found = [
        judge(nights, board.night(f"{number}", f"{NOISE}seed = {number}\n{PLANTED[verdict]}"))
        for number in range(HISTORY, HISTORY + 4)
    ]
    assert [row.verdict for row in found] == [verdict] * 4
