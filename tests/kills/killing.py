"""The night, killed by SIGKILL at random moments until it is over, and what is wrong afterwards."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.kills.night import BEGUN, decided, trials_on_disk
from tests.support.processes import wait_until

ROOT = Path(__file__).resolve().parents[2]
GONE_S = 60.0
"""By then no process of a killed night is left."""
LONGEST_S = 1800.0
"""A night that takes longer hangs."""
MOST_KILLS = 12
"""Of a night, which then goes on to its end: on a machine that became busier it might not get
through its longest stage before the next kill."""


@dataclass
class Killed:
    """What became of nights that were killed."""

    kills: int = 0
    nights: int = 0
    """That came to their end."""
    defects: list[str] = field(default_factory=list[str])


class Undisturbed:
    """A night that nobody killed: how long it takes once it has begun, and what it decides."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        process = start(folder)
        begin = time.monotonic()
        if process.wait(timeout=LONGEST_S):
            raise RuntimeError((folder / "log.txt").read_text())
        self.seconds = time.monotonic() - begin
        self.decided = decided(folder)


def start(folder: Path) -> subprocess.Popen[bytes]:
    """The night of that folder, begun or continued."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    environment |= {"PYTHONPATH": f"{ROOT / 'lib'}:{ROOT}", "PYTHONFAULTHANDLER": "1"}
    command = [sys.executable, "-m", "tests.kills.night", str(folder.resolve())]
    with (folder / "log.txt").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log
        )
    assert process.stdout is not None
    if process.stdout.readline().decode().strip() != BEGUN:
        raise RuntimeError((folder / "log.txt").read_text())
    return process


def kill_nights(undisturbed: Undisturbed, kills: int, folder: Path, seed: int) -> Iterator[Killed]:
    """After each kill, and each night that came to its end, what was found so far."""
    rng, found, whole_s = random.Random(seed), Killed(), undisturbed.seconds
    while found.kills < kills:
        own, ran_s = folder / f"night-{found.nights}", 0.0
        own.mkdir()
        for _ in range(min(MOST_KILLS, kills - found.kills)):
            left_s = max(whole_s - ran_s, whole_s / MOST_KILLS)
            delay_s = rng.uniform(0, left_s)
            if (ended_s := _killed(own, delay_s, found)) is not None:
                whole_s = whole_s if ran_s else ended_s  # the machine has become less busy
                break
            ran_s += delay_s
            yield found
        else:
            if code := start(own).wait(timeout=LONGEST_S):
                found.defects.append(_failed(own, code))
        found.nights += 1
        if decided(own) != undisturbed.decided:
            found.defects.append(f"{own}: it decided other than a night that nobody killed")
        yield found


def _killed(folder: Path, delay_s: float, found: Killed) -> float | None:
    """Kills the night that long after it has begun; how long it took if it ended before."""
    process = start(folder)
    begin = time.monotonic()
    try:
        code = process.wait(timeout=delay_s)
    except subprocess.TimeoutExpired:
        code = None
    if code is not None:
        if code:
            found.defects.append(_failed(folder, code))
        return time.monotonic() - begin
    children, before = list(descendants(process.pid).items()), trials_on_disk(folder)
    process.send_signal(signal.SIGKILL)
    process.wait()
    found.kills += 1
    where = f"{folder}, kill {found.kills}, after {delay_s:.2f} s"
    if not wait_until(lambda: not any(map(lives, children)), GONE_S):
        left = [pid for pid, begun in children if lives((pid, begun))]
        found.defects.append(f"{where}: processes are left: {left}")
    after = trials_on_disk(folder)
    if lost := before.keys() - after.keys():
        found.defects.append(f"{where}: {len(lost)} records are lost")
    if doubled := len(after) - len(set(after.values())):
        found.defects.append(f"{where}: {doubled} trials were measured twice")
    return None


def _failed(folder: Path, code: int) -> str:
    said = (folder / "log.txt").read_text()[-2000:]
    return f"{folder}: it failed with exit code {code}: {said}"


def descendants(pid: int) -> dict[int, str]:
    """The processes that it started, and those that these started: each with when it began."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        if (state := _state(int(path.name))) is not None:
            parents[int(path.name)] = int(state[1])
    found, wanted = set[int](), {pid}
    while wanted:
        wanted = {child for child, parent in parents.items() if parent in wanted} - found
        found |= wanted
    states = {child: _state(child) for child in found}
    return {child: state[19] for child, state in states.items() if state is not None}


def lives(process: tuple[int, str]) -> bool:
    """Whether that process is still there: its number alone may be another one's by now."""
    state = _state(process[0])
    return state is not None and state[0] != "Z" and state[19] == process[1]


def _state(pid: int) -> list[str] | None:
    """What the system says of a process from its state on (proc(5), stat), if it is there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
