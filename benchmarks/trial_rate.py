"""Measured trials a second, and what bounds them: compiling, running, or searching.

    python -m benchmarks.trial_rate --trials 96 zoo:resnet50_v1

Tunes the convolutions of a network for some trials from an empty store, and with an empty folder
for the kernels that PoCL keeps on disk. A runner that keeps its own clock tells apart the time in
which it had a batch from that in which it had none, as all waited for the search: proposing,
predicting, fitting the model, printing kernels, writing records. Most of that goes on while the
runner builds the batch before.
"""

import os
import threading
import time
from collections.abc import Sequence
from tempfile import TemporaryDirectory

from benchmarks.command import parser_of
from retune.api import extract_tasks, import_network
from retune.codegen.source import ProgramSource
from retune.device.measure.local import LocalRunner
from retune.device.measure.workload import MeasureOptions
from retune.records.schema import Measurement
from retune.records.store import RecordStore
from retune.search.defaults import DEFAULT_TUNER
from retune.search.session import RunSettings, Session, search_all
from retune.search.tuners import TUNERS


class TimedRunner(LocalRunner):
    """Knows how long it had a batch, or several."""

    def __init__(self, device: str) -> None:
        super().__init__(device)
        self.busy_s = 0.0
        self.rows: list[Measurement] = []
        self._count = threading.Lock()
        self._batches = 0
        self._since = 0.0

    def measure(
        self, workload_key: str, candidates: Sequence[ProgramSource], options: MeasureOptions
    ) -> list[Measurement]:
        self._has(+1)
        try:
            found = super().measure(workload_key, candidates, options)
        finally:
            self._has(-1)
        self.rows += found
        return found

    def _has(self, more: int) -> None:
        """So many more batches from now on."""
        with self._count:
            now = time.perf_counter()
            if self._batches:
                self.busy_s += now - self._since
            self._batches, self._since = self._batches + more, now


def main() -> None:
    """Prints the rate and its parts."""
    parser = parser_of(__doc__)
    parser.add_argument("network", nargs="?", default="zoo:resnet50_v1")
    parser.add_argument("--trials", type=int, default=96)
    parser.add_argument("--tuner", default=DEFAULT_TUNER, choices=sorted(TUNERS))
    options = parser.parse_args()
    network = import_network(options.network)
    tasks = [t for t in extract_tasks(network) if "conv2d" in t.op]
    with TemporaryDirectory() as folder, TimedRunner("pocl") as runner:
        os.environ["POCL_CACHE_DIR"] = folder
        runner.spec  # noqa: B018  starts the children: not part of the rate
        start = time.perf_counter()
        settings = RunSettings(
            run_id="rate", model=options.network, layout="NHWC", tuner=options.tuner,
            trials=options.trials,
        )  # fmt: skip
        session = Session(tasks, runner, RecordStore(folder), settings)
        opened = time.perf_counter() - start
        search_all(session)
        total = time.perf_counter() - start
    rows = runner.rows
    build, run = sum(r.build_s for r in rows), sum(r.run_s for r in rows)
    print(f"{len(tasks)} convolution tasks, {len(rows)} trials in {total:.1f} s")
    print(f"{len(rows) / total:.2f} trials a second; {sum(not r.ok for r in rows)} failed")
    print(f"building {build / len(rows):.3f} s a trial, two at once where there are two cores")
    print(f"running  {run / len(rows):.3f} s a trial, alone")
    rest = total - runner.busy_s
    print(
        f"neither: {rest / total:.1%} of the time (spaces and first features {opened:.1f} s, "
        f"search, printing, references and records {rest - opened:.1f} s)"
    )


if __name__ == "__main__":
    main()
