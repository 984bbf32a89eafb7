"""Trials a second of a run on one simulated board, and on several equal ones that share it.

    python -m benchmarks.fleet --measure 0.2 --trials 96 --boards 2 zoo:kws

A board's measurement takes a fixed time in which nothing is computed, as on a device of its own; so
what is left of the boards' number is what this machine needs for each trial: proposing, printing
kernels, writing records. Each row starts from an empty store.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.command import parser_of
from retune.api import extract_tasks, import_network
from retune.device.opening import open_runner
from retune.records.store import RecordStore
from retune.search.session import RunSettings, Session, search_all
from retune.search.task import Task
from retune.search.tuners import TUNERS


def boards(folder: Path, count: int, measure_s: float) -> str:
    """The name of so many boards of one kind, whose files lie in the folder."""
    names: list[str] = []
    for number in range(count):
        path = folder / f"board{number}.toml"
        text = f'name = "board{number}"\nmodel = "fleet"\nmeasure_s = {measure_s}\n'
        path.write_text(text, encoding="utf-8")
        names.append(f"sim:{path}")
    return ",".join(names)


def rate(tasks: Sequence[Task], count: int, measure_s: float, settings: RunSettings) -> float:
    """Trials a second of a run on so many boards, once its spaces are made."""
    with TemporaryDirectory() as folder:
        runner = open_runner(boards(Path(folder), count, measure_s))
        session = Session(tasks, runner, RecordStore(Path(folder) / "records"), settings)
        start = time.perf_counter()
        search_all(session)
        seconds = time.perf_counter() - start
        runner.close()
    return session.trials / seconds


def main() -> None:
    """Prints the rate of one board and of several, beside what the boards allow."""
    parser = parser_of(__doc__)
    parser.add_argument("network", nargs="?", default="zoo:kws")
    parser.add_argument("--measure", type=float, default=0.2, help="seconds of a measurement")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--boards", type=int, default=2)
    parser.add_argument("--tuner", default="random", choices=sorted(TUNERS))
    options = parser.parse_args()
    tasks = extract_tasks(import_network(options.network))
    settings = RunSettings(
        run_id="fleet", model=options.network, layout="NHWC", tuner=options.tuner,
        trials=options.trials,
    )  # fmt: skip
    one, several = (rate(tasks, count, options.measure, settings) for count in (1, options.boards))
    print(f"1 board:  {one:6.2f} trials a second, of {1 / options.measure:.2f}")
    most = options.boards / options.measure
    print(f"{options.boards} boards: {several:6.2f} trials a second, of {most:.2f}")
    print(f"{several / one:.2f} times as fast")


if __name__ == "__main__":
    main()
