"""Candidates in flight are on disk: one that takes down machine or driver is denied in the end."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from retune.codegen.source import ProgramSource
from retune.core import processes
from retune.core.errors import DeviceError, RecordError
from retune.core.schema import from_json
from retune.core.target import GENERIC_CPU
from retune.device.measure import child as children
from retune.device.measure import lease as leases
from retune.device.measure.child import Child, ChildLostError
from retune.device.measure.journal import InFlight, Journal, TakenDown
from retune.device.measure.lease import abandon, lease
from retune.device.measure.local import LocalRunner
from retune.device.measure.messages import Build, Check, Reply, Request
from retune.device.measure.workload import MeasureOptions
from retune.records.schema import Measurement
from tests.support.echoing import Echo
from tests.support.measure import WORKLOAD, FakeChild, program

GOOD, BAD, OTHER = program("good"), program("bad"), program("other")
BATCH = (GOOD, BAD, OTHER)


class Machine:
    """A machine that goes down when the bad candidate runs; each start has its own boot id."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, dies_in: type = Check
    ) -> None:
        self.folder = folder
        self.boots = 0
        self.dies_in = dies_in
        self.disk = folder.with_name("disk")
        self.seen: list[str] = []
        """Kernels that were checked since the last start."""
        monkeypatch.setenv("RETUNE_JOURNAL", str(folder))
        monkeypatch.setattr(processes, "boot", lambda: f"boot-{self.boots}")

    def measure(self, batch: tuple[ProgramSource, ...] = BATCH) -> list[Measurement] | None:
        """The rows; None if the machine went down. What was on its disk then is there again."""
        self.seen.clear()
        built: dict[int, ProgramSource] = {}
        shutil.rmtree(self.disk, ignore_errors=True)

        def answer(request: Request) -> Reply | Exception | None:
            if isinstance(request, Build):
                built.update(request.jobs)
            jobs = dict(request.jobs) if isinstance(request, Build) else {}
            if isinstance(request, Check):
                jobs = {request.index: built[request.index]}
                self.seen.append(built[request.index].kernels[0].name)
            if isinstance(request, self.dies_in) and BAD in jobs.values():
                shutil.copytree(self.folder, self.disk)
                raise _PowerCut
            return None

        runner = LocalRunner("fake", builders=1, make_child=lambda name: FakeChild(answer))  # type: ignore[arg-type]
        runner.prepare(WORKLOAD)
        try:
            rows = runner.measure("task", batch, MeasureOptions())
        except _PowerCut:
            shutil.rmtree(self.folder)
            self.disk.rename(self.folder)
            self.boots += 1
            return None
        runner.close()
        return rows


class _PowerCut(BaseException):
    """Nothing of the machine goes on."""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "journal", monkeypatch)


def in_flight(folder: Path) -> list[InFlight]:
    return [from_json(InFlight, p.read_text()) for p in folder.glob("in-flight-*")]


def test_a_candidate_is_on_disk_before_it_runs(machine: Machine):
    assert machine.measure() is None
    (entry,) = in_flight(machine.folder)
    assert [each.kernel for each in entry.candidates] == [BAD.key]
    assert entry.candidates[0].id == f"task/{BAD.key}"
    assert entry.boot == "boot-0" and GENERIC_CPU.fingerprint in entry.device


@pytest.mark.parametrize("dies_in", [Check, Build])
def test_a_candidate_that_took_the_machine_down_twice_is_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies_in: type
):
    """In the end the others are measured, and the row of this one says why it is not."""
    machine = Machine(tmp_path / "journal", monkeypatch, dies_in)
    downs = 0
    while (rows := machine.measure()) is None:
        downs += 1
        assert downs <= 2 * len(BATCH), "the machine goes down again and again"
    assert downs == 2
    assert [row.status for row in rows] == ["ok", "crash", "ok"]
    assert "denied: the machine went down while kernel" in rows[1].error
    assert f"measured on {GENERIC_CPU.name}, 2 times" in rows[1].error
    assert "to allow it again" in rows[1].error and "bad" not in machine.seen


def test_one_that_was_with_it_is_measured_alone_and_stays(machine: Machine):
    """A batch is built together: all of it is suspected, and none is denied for another's fault."""
    machine.dies_in = Build
    assert machine.measure((BAD, GOOD)) is None
    rows = machine.measure((GOOD,))
    assert rows is not None and rows[0].ok
    assert machine.measure((BAD, GOOD)) is None
    rows = machine.measure((BAD, GOOD))
    assert rows is not None and [row.status for row in rows] == ["crash", "ok"]


def test_a_denied_candidate_is_allowed_when_the_file_is_deleted(machine: Machine):
    assert machine.measure() is None and machine.measure() is None
    (counts,) = machine.folder.glob("taken-down-*")
    counts.unlink()
    machine.dies_in = Echo  # never
    rows = machine.measure()
    assert rows is not None and [row.status for row in rows] == ["ok"] * 3


