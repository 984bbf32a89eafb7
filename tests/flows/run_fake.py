"""`python run_fake.py FOLDER [held]`: the real flow over fake stages, as its own process.

The search of the task `held` lasts until the process is told to stop.
Prints one line of JSON: the result's trials and its tuned time.
"""

import json
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.flows.fakes import FakeStages


def main() -> None:
    folder = Path(sys.argv[1])
    held = sys.argv[2] if len(sys.argv) > 2 else None
    stages = FakeStages(held=held)
    from retune.cli.interrupt import ctrl_c_ends_measuring
    from retune.cli.progress import progress_on_stderr
    from retune.pipeline.request import TuneRequest
    from retune.pipeline.results import TuneResult
    from retune.prefect.launch import run_flow

    def call() -> TuneResult:
        from flows.tune_network import parameters_of, tune_network

        stages.as_tasks()
        with pytest.MonkeyPatch.context() as patch:
            stages.install(patch)
            return cast(TuneResult, tune_network(**parameters_of(request)))

    request = TuneRequest(
        model="zoo:fake",
        out=str(folder / "out"),
        records=str(folder / "records"),
        work=str(folder / "work"),
        trials=9,
    )
    with progress_on_stderr(), ctrl_c_ends_measuring():
        result = run_flow(call)
    print(json.dumps({"trials": result.trials, "tuned_us": result.latency[1].median_us}))


if __name__ == "__main__":
    main()
