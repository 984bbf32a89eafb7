"""`python run_fake.py FOLDER [round_s]`: the real flow over fake stages, as its own process.

Prints one line of JSON: the result's trials, and the states of all runs of the flow.
"""

import json
import sys
from pathlib import Path

from tests.flows.fakes import FakeStages


def main() -> None:
    folder = Path(sys.argv[1])
    round_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    sys.modules["retune.api"] = FakeStages(round_s=round_s).module()
    from flows.interrupt import ctrl_c_ends_measuring
    from flows.launch import tune_with_prefect
    from flows.progress import progress_on_stderr
    from retune.stages.manifest import TuneRequest

    request = TuneRequest(
        model="zoo:fake",
        out=str(folder / "out"),
        records=str(folder / "records"),
        work=str(folder / "work"),
        trials=9,
    )
    with progress_on_stderr(), ctrl_c_ends_measuring():
        result = tune_with_prefect(request)
    print(json.dumps({"trials": result.trials, "tuned_us": result.latency[1].median_us}))


if __name__ == "__main__":
    main()