def test_a_process_that_was_killed_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The boot is the same: it was not the machine that went down."""
    machine = Machine(tmp_path / "journal", monkeypatch)
    assert machine.measure() is None
    machine.boots = 0
    monkeypatch.setattr("retune.device.measure.journal.is_alive", lambda holder: False)
    machine.dies_in = Echo  # never
    rows = machine.measure()
    assert rows is not None and all(row.ok for row in rows)
    assert not list(machine.folder.glob("taken-down-*")) and not in_flight(machine.folder)


def test_another_machine_that_shares_the_folder_is_left_alone(machine: Machine):
    assert machine.measure() is None
    (path,) = machine.folder.glob("in-flight-*")
    text = path.read_text().replace(processes.this_process().host, "elsewhere")
    path.write_text(text)
    Journal(GENERIC_CPU)
    assert path.read_text() == text


def test_a_damaged_file_of_counts_is_not_taken_for_none(machine: Machine):
    assert machine.measure() is None and machine.measure() is None
    (counts,) = machine.folder.glob("taken-down-*")
    counts.write_text('{"kernels": 7}')
    with pytest.raises(RecordError, match="taken-down"):
        machine.measure()


def test_a_folder_that_refuses_files_costs_a_warning(
    machine: Machine, caplog: pytest.LogCaptureFixture
):
    machine.folder.write_text("a file, and no folder")
    machine.dies_in = Echo  # never
    rows = machine.measure()
    assert rows is not None and all(row.ok for row in rows)
    assert caplog.text.count("name another folder by RETUNE_JOURNAL") == 1


def test_a_candidate_after_which_the_device_does_not_open_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The driver went down, and not the machine: the run ends, and its next start knows."""

    class Dead(FakeChild):
        def ensure(self) -> None:
            if self.closed:
                raise DeviceError("device 'fake' cannot be opened")

    def answer(request: Request) -> Reply | Exception | None:
        return ChildLostError("crash", "died") if isinstance(request, Check) else None

    for _ in range(2):
        runner = LocalRunner("fake", builders=1, make_child=lambda name: Dead(answer))  # type: ignore[arg-type]
        runner.prepare(WORKLOAD)
        with pytest.raises(DeviceError, match="cannot be opened"):
            runner.measure("task", [BAD], MeasureOptions())
    (row,) = runner.measure("task", [BAD], MeasureOptions())
    assert row.status == "crash" and "denied: the driver went down" in row.error


@pytest.fixture
def stuck() -> Iterator[Child]:
    child = Child("any", entry="tests.support.echoing", replies=(Echo,))
    yield child
    child.close()


@pytest.mark.process
def test_a_process_that_cannot_be_killed_is_abandoned(
    stuck: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """As one in uninterruptible sleep: it is not waited for, and its device's lease is marked."""
    stuck.ensure()
    process = stuck._process
    assert process is not None
    with monkeypatch.context() as patch:
        patch.setattr(children, "_KILL_DEADLINE_S", 0.0)
        patch.setattr(process, "kill", lambda: None)
        stuck.close()
    assert stuck.pid is None and "does not let go of it" in caplog.text
    named = pytest.raises(DeviceError, match=f"process {process.pid} on .* cannot be ended")
    with named, lease(GENERIC_CPU):
        pass
    subprocess.Popen.kill(_running(process))
    subprocess.Popen.wait(process)
    with lease(GENERIC_CPU):
        pass


def _running(process: "subprocess.Popen[bytes]") -> "subprocess.Popen[bytes]":
    """The handle, as before it was abandoned."""
    process.returncode = None  # type: ignore[assignment]
    return process


def test_a_candidate_whose_process_is_abandoned_counts(monkeypatch: pytest.MonkeyPatch):
    """Nothing else is measured beside a process that may still compute."""

    class Sleeping(FakeChild):
        def close(self) -> None:
            super().close()
            abandon(self.spec, 1)

    monkeypatch.setattr(leases, "is_alive", lambda holder: True)
    late = ChildLostError("timeout", "no answer within 1 s; killed")

    def answer(request: Request) -> Reply | Exception | None:
        return late if isinstance(request, Check) else None

    runner = LocalRunner("fake", builders=1, make_child=lambda name: Sleeping(answer))  # type: ignore[arg-type]
    runner.prepare(WORKLOAD)
    try:
        with pytest.raises(DeviceError, match="reset the device"):
            runner.measure("task", [BAD], MeasureOptions())
        known = Journal(GENERIC_CPU)._stored()
    finally:
        monkeypatch.setattr(leases, "is_alive", lambda holder: False)
        leases.check_free(GENERIC_CPU)  # the mark is gone, for other tests of this process
    expected = TakenDown(
        kernel=BAD.key, device=known[0].device, times=1, last="", what="the driver"
    )
    assert [replace(item, last="") for item in known] == [expected]
