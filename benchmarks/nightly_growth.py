"""What a night adds to Prefect's database and to the disk, for each member, and what pruning frees.

    python -m benchmarks.nightly_growth --members 4 --fleet 150

Real nights are run on a private server of its own: a small network under several names on a
simulated board, with the real flows. What one member adds is the difference between nights of many
members and of one, over the number of members more; a fleet's growth is that times its members.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.command import parser_of
from retune.prefect.server import DATABASE

BOARD = 'name = "board"\n'
FLEET = 'out = "out"\nrecords = "records"\nwork = "work"\nminutes = {minutes}\n'
MODEL = '[[model]]\nmodel = "zoo:mlp"\nname = "mlp{number}"\n'
DEVICE = '[[device]]\nname = "board"\ndevice = "sim:board.toml"\n[retrain]\nevery = 0\n'
MINUTES = 0.05
"""Of measuring, for each member."""
TABLES = (
    *("flow_run", "flow_run_state", "task_run", "task_run_state", "artifact", "log"),
    *("events", "event_resources"),
)


def main() -> None:
    """Prints rows and bytes of a member, and of a fleet; then the same after pruning."""
    parser = parser_of(__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--fleet", type=int, default=150)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "board.toml").write_text(BOARD)
        counts = [grown(folder, night, members) for night, members in nights(given.members)]
        _, one, many = counts
        print(f"{'':16}{'a member':>12}{f'{given.fleet} members':>16}")
        for key in many:
            each = (many[key] - one[key]) / (given.members - 1)
            print(f"{key:16}{each:12,.1f}{given.fleet * each + one[key] - each:16,.0f}")
        before, began = size(folder), time.perf_counter()
        pruned = json.loads(command(folder, "prune", "--keep", "1", "--json"))
        print(f"prune --keep 1 took {time.perf_counter() - began:.1f} s: {pruned}")
        print(f"bytes {before} before, {size(folder)} after pruning and VACUUM")


def nights(members: int) -> tuple[tuple[str, int], ...]:
    """Name and members; the first one fills caches and makes the first artifacts."""
    return ("first", members), ("one", 1), ("many", members)


def grown(folder: Path, night: str, members: int) -> Mapping[str, int]:
    """What a night of so many members adds, in rows of each table and in bytes."""
    models = "".join(MODEL.format(number=number) for number in range(members))
    text = FLEET.format(minutes=MINUTES * members) + models + DEVICE
    (folder / "fleet.toml").write_text(text)
    before = rows(folder) | size(folder)
    command(folder, "run", "--campaign", night)
    after = rows(folder) | size(folder)
    return {key: after[key] - before[key] for key in after}


def command(folder: Path, verb: str, *arguments: str) -> str:
    """What the command prints."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "retune.cli.main", "nightly", verb),
            *(*arguments, "--config", "fleet.toml"),
        ],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout


def rows(folder: Path) -> dict[str, int]:
    """How many there are in each table."""
    path = folder / ".retune" / "prefect" / DATABASE
    if not path.is_file():
        return dict.fromkeys(TABLES, 0)
    with sqlite3.connect(path) as database:
        counted = {t: database.execute(f"SELECT count(*) FROM {t}").fetchone() for t in TABLES}
    return {table: count for table, (count,) in counted.items()}


def size(folder: Path) -> dict[str, int]:
    """Bytes of the database without free pages, and of the work folder."""
    path, used = folder / ".retune" / "prefect" / DATABASE, 0
    if path.is_file():
        with sqlite3.connect(path) as database:
            database.execute("VACUUM")
            (pages,) = database.execute("PRAGMA page_count").fetchone()
            (page,) = database.execute("PRAGMA page_size").fetchone()
        used = pages * page
    work = (file.lstat().st_size for file in (folder / "work").rglob("*") if file.is_file())
    return {"database bytes": used, "work bytes": sum(work)}


if __name__ == "__main__":
    main()
