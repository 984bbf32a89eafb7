"""`python -m tests.kills.night FOLDER`: a night of two lanes, which ends the same however it went.

Two simulated boards tune a network each at the same time, by the chain of every run, into one
store. They measure so many trials, not for so many minutes: what is decided follows from those.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from retune.bundle.format import program_key
from retune.nightly.config import NightlyConfig, load_config
from retune.nightly.lanes import MemberTurn, run_lanes
from retune.nightly.members import processes_of_this_machine, result_of, stage_plan
from retune.nightly.night import MemberResult, read_night, run_night
from retune.pipeline.calling import InProcess
from retune.pipeline.chain import run_chain
from retune.pipeline.request import TuneRequest
from retune.records.store import RecordStore

BOARDS = ("one", "two")
NIGHT = "night"
BEGUN = "begun"
"""What the process prints once all is imported, and the night begins."""
TRIALS = 12
_COLUMNS = ["device", "task_key", "config_hash", "status", "phase", "median_us"]


def config_in(folder: Path) -> NightlyConfig:
    """The night's configuration, written into the folder."""
    lines = ['out = "fleet"', 'records = "records"', 'work = "work"', "minutes = 60"]
    lines.append('[[model]]\nmodel = "zoo:mlp"')
    for board in BOARDS:
        (folder / f"{board}.toml").write_text(f'name = "{board}"\nbase = "pocl"\n')
        lines.append(f'[[device]]\nname = "{board}"\ndevice = "sim:{board}.toml"')
    path = folder / "fleet.toml"
    path.write_text("\n".join(lines))
    return load_config(path)


def requests(config: NightlyConfig) -> list[TuneRequest]:
    """What is tuned, with its number of trials."""
    return [_counted(config.request(*p, minutes=60, campaign=NIGHT)) for p in config.pairs]


def _counted(request: TuneRequest) -> TuneRequest:
    return replace(request, minutes=None, trials=TRIALS)


def decided(folder: Path) -> object:
    """The program of each bundle, and all trials, each with its outcome."""
    config = config_in(folder)
    bundles = [program_key(Path(r.out) / "module") for r in requests(config)]
    rows = RecordStore(Path(config.records)).table({}, _COLUMNS)
    columns = (rows[name].to_pylist() for name in _COLUMNS)
    return bundles, sorted(zip(*columns, strict=True), key=repr)


def trials_on_disk(folder: Path) -> dict[str, tuple[object, ...]]:
    """Record -> board, task and schedule of each trial of a search that is on disk."""
    store, names = folder / "records", ["record_id", "device", "task_key", "config_hash", "phase"]
    if not store.is_dir():
        return {}
    table = RecordStore(store).table({"phase": "search"}, [*names, "status"])
    rows = zip(*(table[name].to_pylist() for name in (*names, "status")), strict=True)
    return {row[0]: row[1:-1] for row in rows if row[-1] != "skipped"}


def clock() -> datetime:
    return datetime.now(UTC)


def main() -> None:
    """Runs the night, or continues it. Exit code 1 if a network was not tuned."""
    config = config_in(Path(sys.argv[1]))
    print(BEGUN, flush=True)

    def tune(turn: MemberTurn) -> MemberResult:
        request = config.request(*config.pair(turn.key), minutes=60, campaign=NIGHT)
        return result_of(run_chain(_counted(request), InProcess()))

    lanes, work = stage_plan(config.file, NIGHT).lanes, Path(config.work)
    with run_night(work, NIGHT, processes_of_this_machine(), clock) as running:
        running.plan({member.key: 60.0 for lane in lanes for member in lane.members})
        run_lanes(lanes, running, tune, None, clock)
        running.end()
    state = read_night(work, NIGHT)
    assert state is not None
    failed = [member for member in state.members if member.result is None]
    for member in failed:
        print(member, file=sys.stderr)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
